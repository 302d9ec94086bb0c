from types import SimpleNamespace
from typing import Any

import pytest
import torch

from teka.data import HorizontalFlip, RandomShift, load
from teka.training import Run
from teka.training.classifier import (
    Classifier,
    compute_learning_rate_factor,
    make_augmentations,
    make_optimizer,
)


def make_model(run):
    return run.make_model(image_size=(8, 8), in_channels=1, num_classes=10)


RUN = Run.from_fields(dim=8, depth=2, heads=2, warmup=0.1, learning_rate=0.5)


def test_cosine_schedule_rises_linearly_and_falls_to_zero():
    def factor(step):
        return compute_learning_rate_factor(step, RUN, 100)

    assert [factor(step) for step in range(10)] == pytest.approx(
        [(step + 1) / 10 for step in range(10)]
    )
    assert factor(10) == 1.0
    assert factor(55) == pytest.approx(0.5)
    assert factor(100) == pytest.approx(0.0)


def test_constant_schedule_stays_at_its_peak_after_the_warmup():
    run = RUN.replace(schedule="constant")
    assert [compute_learning_rate_factor(step, run, 100) for step in (10, 50, 99)] == [
        1.0,
        1.0,
        1.0,
    ]


def test_weight_decay_excludes_biases_norms_tokens_and_positions():
    model = make_model(RUN.replace(depth=2))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(model, RUN)
    decayed, not_decayed = (
        {names[id(parameter)] for parameter in group["params"]} for group in optimizer.param_groups
    )
    assert optimizer.param_groups[0]["weight_decay"] == RUN.weight_decay
    assert optimizer.param_groups[1]["weight_decay"] == 0
    assert decayed | not_decayed == set(names.values())
    assert all(name.endswith("weight") and "norm" not in name for name in decayed)
    assert {"class_token", "blocks.0.attention.relative.frequency", "head.bias"} <= not_decayed


@pytest.mark.parametrize("encoding", ["quadratic", "generalized_quadratic", "table"])
def test_sgd_decays_all_parameters_except_those_of_positions(encoding):
    run = Run.from_fields(
        model="self_attention",
        position=encoding,
        dim=8,
        optimizer="sgd",
        momentum=0.5,
        weight_decay=0.25,
    )
    model = make_model(run)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(model, run)
    assert isinstance(optimizer, torch.optim.SGD)
    assert [(group["momentum"], group["weight_decay"]) for group in optimizer.param_groups] == [
        (0.5, 0.25),
        (0.5, 0),
    ]
    decayed, not_decayed = (
        {names[id(parameter)] for parameter in group["params"]} for group in optimizer.param_groups
    )
    assert decayed | not_decayed == set(names.values())
    position_parameters = {
        name for name in names.values() if name.rpartition(".")[0].endswith("attention.relative")
    }
    assert not_decayed == position_parameters
    # The entries of a table are computed from embeddings.
    assert bool(not_decayed) == (encoding != "table")


def test_sgd_step_uses_weight_decay_and_momentum():
    run = Run.from_fields(optimizer="sgd", momentum=0.5, weight_decay=0.25, learning_rate=0.1)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 2.0)
    optimizer = make_optimizer(model, run)
    for _ in range(2):
        optimizer.zero_grad()
        (3.0 * model.weight.sum()).backward()
        optimizer.step()
    after_first_step = 2.0 - 0.1 * (3 + 0.25 * 2)
    expected = after_first_step - 0.1 * (0.5 * (3 + 0.25 * 2) + 3 + 0.25 * after_first_step)
    assert float(model.weight.detach()) == pytest.approx(expected)


def test_adam_optimizes_every_parameter_once():
    model = make_model(RUN)
    optimizer = make_optimizer(model, RUN.replace(optimizer="adam", weight_decay=0.0))
    assert isinstance(optimizer, torch.optim.Adam)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(
        list(model.parameters())
    )


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_fused_step_equals_the_plain_step(optimizer):
    fields: dict[str, Any] = {"adam": {"weight_decay": 0.0}, "adamw": {}, "sgd": {"momentum": 0.5}}[
        optimizer
    ]
    run = Run.from_fields(optimizer=optimizer, learning_rate=0.1, **fields)
    models = [torch.nn.Linear(5, 3, dtype=torch.float64) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    tokens = torch.randn(7, 5, dtype=torch.float64)
    for model, fused in zip(models, (None, True), strict=True):
        made = make_optimizer(model, run, fused=fused)
        for _ in range(3):
            made.zero_grad()
            model(tokens).square().sum().backward()
            made.step()
    assert torch.allclose(models[0].weight, models[1].weight, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("precision", "expected"), [("32-true", True), ("bf16-mixed", None)])
def test_optimizer_is_fused_only_if_lightning_can_clip_gradients(precision, expected):
    module = Classifier(torch.nn.Linear(5, 3), RUN, load("digits"))
    trainer: Any = SimpleNamespace(precision=precision)
    module._trainer = trainer
    made: Any = module.configure_optimizers()
    assert made["optimizer"].param_groups[0]["fused"] is expected


def test_augmentations_are_those_of_the_run():
    for fields, made in (
        ({}, ()),
        ({"random_shift": 2}, (RandomShift(2, mode="zero"),)),
        ({"random_shift": 2, "periodic": True}, (RandomShift(2, mode="circular"),)),
        (
            {"random_shift": 2, "periodic": True, "shift_mode": "zero"},
            (RandomShift(2, mode="zero"),),
        ),
        ({"random_shift": 1, "random_flip": True}, (RandomShift(1), HorizontalFlip())),
    ):
        assert make_augmentations(Run.from_fields(**fields)) == list(made), fields


def augmented_images(step, rank, batch_idx):
    """Return copies of one image after the augmentation of a training step."""
    recorded = []

    class RecordImages(torch.nn.Module):
        def forward(self, images):
            recorded.append(images)
            return torch.zeros(len(images), 10)

    classifier = Classifier(RecordImages(), Run.from_fields(random_shift=3), load("digits"))
    # Two processes that each accumulate gradients over three micro-batches.
    trainer: Any = SimpleNamespace(
        global_step=step, global_rank=rank, accumulate_grad_batches=3, world_size=2
    )
    classifier._trainer, classifier.log = trainer, lambda *arguments, **options: None
    images = torch.arange(1.0, 36.0).reshape(1, 1, 5, 7).repeat(8, 1, 1, 1)
    batch = (images, torch.zeros(8).long(), 1.0)
    classifier.on_train_batch_start(batch, batch_idx)
    classifier.training_step(batch, batch_idx)
    return recorded[0]


def test_every_image_of_every_micro_batch_has_its_own_reproducible_shift():
    draws = [
        augmented_images(*place)
        for place in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 2))
    ]
    for index, draw in enumerate(draws):
        assert len({tuple(image.flatten().tolist()) for image in draw}) >= 5
        assert not any(torch.equal(draw, other) for other in draws[:index])
    assert torch.equal(augmented_images(0, 1, 2), draws[-1])
