"""A saved `report.json`: accuracies under shifts of models and their seeds, read and checked."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from teka.audit import Estimate
from teka.audit.page.notation import averaged
from teka.audit.statistics.estimate import mean_over_seeds
from teka.codec import decode
from teka.errors import wrong_value
from teka.files import read_json

AXES = ("dx", "dy")
"""The shifts' axes: dx counts pixels to the right, dy pixels downwards, as `Grid` shifts."""
BUILT_IN = "built in"
"""Position and kernel of a model that is not made of such parts."""
WILSON = "wilson"
CONFIDENCE = 0.95
LINEAR_BACKENDS = ("linear", "toeplitz", "rings")


@dataclass(frozen=True)
class ModelResult:
    """One model trained with one seed, with accuracies and their 95 % Wilson intervals by axis and shift in pixels."""

    name: str
    position: str
    kernel: str
    backend: str
    parameters: int
    seed: int
    epochs: float
    seconds: float
    accuracy_by_shift: dict[str, dict[int, float]]
    worst_shift_accuracy: float
    minimum_accuracy: float | None = None
    interval_by_shift: dict[str, dict[int, tuple[float, float]]] | None = None
    test_images: int | None = None

    @property
    def lowest(self) -> float:
        """Lowest accuracy at any shift."""
        if self.minimum_accuracy is not None:
            return self.minimum_accuracy
        return min(accuracy for along in self.accuracy_by_shift.values() for accuracy in along.values())

    def estimate(self, axis: str, shift: int) -> Estimate:
        """The accuracy at a shift, with its interval where that was saved."""
        value = self.accuracy_by_shift[axis][shift]
        if self.interval_by_shift is None:
            return mean_over_seeds([value], CONFIDENCE)
        return Estimate(value, *self.interval_by_shift[axis][shift], CONFIDENCE, WILSON)

    def check(self, where: str) -> None:
        """Check that its numbers are what they should be; an error names the file and the key."""
        for key in ("name", "position", "kernel", "backend"):
            _check_text(f"{where}.{key}", getattr(self, key))
        for key in ("parameters", "seed", "epochs", "seconds", "test_images"):
            value = getattr(self, key)
            if value is not None and not 0 <= value < float("inf"):
                raise wrong_value(f"{where}.{key}", value, "a finite number of at least 0")
        for key in ("worst_shift_accuracy", "minimum_accuracy"):
            _check_share(f"{where}.{key}", 0.0 if getattr(self, key) is None else getattr(self, key))
        for axis in AXES:
            along, intervals = self.accuracy_by_shift[axis], (self.interval_by_shift or {}).get(axis)
            for shift, value in along.items():
                _check_share(f"{where}.accuracy_by_shift.{axis}.{shift}", value)
            if self.interval_by_shift is not None and (intervals is None or sorted(intervals) != sorted(along)):
                expected = f"the shifts of the accuracies, {sorted(along)}"
                raise wrong_value(f"{where}.interval_by_shift.{axis}", sorted(intervals or {}), expected)
            for shift, (low, high) in (intervals or {}).items():
                if not 0 <= low <= high <= 1:
                    expected = "[low, high] from 0 to 1 with low ≤ high"
                    raise wrong_value(f"{where}.interval_by_shift.{axis}.{shift}", [low, high], expected)
        if not any(self.accuracy_by_shift[axis] for axis in AXES):
            raise wrong_value(f"{where}.accuracy_by_shift", self.accuracy_by_shift, "an accuracy at one shift or more")


class Lowest(NamedTuple):
    """The lowest accuracy of a model and the shift where it lies."""

    accuracy: float
    axis: str
    shift: int


@dataclass(frozen=True)
class SeedGroup:
    """The results of one model, one for each seed."""

    results: tuple[ModelResult, ...]

    @property
    def first(self) -> ModelResult:
        """The first result, which has what all of them share."""
        return self.results[0]

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.first.name

    def mean(self, number: str) -> float:
        """A number of the results, the mean over seeds."""
        return fmean(getattr(result, number) for result in self.results)

    def accuracy(self, axis: str) -> dict[int, Estimate]:
        """Accuracy at each shift along an axis, the mean over seeds; of one seed the interval is that of its images."""
        shifts = sorted(self.first.accuracy_by_shift[axis])
        if len(self.results) == 1:
            return {shift: self.first.estimate(axis, shift) for shift in shifts}
        return {
            shift: mean_over_seeds([result.accuracy_by_shift[axis][shift] for result in self.results], CONFIDENCE)
            for shift in shifts
        }

    @property
    def lowest(self) -> Lowest:
        """Lowest accuracy over both axes, of the means over seeds, and the shift nearest to none where it lies."""
        found = [Lowest(one.value, axis, shift) for axis in AXES for shift, one in self.accuracy(axis).items()]
        return min(found, key=lambda at: (at.accuracy, abs(at.shift)))

    @property
    def unshifted(self) -> float | None:
        """Accuracy at no shift, the mean over seeds, where it was measured."""
        at_zero = [curve[0].value for axis in AXES if 0 in (curve := self.accuracy(axis))]
        return at_zero[0] if at_zero else None

    @property
    def is_relative(self) -> bool:
        """Whether the model knows relative positions."""
        return self.first.position not in ("none", "absolute", BUILT_IN)

    @property
    def is_linear(self) -> bool:
        """Whether its cost is called linear: O(L), or for "toeplitz" O(L · Σ sides)."""
        return self.first.backend in LINEAR_BACKENDS


