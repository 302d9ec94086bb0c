import contextlib

import torch
from torch import nn

from reproduction.study.model_metrics import compute_logits
from reproduction.training import train_custom_model, train_steps
from teka.data import load
from teka.training import Run


class KilledError(Exception):
    pass


def train_small_model(checkpoint, *, killed_at=None):
    """Train a small model with two optimizers, and return its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).train()
    optimizers = [
        torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9),
        torch.optim.AdamW(model[2].parameters(), lr=0.01),
    ]
    steps = []

    def make_batch(step):
        if step == killed_at:
            raise KilledError
        steps.append(step)
        generator = torch.Generator().manual_seed(step)
        return torch.rand(5, 4, generator=generator), torch.arange(5) % 3

    train_steps(
        model,
        optimizers,
        make_batch,
        num_steps=10,
        rate_factor=lambda step: 1 - step / 10,
        label_smoothing=0.1,
        gradient_clip=1.0,
        checkpoint=checkpoint,
        save_every=4,
    )
    return model.state_dict(), steps


def test_a_killed_training_continues_after_the_last_saved_step(tmp_path):
    expected, _ = train_small_model(tmp_path / "whole.pt")
    with contextlib.suppress(KilledError):
        train_small_model(tmp_path / "killed.pt", killed_at=7)
    resumed, steps = train_small_model(tmp_path / "killed.pt")
    assert steps == [4, 5, 6, 7, 8, 9]
    for name, weights in expected.items():
        assert torch.equal(resumed[name], weights), name


def test_learning_rates_follow_the_schedule():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rates = []

    def make_batch(step):
        rates.append(optimizer.param_groups[0]["lr"])
        return torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)

    train_steps(model, [optimizer], make_batch, num_steps=3, rate_factor=lambda step: step / 4)
    assert rates == [0.0, 0.125, 0.25]


def test_model_is_trained_with_the_recipe_of_a_run():
    dataset = load("digits", image_size=8, train_size=300, validation_size=0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    train_custom_model(
        model,
        dataset,
        Run.from_fields(epochs=5, batch_size=20, learning_rate=0.01, gradient_clip=1.0),
    )
    assert not model.training
    predictions = compute_logits(model, dataset.test.images).argmax(dim=1)
    assert (predictions == dataset.test.labels).double().mean() > 0.8
