"""A saved `report.json`: accuracies under shifts of models and their seeds, read and checked."""

import dataclasses
from collections.abc import Sequence
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
    epochs: int | float
    seconds: float
    accuracy_by_shift: dict[str, dict[int, float]]
    worst_shift_accuracy: float
    minimum_accuracy: float | None = None
    interval_by_shift: dict[str, dict[int, tuple[float, float]]] | None = None
    test_images: int | None = None
    sampling: str | None = None  # the stem that makes a token of several pixels; None for a token a pixel

    @property
    def lowest(self) -> float:
        """Lowest accuracy at any shift."""
        if self.minimum_accuracy is not None:
            return self.minimum_accuracy
        return min(accuracy for along in self.accuracy_by_shift.values() for accuracy in along.values())

    def check(self, where: str) -> None:
        """Check that its texts and numbers are what they should be; an error names the file and the key."""
        _check_texts(where, self, ("name", "position", "kernel", "backend"))
        for key in ("parameters", "seed", "epochs", "seconds", "test_images"):
            if not 0 <= (getattr(self, key) or 0) < float("inf"):
                raise wrong_value(f"{where}.{key}", getattr(self, key), "a finite number of at least 0")
        shares = {key: getattr(self, key) for key in ("worst_shift_accuracy", "minimum_accuracy")}
        for axis in AXES:
            if axis not in self.accuracy_by_shift:
                raise ValueError(f"{where}.accuracy_by_shift.{axis} is missing")
            along, intervals = self.accuracy_by_shift[axis], (self.interval_by_shift or {}).get(axis)
            shares |= {f"accuracy_by_shift.{axis}.{shift}": value for shift, value in along.items()}
            if self.interval_by_shift is not None and (intervals is None or sorted(intervals) != sorted(along)):
                expected = f"the shifts of the accuracies, {sorted(along)}"
                raise wrong_value(f"{where}.interval_by_shift.{axis}", sorted(intervals or {}), expected)
            for shift, (low, high) in (intervals or {}).items():
                if not 0 <= low <= high <= 1:
                    expected = "[low, high] from 0 to 1 with low ≤ high"
                    raise wrong_value(f"{where}.interval_by_shift.{axis}.{shift}", [low, high], expected)
        for key, share in shares.items():
            if share is not None and not 0 <= share <= 1:
                raise wrong_value(f"{where}.{key}", share, "an accuracy from 0 to 1")
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

    def mean(self, number: str) -> float:
        """A number of the results, the mean over seeds."""
        return fmean(getattr(result, number) for result in self.results)

    def accuracy(self, axis: str) -> dict[int, Estimate]:
        """Accuracy at each shift along an axis, the mean over seeds; of one seed the interval is that of its images."""
        first, (result, *others) = self.first.accuracy_by_shift[axis], self.results
        if result.interval_by_shift is not None and not others:
            intervals = result.interval_by_shift[axis]
            return {shift: Estimate(first[shift], *intervals[shift], CONFIDENCE, WILSON) for shift in sorted(first)}
        return {
            shift: mean_over_seeds([one.accuracy_by_shift[axis][shift] for one in self.results], CONFIDENCE)
            for shift in sorted(first)
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

    def check(self, where: str) -> None:
        """Check that the results are of one model, once for each seed, and at the same shifts."""
        has = f"{where}: {self.first.name!r} has"
        for key in ("position", "kernel", "backend", "parameters"):
            values = sorted({str(getattr(result, key)) for result in self.results})
            if len(values) > 1:
                raise ValueError(f"{has} {key} {' and '.join(values)}, expected one for each name")
        seeds = [result.seed for result in self.results]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{has} seeds {seeds}, expected each seed once for each name")
        for axis in AXES:
            if len({frozenset(result.accuracy_by_shift[axis]) for result in self.results}) > 1:
                raise ValueError(f"{has} different shifts along {axis}, expected the same for every seed")


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
        """The models, each with its results over seeds, in order of appearance."""
        by_name: dict[str, list[ModelResult]] = {}
        for model in self.models:
            by_name.setdefault(model.name, []).append(model)
        return tuple(SeedGroup(tuple(results)) for results in by_name.values())

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
    where, content = f"{path}: report", _known(ShiftReport, read_json(Path(path)))
    if isinstance(content.get("models"), list):
        content["models"] = [_known(ModelResult, model) for model in content["models"]]
    report = decode(ShiftReport, content, where)
    if not report.models:
        raise wrong_value(f"{where}.models", [], "a list of one model or more")
    _check_texts(where, report, ("dataset", "command", "teka", "torch"))
    for index, model in enumerate(report.models):
        model.check(f"{where}.models[{index}]")
    for group in report.groups:
        group.check(f"{where}.models")
    return report


def _known(kind: type[Any], content: Any) -> Any:
    names = {field.name for field in dataclasses.fields(kind)}
    return {key: value for key, value in content.items() if key in names} if isinstance(content, dict) else content


def _check_texts(where: str, content: object, keys: Sequence[str]) -> None:
    for key in keys:
        if not getattr(content, key).strip():
            raise wrong_value(f"{where}.{key}", getattr(content, key), "a text")
