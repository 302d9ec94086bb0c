"""The results of one model over its seeds: means, spread, and where the lowest accuracy lies."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from teka.training.report.model_result import AXES, ModelResult


class Lowest(NamedTuple):
    """The lowest accuracy of a model and the shift where it lies."""

    accuracy: float
    axis: str
    shift: int


@dataclass(frozen=True)
class SeedGroup:
    """The results of one model, one for each seed, at least one; made by `group_by_name`."""

    results: tuple[ModelResult, ...]

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.results[0].name

    @property
    def position(self) -> str:
        """How the model knows positions."""
        return self.results[0].position

    @property
    def kernel(self) -> str:
        """Content kernel of the model."""
        return self.results[0].kernel

    @property
    def backend(self) -> str:
        """How the model's attention was evaluated."""
        return self.results[0].backend

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return self.results[0].parameters

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the results."""
        return tuple(result.seed for result in self.results)

    @property
    def seconds(self) -> float:
        """Training time of one run, the mean over seeds."""
        return fmean(result.seconds for result in self.results)

    @property
    def worst_shift_accuracy(self) -> float:
        """Share of test images right at every shift, the mean over seeds."""
        return fmean(result.worst_shift_accuracy for result in self.results)

    def accuracy(self, axis: str) -> dict[int, float]:
        """Accuracy at each shift along one axis, the mean over seeds, from the lowest shift to the highest."""
        shifts = sorted(self.results[0].accuracy_by_shift[axis])
        return {shift: fmean(result.accuracy_by_shift[axis][shift] for result in self.results) for shift in shifts}

    def band(self, axis: str) -> dict[int, tuple[float, float]]:
        """Lowest and highest accuracy over seeds at each shift along one axis.

        Of a single seed it is the interval, and empty if that is not known.
        """
        if len(self.results) == 1:
            intervals = self.results[0].interval_by_shift
            return dict(sorted(intervals[axis].items())) if intervals else {}
        spread = {}
        for shift in self.accuracy(axis):
            over_seeds = [result.accuracy_by_shift[axis][shift] for result in self.results]
            spread[shift] = (min(over_seeds), max(over_seeds))
        return spread

    @property
    def lowest(self) -> Lowest:
        """Lowest accuracy over both axes, of the means over seeds, and the shift nearest to none where it lies."""
        found = [Lowest(value, axis, shift) for axis in AXES for shift, value in self.accuracy(axis).items()]
        return min(found, key=lambda at: (at.accuracy, abs(at.shift)))

    @property
    def unshifted(self) -> float | None:
        """Accuracy at no shift, the mean over seeds, where it was measured."""
        at_zero = [self.accuracy(axis)[0] for axis in AXES if 0 in self.accuracy(axis)]
        return at_zero[0] if at_zero else None


def group_by_name(models: Sequence[ModelResult], argument: str = "models") -> tuple[SeedGroup, ...]:
    """Gather the results of each model over its seeds, in the order of first appearance.

    Args:
        models: Results, of which those that share a name are the same model.
        argument: What to call the results in an error.

    Raises:
        ValueError: Results of one name differ in more than the seed, repeat a seed, or stand at different shifts.
    """
    by_name: dict[str, list[ModelResult]] = {}
    for model in models:
        by_name.setdefault(model.name, []).append(model)
    for name, results in by_name.items():
        first = results[0]
        for key in ("position", "kernel", "backend", "parameters"):
            values = sorted({str(getattr(result, key)) for result in results})
            if len(values) > 1:
                raise ValueError(f"{argument}: {name!r} has {key} {' and '.join(values)}, expected one for each name")
        if len({result.seed for result in results}) < len(results):
            seeds = [result.seed for result in results]
            raise ValueError(f"{argument}: {name!r} has seeds {seeds}, expected each seed once for each name")
        for axis in AXES:
            if any(set(result.accuracy_by_shift[axis]) != set(first.accuracy_by_shift[axis]) for result in results):
                raise ValueError(
                    f"{argument}: {name!r} has different shifts along {axis}, expected the same for every seed"
                )
    return tuple(SeedGroup(tuple(results)) for results in by_name.values())
