"""Read `report.json` and check it."""

from collections.abc import Mapping
from pathlib import Path

from teka.errors import wrong_value
from teka.files import read_json
from teka.training.report.model_result import AXES, ModelResult
from teka.training.report.record import Record
from teka.training.report.results import Report
from teka.training.report.seed_group import group_by_name


def _accuracies(record: Record) -> dict[str, dict[int, float]]:
    accuracies = {}
    for axis in AXES:
        along = record.record(axis)
        accuracies[axis] = {shift: along.accuracy(key) for key, shift in along.shifts().items()}
    if not any(accuracies.values()):
        raise wrong_value(f"{record.path}: {record.key}", record.values, "an accuracy at one shift or more")
    return accuracies


def _intervals(record: Record, shifts: Mapping[str, list[int]]) -> dict[str, dict[int, tuple[float, float]]]:
    intervals = {}
    for axis in AXES:
        along = record.record(axis)
        intervals[axis] = {shift: along.interval(key) for key, shift in along.shifts().items()}
        if sorted(intervals[axis]) != shifts[axis]:
            raise wrong_value(
                record.where(axis), sorted(intervals[axis]), f"the shifts of the accuracies, {shifts[axis]}"
            )
    return intervals


def _model(record: Record) -> ModelResult:
    accuracies = _accuracies(record.record("accuracy_by_shift"))
    lowest = min(accuracy for along in accuracies.values() for accuracy in along.values())
    shifts = {axis: sorted(along) for axis, along in accuracies.items()}
    with_intervals = record.has("interval_by_shift")
    return ModelResult(
        name=record.text("name"),
        position=record.text("position"),
        kernel=record.text("kernel"),
        backend=record.text("backend"),
        parameters=record.whole("parameters"),
        seed=record.whole("seed"),
        epochs=record.number("epochs"),
        seconds=record.number("seconds"),
        accuracy_by_shift=accuracies,
        worst_shift_accuracy=record.accuracy("worst_shift_accuracy"),
        minimum_accuracy=record.accuracy("minimum_accuracy") if record.has("minimum_accuracy") else lowest,
        interval_by_shift=_intervals(record.record("interval_by_shift"), shifts) if with_intervals else None,
        test_images=record.whole("test_images") if record.has("test_images") else None,
    )


def load_report(path: str | Path) -> Report:
    """Read `report.json`; keys that it does not know are left alone.

    Args:
        path: The file.

    Raises:
        ValueError: The file is missing or not JSON, a key is missing, or a value is not what the key takes; it names
            the file and the key.
    """
    path = Path(path)
    record = Record(read_json(path), path)
    models = tuple(_model(model) for model in record.records("models"))
    group_by_name(models, record.where("models"))
    return Report(
        dataset=record.text("dataset"),
        command=record.text("command"),
        teka=record.text("teka"),
        torch=record.text("torch"),
        models=models,
        hardware=record.text("hardware") if record.has("hardware") else None,
        date=record.text("date") if record.has("date") else None,
        mode=record.text("mode") if record.has("mode") else None,
        finding=record.text("finding") if record.has("finding") else None,
    )
