import contextlib

import torch
from torch import nn

from reproduction.resumable import train_steps


class KilledError(Exception):
    pass


def train(checkpoint, *, killed_at=None):
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
        precision=torch.float32,
        checkpoint=checkpoint,
        save_every=4,
    )
    return model.state_dict(), steps


def test_a_killed_training_continues_after_the_last_saved_step(tmp_path):
    expected, _ = train(tmp_path / "whole.pt")
    with contextlib.suppress(KilledError):
        train(tmp_path / "killed.pt", killed_at=7)
    resumed, steps = train(tmp_path / "killed.pt")
    assert steps == [4, 5, 6, 7, 8, 9]
    for name, weights in expected.items():
        assert torch.equal(resumed[name], weights), name


def test_learning_rates_follow_the_schedule(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rates = []

    def make_batch(step):
        rates.append(optimizer.param_groups[0]["lr"])
        return torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)

    train_steps(
        model,
        [optimizer],
        make_batch,
        num_steps=3,
        rate_factor=lambda step: step / 4,
        label_smoothing=0.0,
        checkpoint=tmp_path / "state.pt",
        save_every=10,
    )
    assert rates == [0.0, 0.125, 0.25]
