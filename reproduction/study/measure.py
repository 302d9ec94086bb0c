"""Measure a trained model of a study: its accuracy, cost and equivariance, and what its heads look at."""

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from reproduction.heads.measure import HeadGrid
from reproduction.heads.record import Moment
from reproduction.study.cells import ShiftedClass, Stable
from reproduction.study.study import Measure, Stability
from teka.audit import Movement, measure_responses
from teka.data import Dataset, Split, lossless_selection
from teka.flops import flop_counter
from teka.testing import equivariance_error
from teka.training.batches import batches
from teka.training.shift.measure import accuracies, backend_of, can_see, seeing

EVALUATION_BATCH = 250
EQUIVARIANCE_IMAGES = 16
# What a cell's file keeps of a number of its heads: significant digits, and digits after the point.
DIGITS, DECIMALS = 4, 6


def measure_model(model: nn.Module, dataset: Dataset, measure: Measure) -> dict[str, Any]:
    """Accuracy, cost and what shifts do, fields of `CellResult`; the model is moved to an accelerator, if any."""
    forward_flops, training_flops = flops_per_image(model, dataset)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    test = _some(dataset.test, measure.images)
    correct = 0
    with torch.inference_mode():
        for images, labels in batches(test, batch_size=EVALUATION_BATCH):
            correct += int((model(images.to(device)).argmax(dim=1).cpu() == labels).sum())
    return {
        "backend": backend_of(model, EVALUATION_BATCH),
        "forward_flops": float(forward_flops),
        "training_flops": float(training_flops),
        "test_images": len(test),
        "accuracy": correct / len(test),
        **_under_shifts(model, test, measure, device),
        "stability": {
            mode: found
            for mode, asked in measure.stability.items()
            if (found := _stability(model, mode, asked, _some(test, asked.images), device))
            is not None
        },
    }


def _stability(
    model: nn.Module, mode: str, asked: Stability, split: Split, device: torch.device
) -> Stable | None:
    """How many answers stay where images move; None of a model that does not take the size that the mode shows it."""
    size = tuple(split.images.shape[2:])
    movement = Movement(mode, crop_size=asked.crop_size)
    seen = movement.seen_size(size)
    everywhere = tuple((y, x) for y in range(size[0]) for x in range(size[1]))
    shifts = ((0.0, 0.0), *(asked.shifts or everywhere))
    if not can_see(model, seen, size):
        return None
    options = {
        "labels": split.labels,
        "output": "logits",
        "batch_size": EVALUATION_BATCH,
        "device": device,
    }
    with seeing(model, seen):
        moved = measure_responses(model, split.images, shifts, movement, **options)
    assert moved.agreement is not None
    same = moved.agreement[moved.moved]
    return Stable(
        len(split), len(same), same.double().mean().item(), same.all(dim=0).double().mean().item()
    )


def _under_shifts(
    model: nn.Module, test: Split, measure: Measure, device: torch.device
) -> dict[str, Any]:
    shifted = _shifted(test, measure)
    if not len(shifted):
        nothing = {"minimum_accuracy": None, "worst_shift_accuracy": None}
        return {
            "mode": measure.mode,
            "shifts": (),
            "shifted_images": 0,
            "accuracy_by_shift": (),
            **nothing,
        }
    options = {
        "labels": shifted.labels,
        "output": "logits",
        "batch_size": EVALUATION_BATCH,
        "device": device,
    }
    moved = measure_responses(
        model, shifted.images, measure.shifts, Movement(measure.mode), **options
    )
    classes = {}
    for label in measure.classes:
        of_class = shifted.labels == label
        if of_class.any():
            chosen = moved.take_images(of_class)
            classes[label] = ShiftedClass(
                chosen.num_images, accuracies(chosen)["accuracy_by_shift"]
            )
    return {
        "mode": measure.mode,
        "shifts": moved.shifts,
        "shifted_images": moved.num_images,
        **accuracies(moved),
        "classes": classes,
        **_equivariance(model, shifted, measure, device),
    }


