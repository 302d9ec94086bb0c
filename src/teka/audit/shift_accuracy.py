"""Accuracy of a classifier at every shift of its images."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from teka.audit.function import check_evaluation_mode
from teka.audit.movement import make_movement
from teka.audit.shifts import Shift
from teka.audit.statistics.intervals import wilson_interval
from teka.errors import wrong_shape, wrong_value


@dataclass(frozen=True, eq=False)
class ShiftAccuracy:
    """What a classifier answered, and whether it was right, for every image at every shift.

    Args:
        shifts: The set of shifts S: one step in cells for each spatial axis; of images, (dy, dx).
        correct: Whether each answer is right, (S, N).
        predictions: The classes answered, (S, N).
        mode: The mode of `teka.audit.translate` that moved the images.
        canvas_size: Size of the canvas in mode `canvas`, else None.
    """

    shifts: tuple[tuple[int, ...], ...]
    correct: Bool[Tensor, "shifts images"]
    predictions: Int[Tensor, "shifts images"]
    mode: str
    canvas_size: tuple[int, ...] | None = None

    @property
    def num_images(self) -> int:
        """Number of images N."""
        return self.correct.shape[1]

    @property
    def accuracy(self) -> Float[Tensor, " shifts"]:
        """Share of images answered rightly at each shift, in float64."""
        return self.correct.to(torch.float64).mean(dim=1)

    @property
    def minimum_accuracy(self) -> float:
        """Lowest accuracy over the shifts."""
        return self.accuracy.min().item()

    @property
    def worst_shift_accuracy(self) -> float:
        """Share of images answered rightly at every one of the shifts; never above `minimum_accuracy`."""
        return self.correct.all(dim=0).to(torch.float64).mean().item()

    @property
    def consistency(self) -> float:
        """P[argmax f(T_s x) = argmax f(x)] over images and shifts, right or wrong.

        The zero shift agrees with itself by definition and is not counted.

        Raises:
            ValueError: The set of shifts lacks the zero shift, or has no other.
        """
        if not self._has_zero_and_others:
            raise wrong_value("shifts", self.shifts, "the zero shift and at least one other, to compare with it")
        moved = torch.tensor([any(shift) for shift in self.shifts], device=self.predictions.device)
        return (self.predictions[moved] == self.predictions[~moved]).to(torch.float64).mean().item()

    @property
    def _has_zero_and_others(self) -> bool:
        return len(self.shifts) > 1 and any(not any(shift) for shift in self.shifts)

    def interval(self, confidence: float = 0.95) -> tuple[Float[Tensor, " shifts"], Float[Tensor, " shifts"]]:
        """Wilson's interval for the accuracy at each shift, lower and upper ends in float64.

        Raises:
            ValueError: A confidence outside (0, 1).
        """
        return wilson_interval(self.correct.sum(dim=1), self.num_images, confidence)

    def along(self, axis: int) -> dict[int, float]:
        """Accuracy by step for the shifts that are zero on every other axis, in the order of `shifts`.

        Args:
            axis: A spatial axis, counted from 0; of images, 0 is dy and 1 is dx. Negative numbers count from the last.

        Raises:
            ValueError: No such axis, or no shift along it.
        """
        num_axes = len(self.shifts[0])
        if not -num_axes <= axis < num_axes:
            raise wrong_value("axis", axis, f"one of {num_axes} spatial axes, counted from 0")
        accuracy = self.accuracy.tolist()
        line = {
            shift[axis]: accuracy[index]
            for index, shift in enumerate(self.shifts)
            if not any(step for other, step in enumerate(shift) if other != axis % num_axes)
        }
        if not line:
            raise wrong_value("axis", axis, f"an axis that some shift is along; the shifts are {self.shifts}")
        return line

    def to_dict(self, confidence: float = 0.95) -> dict[str, object]:
        """The numbers as lists, strings and floats, ready for JSON; `consistency` is None where it is not defined.

        Raises:
            ValueError: A confidence outside (0, 1).
        """
        lower, upper = self.interval(confidence)
        return {
            "mode": self.mode,
            "canvas_size": None if self.canvas_size is None else list(self.canvas_size),
            "num_images": self.num_images,
            "shifts": [list(shift) for shift in self.shifts],
            "accuracy": self.accuracy.tolist(),
            "confidence": confidence,
            "interval": {"lower": lower.tolist(), "upper": upper.tolist()},
            "minimum_accuracy": self.minimum_accuracy,
            "worst_shift_accuracy": self.worst_shift_accuracy,
            "consistency": self.consistency if self._has_zero_and_others else None,
        }


def accuracy_by_shift(
    predict: Callable[[Tensor], object],
    images: Tensor,
    labels: Tensor,
    shifts: Iterable[Shift],
    *,
    mode: str = "lossless",
    canvas_size: int | Sequence[int] | None = None,
    background: float | Sequence[float] = 0.0,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ShiftAccuracy:
    """Ask a classifier for the class of every image at every shift.

    Every image is checked before the first prediction, so a shift that would lose content costs no time. `predict` runs
    in inference mode.

    Args:
        predict: Takes images (B, C, *S), or (B, C, *canvas_size) in mode `canvas`, and returns logits (B, K).
        images: Images (N, C, *S).
        labels: Their classes (N,), integers from 0 to K − 1.
        shifts: The set of shifts: ints (along the last axis) or one step for each axis. Repeats count once.
        mode: How images move, a mode of `teka.audit.translate`.
        canvas_size: Size of the canvas for mode `canvas`; else None.
        background: Value of the images' background: one, or one for each channel.
        batch_size: Images for one call of `predict`.
        device: Where the images are taken for `predict`; None leaves them where they are. The answers come to the CPU.
        progress: Called after each call of `predict` with the number of calls done and of all calls.

    Raises:
        ValueError: A module in training mode; no images; labels of the wrong shape, type or range; an unknown mode; no
            or too long shifts; content that would be lost; a batch size below 1; logits that are no tensor (B, K) or
            hold NaN.
    """
    check_evaluation_mode("predict", predict)
    _check_data(images, labels)
    if batch_size < 1:
        raise wrong_value("batch_size", batch_size, "at least 1")

    movement = make_movement(mode, background, canvas_size)
    starts, wanted = range(0, len(images), batch_size), tuple(shifts)
    # One batch at a time, for all images on their canvases may not fit into memory.
    for start in starts:
        steps = movement.check(movement.place(images[start : start + batch_size]), wanted)
    truth = labels.cpu().to(torch.int64)
    predictions = torch.empty(len(steps), len(images), dtype=torch.int64)
    for done, start in enumerate(starts):
        batch = movement.place(images[start : start + batch_size]).to(device)
        for row, step in enumerate(steps):
            with torch.inference_mode():
                logits = predict(movement.move(batch, step))
            predictions[row, start : start + batch_size] = _answers(logits, len(batch), truth)
            if progress is not None:
                progress(done * len(steps) + row + 1, len(starts) * len(steps))
    canvas = movement.seen_size(images.shape[2:]) if mode == "canvas" else None
    return ShiftAccuracy(steps, predictions == truth, predictions, mode, canvas)


def _check_data(images: Tensor, labels: Tensor) -> None:
    if images.ndim < 3 or images.numel() == 0:
        raise wrong_shape("images", images.shape, "(images, channels, one or more spatial sizes), none of them empty")
    if tuple(labels.shape) != (len(images),):
        raise wrong_shape("labels", labels.shape, f"({len(images)},), one label for each image")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise wrong_value("labels.dtype", labels.dtype, "an integer dtype")
    if (labels < 0).any():
        raise wrong_value("labels", int(labels.min()), "classes of at least 0")


def _answers(logits: object, num_images: int, truth: Tensor) -> Tensor:
    if not isinstance(logits, Tensor):
        raise wrong_value("the output of predict", type(logits).__name__, "a tensor of logits")
    if logits.ndim != 2 or len(logits) != num_images or logits.shape[1] == 0:
        raise wrong_shape("the output of predict", logits.shape, f"({num_images}, classes)")
    if logits.isnan().any():
        raise ValueError("the output of predict has NaN, expected logits")
    if int(truth.max()) >= logits.shape[1]:
        raise wrong_value("labels", int(truth.max()), f"classes below {logits.shape[1]}, the number of logits")
    return logits.argmax(dim=1).cpu()
