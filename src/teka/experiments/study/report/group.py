"""The cells of a study that differ in the seed alone: means over seeds and their intervals."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from teka.experiments.study.cells import CellResult
from teka.experiments.study.report.estimate import Estimate, estimate

Quantity = Literal[
    "accuracy",
    "minimum_accuracy",
    "worst_shift_accuracy",
    "unshifted_accuracy",
    "process_seconds",
    "forward_flops",
    "training_flops",
]


class CurvePoint(NamedTuple):
    """A point of the learning curve over seeds: step, mean CPU seconds up to it, mean and extreme accuracies."""

    step: int
    process_seconds: float
    accuracy: Estimate
    lowest: float
    highest: float


@dataclass(frozen=True)
class StudyGroup:
    """The cells at one combination of levels, one for each seed.

    Args:
        labels: The level of every factor.
        results: The finished cells, by seed.
        failed: Seeds of the cells that diverged.
        seeds: Number of seeds of the study, so that missing cells can be counted.
    """

    labels: Mapping[str, str]
    results: tuple[CellResult, ...]
    failed: tuple[int, ...]
    seeds: int

    @property
    def missing(self) -> int:
        """Seeds of the study without a cell here."""
        return self.seeds - len(self.results) - len(self.failed)

    def estimate(self, quantity: Quantity) -> Estimate | None:
        """Mean and interval over seeds of one measured quantity; None where nothing was measured."""
        values = [value for result in self.results if (value := getattr(result, quantity)) is not None]
        return estimate(values) if values else None

    def largest(self, quantity: Literal["equivariance_error", "noise_floor"]) -> float | None:
        """The largest value over seeds; None where nothing was measured."""
        return max((value for result in self.results if (value := getattr(result, quantity)) is not None), default=None)

    @cached_property
    def curve(self) -> list[CurvePoint]:
        """The learning curve over seeds, at every step that some seed was measured at and all reach."""
        points = []
        for step in sorted({step for result in self.results for step in result.along("step")}):
            accuracies = [value for result in self.results if (value := result.at("accuracy", step)) is not None]
            seconds = [value for result in self.results if (value := result.at("process_seconds", step)) is not None]
            if len(accuracies) == len(self.results):
                mean_seconds = sum(seconds) / len(seconds)
                points.append(CurvePoint(step, mean_seconds, estimate(accuracies), min(accuracies), max(accuracies)))
        return points