def _some(split: Split, count: int | None) -> Split:
    """Some images of a split, the same for every cell: published test images need not be in a random order."""
    if count is None or count >= len(split):
        return split
    chosen = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:count]
    return Split(split.images[chosen], split.labels[chosen])


def _shifted(test: Split, measure: Measure) -> Split:
    """The images that are shifted: in mode "lossless" those that lose nothing, and of these the first ones."""
    if measure.mode == "lossless":
        down, right = (max(abs(shift[axis]) for shift in measure.shifts) for axis in (0, 1))
        keep = torch.ones(len(test), dtype=torch.bool)
        for images, margin in ((test.images, right), (test.images.transpose(2, 3), down)):
            if margin:
                keep &= lossless_selection(images, test.labels, class_index=None, margin=margin)
        test = test.take(keep.nonzero().flatten())
    return Split(test.images[: measure.shifted_images], test.labels[: measure.shifted_images])


def _equivariance(
    model: nn.Module, split: Split, measure: Measure, device: torch.device
) -> dict[str, Any]:
    """Largest relative change of the logits under the shifts, and two floors below which it says nothing."""
    images = split.images[:EQUIVARIANCE_IMAGES].to(device)
    error = equivariance_error(model, images, measure.shifts, mode=measure.mode)
    with torch.inference_mode():
        single = model(images).double()
        # A copy: numbers made in this mode could not be trained on.
        exact = copy.deepcopy(model).double()(images.double())
    rounding = ((single - exact).norm() / exact.norm()).item()
    return {
        "equivariance_error": error.maximum,
        "repeat_floor": error.noise_floor,
        "noise_floor": max(error.noise_floor, rounding),
    }


def flops_per_image(model: nn.Module, dataset: Dataset) -> tuple[int, int]:
    """Operations of the matrix products for one image: forward, and forward with backward."""
    image, label = dataset.test.images[:1], dataset.test.labels[:1]
    with flop_counter() as forward, torch.no_grad():
        model(image)
    with flop_counter() as training:
        torch.nn.functional.cross_entropy(model(image), label).backward()
    model.zero_grad()
    return forward.get_total_flops(), training.get_total_flops()


def measure_heads(moments: Sequence[Moment], chance: Sequence[HeadGrid]) -> dict[str, Any]:
    """The heads of every layer at the start and at the end, and what is by chance, ready for JSON.

    Kept are "center" and "precision" of Gaussians, Σ⁻¹ as its entries yy, yx and xx, and "mean" and "covariance" of
    other heads; "offset" and "weight"; and of the layer "grid", the fields of `HeadGrid`, as for "chance".
    """
    return {
        "start": _layers(moments[0]),
        "end": _layers(moments[-1]),
        "chance": [_fields(grid) for grid in chance],
    }


def _layers(moment: Moment) -> list[dict[str, object]]:
    layers: list[dict[str, object]] = []
    for layer, grid in enumerate(moment.grids):
        heads = moment.heads.of_layer(layer)
        shape = (
            ("center", "precision")
            if torch.isfinite(heads.center).all()
            else ("mean", "covariance")
        )
        numbers = {name: _numbers(getattr(heads, name)) for name in (*shape, "weight")}
        layers.append({**numbers, "offset": heads.offset.tolist(), "grid": _fields(grid)})
    return layers


def _fields(grid: HeadGrid) -> dict[str, object]:
    return {name: _round(number) for name, number in asdict(grid).items()}


def _numbers(tensor: Tensor) -> list[object]:
    if tensor.ndim == 3:  # symmetric
        tensor = torch.stack([tensor[:, 0, 0], tensor[:, 1, 0], tensor[:, 1, 1]], dim=-1)
    return [_round(value) for value in tensor.tolist()]


def _round(value: object) -> object:
    """To the digits that are kept; None for what JSON does not know."""
    if isinstance(value, list):
        return [_round(one) for one in value]
    if not isinstance(value, float):
        return value
    return float(f"{round(value, DECIMALS):.{DIGITS}g}") + 0.0 if math.isfinite(value) else None
