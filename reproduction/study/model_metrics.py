"""Metrics of a trained model: its accuracy, its cost and its sensitivity to shifts."""

import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from reproduction.flops import make_flop_counter
from reproduction.study.study import MeasureSettings, StabilitySettings
from teka.audit import Movement, measure_responses
from teka.data import Dataset, Split, lossless_selection
from teka.models import Performer
from teka.testing import equivariance_error

BATCH_SIZE = 250
NUM_EQUIVARIANCE_IMAGES = 16


def measure_model(model: nn.Module, dataset: Dataset, settings: MeasureSettings) -> dict[str, Any]:
    """Measure the accuracy, cost and shift sensitivity of a model on the test images.

    - The cost is the number of floating-point operations in a forward pass for one image.
    - The equivariance error is the largest relative change of the logits under the shifts.
    - The noise floor is the relative change of the logits without any shift: between two calls, or
      between float32 and float64 if this change is larger.

    The model runs on a GPU if one is available.

    Args:
        model: Model in evaluation mode.
        dataset: Data set with the test images.
        settings: Which test images, shifts and metrics to measure.

    Returns:
        The measurements, with the keys of a study's results file.
    """
    forward_flops = count_flops_per_image(model, dataset)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    test = select_random_images(dataset.test, settings.images)
    backends = getattr(model, "chosen_backends", lambda batch_size: ["torch"])(BATCH_SIZE)
    return {
        "backend": ", ".join(backends),
        "forward_flops": forward_flops,
        "test_images": len(test),
        "accuracy": measure_accuracy(model, test),
        **_measure_shifts(model, _select_images_to_shift(test, settings), settings),
        "stability": {
            mode: measure_prediction_stability(model, test, mode, stability)
            for mode, stability in settings.stability.items()
            if stability.crop_size is None
            or (isinstance(model, Performer) and model.takes((stability.crop_size,) * 2))
        },
    }


def compute_logits(
    model: nn.Module, images: Float[Tensor, "images channels height width"]
) -> Float[Tensor, "images classes"]:
    """Compute the logits of images in batches, on the model's device."""
    device = next(model.parameters()).device
    with torch.inference_mode():
        # `forward` is never compiled. A compiled model would be compiled again for each size.
        return torch.cat(
            [model.forward(batch.to(device)).cpu() for batch in images.split(BATCH_SIZE)]
        )


def measure_accuracy(model: nn.Module, split: Split) -> float:
    """Return the fraction of images that a model classifies correctly."""
    return _mean(compute_logits(model, split.images).argmax(dim=1) == split.labels)


@torch.no_grad()
def count_flops_per_image(model: nn.Module, dataset: Dataset) -> int:
    """Count the floating-point operations in a forward pass for one image."""
    with make_flop_counter() as counter:
        model(dataset.test.images[:1])
    return counter.get_total_flops()


def select_random_images(split: Split, count: int | None) -> Split:
    """Draw `count` random images with a fixed seed, or return all images if `count` is None.

    The images are not taken in order, because published data sets may be sorted by class.
    """
    if count is None or count >= len(split):
        return split
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))
    return split.take(order[:count])


def _measure_shifts(model: nn.Module, shifted: Split, settings: MeasureSettings) -> dict[str, Any]:
    result = {"mode": settings.mode, "shifts": settings.shifts, "shifted_images": len(shifted)}
    if not len(shifted):
        return {**result, "shifts": (), "accuracy_by_shift": ()}
    responses = _compute_responses(model, shifted, settings.shifts, Movement(settings.mode))
    is_correct = responses.correct
    images = shifted.images[:NUM_EQUIVARIANCE_IMAGES].to(next(model.parameters()).device)
    error = equivariance_error(model, images, settings.shifts, mode=settings.mode)
    exact = compute_logits(copy.deepcopy(model).double(), images.double())
    rounding = (compute_logits(model, images).double() - exact).norm() / exact.norm()
    by_shift = is_correct.double().mean(dim=1)
    return {
        **result,
        "accuracy_by_shift": by_shift.tolist(),
        "minimum_accuracy": by_shift.min().item(),
        "worst_shift_accuracy": _mean(is_correct.all(dim=0)),
        "classes": {
            label: {
                "shifted_images": int(is_class.sum()),
                "accuracy_by_shift": is_correct[:, is_class].double().mean(dim=1).tolist(),
            }
            for label in settings.classes
            if (is_class := shifted.labels == label).any()
        },
        "equivariance_error": error.maximum,
        "noise_floor": max(error.noise_floor, rounding.item()),
    }


def measure_prediction_stability(
    model: nn.Module, test: Split, mode: str, settings: StabilitySettings
) -> dict[str, Any]:
    """Measure how many predictions stay the same when the test images are shifted.

    Args:
        model: Model in evaluation mode.
        test: Test images.
        mode: Shift mode of `teka.audit.translate`, such as "circular".
        settings: Shifts and number of images.

    Returns:
        The number of images and shifts, the share of equal predictions ("consistency"), and the
        share of images whose prediction is the same under every shift ("unchanged").
    """
    split = select_random_images(test, settings.images)
    height, width = split.images.shape[2:]
    shifts = settings.shifts or [(dy, dx) for dy in range(height) for dx in range(width)]
    movement = Movement(mode, crop_size=settings.crop_size)
    if settings.crop_size is not None and isinstance(model, Performer):
        model = copy.deepcopy(model)
        model.resize(settings.crop_size)
    responses = _compute_responses(model, split, [(0, 0), *shifts], movement)
    is_unchanged = responses.agreement[responses.moved]
    return {
        "images": len(split),
        "shifts": len(is_unchanged),
        "consistency": _mean(is_unchanged),
        "unchanged": _mean(is_unchanged.all(dim=0)),
    }


def _compute_responses(model: nn.Module, split: Split, shifts: Any, movement: Movement) -> Any:
    return measure_responses(
        model,
        split.images,
        shifts,
        movement,
        labels=split.labels,
        output="logits",
        batch_size=BATCH_SIZE,
        device=next(model.parameters()).device,
    )


def _select_images_to_shift(test: Split, settings: MeasureSettings) -> Split:
    """Return the first `settings.shifted_images` test images, which are measured under shifts.

    In mode "lossless", images that would lose content at a shift along x are skipped.
    """
    if settings.mode == "lossless":
        margin = max(abs(dx) for _, dx in settings.shifts)
        keep = lossless_selection(test.images, test.labels, class_index=None, margin=margin)
        test = test.take(keep.nonzero().flatten())
    return Split(*test[: settings.shifted_images])


def _mean(is_true: Tensor) -> float:
    return is_true.double().mean().item()
