"""The saved result of one cell of a study, read from its file and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from teka.errors import wrong_value
from teka.experiments.study.report.learning_curve import LearningCurve
from teka.files import read_json
from teka.training.report.record import Record, check_accuracy


class ShiftedClass(NamedTuple):
    """The images of one class that were shifted, and the accuracy on them for each shift (dy, dx)."""

    images: int
    accuracy_by_shift: Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class CellResult:
    """What one finished training run of a study measured.

    Args:
        labels: The level of every factor.
        seed: Seed of the run.
        batch_size: Images a step.
        image_size: Side of the images in pixels, where the run says so.
        parameters: Number of trainable parameters.
        backend: How the attention was evaluated.
        forward_flops: Floating-point operations of the model for one image.
        training_flops: The same of a training step, for one image: forward and backward.
        steps: Optimizer steps.
        epochs: Passes over the training images, where kept.
        seconds: Seconds of the training steps alone.
        process_seconds: CPU seconds of the training steps alone.
        learning_curve: What was measured on held-out images on the way.
        test_images: Number of test images.
        accuracy: Share of these classified right.
        accuracy_by_shift: Accuracy on the shifted images for each shift (dy, dx).
        shifted_images: Number of test images that were shifted.
        minimum_accuracy: Lowest accuracy at any shift, where images were shifted.
        worst_shift_accuracy: Share of the shifted images right at every shift, likewise.
        classes: For each class that is kept apart the number of its shifted images and their accuracy by shift.
        equivariance_error: How much the output changes under a shift, relative to its size, where measured.
        noise_floor: The same change from rounding alone, where measured.
        teka: Version of teka.
        torch: Version of PyTorch.
        hardware: What it ran on.
        date: When it ran.
        command: What it was run by.
    """

    labels: Mapping[str, str]
    seed: int
    batch_size: int
    image_size: int | None
    parameters: int
    backend: str
    forward_flops: float
    training_flops: float
    steps: int
    epochs: int | None
    seconds: float
    process_seconds: float
    learning_curve: LearningCurve
    test_images: int
    accuracy: float
    accuracy_by_shift: Mapping[tuple[int, int], float]
    shifted_images: int
    minimum_accuracy: float | None
    worst_shift_accuracy: float | None
    classes: Mapping[int, ShiftedClass]
    equivariance_error: float | None
    noise_floor: float | None
    teka: str
    torch: str
    hardware: str
    date: str
    command: str

    @property
    def unshifted_accuracy(self) -> float | None:
        """Accuracy on the shifted images where they stand at no shift, where measured."""
        return self.accuracy_by_shift.get((0, 0))


@dataclass(frozen=True)
class FailedCell:
    """A training run of a study whose loss diverged.

    Args:
        labels: The level of every factor.
        seed: Seed of the run.
        message: What happened.
    """

    labels: Mapping[str, str]
    seed: int
    message: str


def read_cell(path: Path) -> CellResult | FailedCell:
    """Read one cell's file; keys that it does not know are left alone.

    Args:
        path: The file.

    Raises:
        ValueError: The file is not JSON, a key is missing, or a value is not what the key takes; it names both.
    """
    record = Record(read_json(path), path)
    levels = record.record("labels")
    labels = {factor: levels.text(factor) for factor in levels.values}
    if not labels:
        raise wrong_value(record.where("labels"), labels, "the level of one factor or more")
    seed = record.whole("seed")
    if record.has("failed"):
        return FailedCell(labels, seed, record.text("failed"))
    run = record.record("run")
    return CellResult(
        labels=labels,
        seed=seed,
        batch_size=run.whole("batch_size"),
        image_size=run.whole("image_size") if run.has("image_size") else None,
        parameters=record.whole("parameters"),
        backend=record.text("backend"),
        forward_flops=record.number("forward_flops"),
        training_flops=record.number("training_flops"),
        steps=record.whole("steps"),
        epochs=record.whole("epochs") if record.has("epochs") else None,
        seconds=record.number("seconds"),
        process_seconds=record.number("process_seconds"),
        learning_curve=_learning_curve(record),
        test_images=record.whole("test_images"),
        accuracy=record.accuracy("accuracy"),
        accuracy_by_shift=_accuracy_by_shift(record),
        shifted_images=record.whole("shifted_images"),
        minimum_accuracy=_accuracy_or_none(record, "minimum_accuracy"),
        worst_shift_accuracy=_accuracy_or_none(record, "worst_shift_accuracy"),
        classes=_classes(record) if record.has("classes") else {},
        equivariance_error=record.number("equivariance_error") if record.has("equivariance_error") else None,
        noise_floor=record.number("noise_floor") if record.has("noise_floor") else None,
        teka=record.text("teka"),
        torch=record.text("torch"),
        hardware=record.text("hardware"),
        date=record.text("date"),
        command=record.text("command"),
    )


def _learning_curve(record: Record) -> LearningCurve:
    points = record.records("learning_curve")
    steps = tuple(point.whole("step") for point in points)
    seconds = tuple(point.number("process_seconds") for point in points)
    where = record.where("learning_curve")
    if list(steps) != sorted(set(steps)):
        raise wrong_value(where, list(steps), "steps that increase")
    if list(seconds) != sorted(seconds):
        raise wrong_value(where, list(seconds), "process_seconds that never fall")
    accuracy = tuple(point.accuracy("accuracy") for point in points)
    return LearningCurve(steps, seconds, accuracy, tuple(point.number("loss") for point in points))


def _accuracy_or_none(record: Record, key: str) -> float | None:
    return None if record.get(key) is None else record.accuracy(key)


def _classes(record: Record) -> dict[int, ShiftedClass]:
    classes = record.record("classes")
    found = {}
    for label, index in classes.whole_keys().items():
        one = classes.record(label)
        found[index] = ShiftedClass(one.whole("shifted_images"), _accuracies(_shifts(record), one))
    return found


def _accuracy_by_shift(record: Record) -> dict[tuple[int, int], float]:
    return _accuracies(_shifts(record), record)


def _shifts(record: Record) -> list[list[int]]:
    shifts = record.get("shifts")
    if not isinstance(shifts, list) or not all(_is_shift(shift) for shift in shifts):
        raise wrong_value(record.where("shifts"), shifts, "a list of shifts [dy, dx] in whole pixels")
    return shifts


def _accuracies(shifts: list[list[int]], record: Record) -> dict[tuple[int, int], float]:
    values = record.get("accuracy_by_shift")
    if not isinstance(values, list) or len(values) != len(shifts):
        raise wrong_value(record.where("accuracy_by_shift"), values, f"a list of {len(shifts)}, one for each shift")
    where = record.where("accuracy_by_shift")
    return {(dy, dx): check_accuracy(value, where) for (dy, dx), value in zip(shifts, values, strict=True)}


def _is_shift(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(step) is int for step in value)
