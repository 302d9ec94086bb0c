"""Measure a trained model of a study."""

from typing import Any

import torch
from torch import nn

from teka.audit import accuracy_by_shift, equivariance_error
from teka.data import Dataset, Split, lossless_selection
from teka.experiments.study.measure import Measure
from teka.flops import flop_counter
from teka.models import Performer, SelfAttentionNetwork
from teka.training.batches import batches

# Models whose layers choose a backend.
CHOOSING = (Performer, SelfAttentionNetwork)
EVALUATION_BATCH = 250
EQUIVARIANCE_IMAGES = 16


def measure_model(model: nn.Module, dataset: Dataset, measure: Measure) -> dict[str, object]:
    """Accuracy, accuracy at every shift, equivariance error with its floors, and cost, ready for JSON.

    Where no image can be shifted, what is measured on shifted images is empty or None.

    Args:
        model: The model, in evaluation mode; it is moved to the accelerator if there is one.
        dataset: Its data.
        measure: What is measured.
    """
    forward_flops, training_flops = flops_per_image(model, dataset)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    test = _some(dataset.test, measure.images)
    right = 0
    with torch.inference_mode():
        for images, labels in batches(test, batch_size=EVALUATION_BATCH):
            right += int((model(images.to(device)).argmax(dim=1).cpu() == labels).sum())
    return {
        "backend": ", ".join(model.chosen_backends()) if isinstance(model, CHOOSING) else "torch",
        "forward_flops": forward_flops,
        "training_flops": training_flops,
        "test_images": len(test),
        "accuracy": right / len(test),
        **_under_shifts(model, test, measure, device),
    }


def _under_shifts(model: nn.Module, test: Split, measure: Measure, device: torch.device) -> dict[str, object]:
    shifted = _shifted(test, measure)
    if not len(shifted):
        return {
            "mode": measure.mode,
            "shifts": [],
            "shifted_images": 0,
            "accuracy_by_shift": [],
            "minimum_accuracy": None,
            "worst_shift_accuracy": None,
        }
    moved = accuracy_by_shift(
        model,
        shifted.images,
        shifted.labels,
        measure.shifts,
        mode=measure.mode,
        batch_size=EVALUATION_BATCH,
        device=device,
    )
    by_class: dict[str, dict[str, Any]] = {}
    for label in measure.classes:
        chosen = moved.correct[:, shifted.labels == label].double()
        if chosen.shape[1]:
            by_class[str(label)] = {
                "shifted_images": chosen.shape[1],
                "accuracy_by_shift": chosen.mean(dim=1).tolist(),
            }
    return {
        "mode": measure.mode,
        "shifts": [list(shift) for shift in moved.shifts],
        "shifted_images": moved.num_images,
        "accuracy_by_shift": moved.accuracy.tolist(),
        "minimum_accuracy": moved.minimum_accuracy,
        "worst_shift_accuracy": moved.worst_shift_accuracy,
        **({"classes": by_class} if measure.classes else {}),
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


def _equivariance(model: nn.Module, split: Split, measure: Measure, device: torch.device) -> dict[str, object]:
    """Largest relative change of the logits under the shifts, and two floors below which it says nothing."""
    images = split.images[:EQUIVARIANCE_IMAGES].to(device)
    error = equivariance_error(model, images, measure.shifts, mode=measure.mode)
    with torch.inference_mode():
        single = model(images).double()
        exact = model.double()(images.double())
        model.float()
    rounding = ((single - exact).norm() / exact.norm()).item()
    return {
        "equivariance_error": error.maximum,
        "repeat_floor": error.noise_floor,
        "noise_floor": max(error.noise_floor, rounding),
    }


def flops_per_image(model: nn.Module, dataset: Dataset) -> tuple[int, int]:
    """Operations of the matrix products for one image: forward, and forward with backward.

    Args:
        model: The model.
        dataset: Its data.
    """
    image, label = dataset.test.images[:1], dataset.test.labels[:1]
    with flop_counter() as forward, torch.no_grad():
        model(image)
    with flop_counter() as training:
        torch.nn.functional.cross_entropy(model(image), label).backward()
    model.zero_grad()
    return forward.get_total_flops(), training.get_total_flops()