def group_by_name(models: Sequence[ModelResult], argument: str = "models") -> tuple[SeedGroup, ...]:
    """Gather the results of each model over its seeds, in order of appearance; a name must be of one model."""
    by_name: dict[str, list[ModelResult]] = {}
    for model in models:
        by_name.setdefault(model.name, []).append(model)
    for name, results in by_name.items():
        for key in ("position", "kernel", "backend", "parameters"):
            values = sorted({str(getattr(result, key)) for result in results})
            if len(values) > 1:
                raise ValueError(f"{argument}: {name!r} has {key} {' and '.join(values)}, expected one for each name")
        seeds = [result.seed for result in results]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{argument}: {name!r} has seeds {seeds}, expected each seed once for each name")
        for axis in AXES:
            if len({frozenset(result.accuracy_by_shift[axis]) for result in results}) > 1:
                expected = "expected the same for every seed"
                raise ValueError(f"{argument}: {name!r} has different shifts along {axis}, {expected}")
    return tuple(SeedGroup(tuple(results)) for results in by_name.values())


@dataclass(frozen=True)
class ShiftReport:
    """The contents of a `report.json`: what every model and seed gave, and by which command and versions."""

    dataset: str
    command: str
    teka: str
    torch: str
    models: tuple[ModelResult, ...]
    hardware: str | None = None
    date: str | None = None
    mode: str | None = None
    finding: str | None = None

    @cached_property
    def groups(self) -> tuple[SeedGroup, ...]:
        """The models, each with its results over seeds."""
        return group_by_name(self.models)

    @property
    def axes(self) -> list[str]:
        """The axes along which some model was measured."""
        return [axis for axis in AXES if any(model.accuracy_by_shift[axis] for model in self.models)]

    @property
    def shifts(self) -> list[int]:
        """Every shift along either axis at which some model was measured, from the lowest to the highest."""
        return sorted({shift for model in self.models for axis in AXES for shift in model.accuracy_by_shift[axis]})

    @property
    def averaged(self) -> str:
        """What its numbers are averages over, in words."""
        return averaged([len(group.results) for group in self.groups])


def load_report(path: str | Path) -> ShiftReport:
    """Read `report.json` and check it; keys that it does not know are left alone."""
    content: dict[str, Any] = read_json(Path(path))
    where, models = f"{path}: report", content.get("models")
    if "models" in content and not (isinstance(models, list) and models):
        raise wrong_value(f"{where}.models", models, "a list of one model or more")
    known = [_known(ModelResult, model) for model in models or ()]
    for index, model in enumerate(known):
        if isinstance(model, dict):
            _check_shifts(f"{where}.models[{index}]", model)
    report = decode(ShiftReport, {**_known(ShiftReport, content), **({"models": known} if models else {})}, where)
    for key in ("dataset", "command", "teka", "torch"):
        _check_text(f"{where}.{key}", getattr(report, key))
    for index, model in enumerate(report.models):
        model.check(f"{where}.models[{index}]")
    group_by_name(report.models, f"{where}.models")
    return report


def _known(kind: type[Any], content: Any) -> Any:
    names = {field.name for field in dataclasses.fields(kind)}
    return {key: value for key, value in content.items() if key in names} if isinstance(content, Mapping) else content


def _check_shifts(where: str, model: Mapping[str, Any]) -> None:
    """Check that accuracies stand under both axes, by shifts in whole pixels."""
    for name in ("accuracy_by_shift", "interval_by_shift"):
        by_axis = model.get(name)
        if not isinstance(by_axis, dict):
            continue
        for axis in AXES:
            if axis not in by_axis:
                raise ValueError(f"{where}.{name}.{axis} is missing")
            for key in by_axis[axis] if isinstance(by_axis[axis], dict) else ():
                if not re.fullmatch(r"0|-?[1-9][0-9]*", key):
                    expected = "a shift in whole pixels as key, such as '-4'"
                    raise wrong_value(f"{where}.{name}.{axis}.{key}", key, expected)


def _check_text(where: str, value: str) -> None:
    if not value.strip():
        raise wrong_value(where, value, "a text")


def _check_share(where: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise wrong_value(where, value, "an accuracy from 0 to 1")
