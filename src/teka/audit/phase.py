"""Error by phase: does a model answer otherwise at shifts that are no multiples of its stride?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from teka.audit.measure.responses import Responses
from teka.audit.statistics.estimate import BootstrapSettings, Estimate
from teka.audit.statistics.image_average import ImageAverage, average, average_ratio, square_root
from teka.audit.statistics.image_values import agreement, errors, moved_rows
from teka.audit.statistics.intervals import estimate_magnitude, estimate_mean_share
from teka.audit.statistics.phases import PHASE_VALUES, sort_by_phase
from teka.audit.statistics.resampling import ImageResamples
from teka.audit.statistics.stride_choice import StrideChoice, best_stride
from teka.errors import wrong_value

__all__ = ["PHASE_VALUES", "PhaseTable", "StrideChoice", "best_stride", "error_by_phase"]


@dataclass(frozen=True)
class PhaseTable:
    """Means over the shifts of each phase, (dy mod stride, dx mod stride), without the zero shift.

    Args:
        stride: The stride along each axis.
        phases: The phases of the shifts, in ascending order.
        num_shifts: Number of shifts of each phase.
        values: Of `PHASE_VALUES`, those that are defined: the mean over the shifts of each phase.
    """

    stride: tuple[int, ...]
    phases: tuple[tuple[int | float, ...], ...]
    num_shifts: tuple[int, ...]
    values: dict[str, tuple[Estimate, ...]]

    def to_dict(self) -> dict[str, object]:
        """The table, ready for JSON."""
        return {
            "stride": list(self.stride),
            "phases": [list(phase) for phase in self.phases],
            "num_shifts": list(self.num_shifts),
            "values": {name: [number.to_dict() for number in row] for name, row in self.values.items()},
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "PhaseTable":
        """What `to_dict` wrote."""
        stride, phases, num_shifts, values = (content[name] for name in ("stride", "phases", "num_shifts", "values"))
        return cls(
            tuple(stride),  # pyright: ignore[reportArgumentType]
            tuple(map(tuple, phases)),  # pyright: ignore[reportArgumentType]
            tuple(num_shifts),  # pyright: ignore[reportArgumentType]
            {name: tuple(map(Estimate.from_dict, row)) for name, row in values.items()},  # pyright: ignore
        )


def error_by_phase(
    responses: Responses,
    stride: int | Sequence[int],
    *,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
) -> PhaseTable:
    """Means of error, accuracy and agreement over the shifts of each phase, with intervals by bootstrap over images.

    A model of stride r, such as one of r × r patches, sees an image moved by a multiple of r on the same grid, and any
    other shift on a grid that lies otherwise over the content: what it gets wrong depends on (dy mod r, dx mod r).

    Args:
        responses: What the model answered. Shifts that are not complete are left out, and so is the zero shift, at
            which error and agreement are known.
        stride: The stride r, one for all axes or one for each.
        confidence: Of every interval, between 0 and 1.
        num_resamples: Resamples of the bootstrap.
        seed: Their seed.

    Raises:
        ValueError: A stride below 1, or not one for each axis; no shift but zero that is complete; a confidence outside
            (0, 1); or too few resamples for it.
    """
    settings = BootstrapSettings(confidence, num_resamples, seed)
    complete = responses.take_complete()
    moved = moved_rows(complete)
    shifts = [complete.shifts[row] for row in moved]
    strides = _check_stride(stride, len(complete.shifts[0]))
    if not shifts:
        raise wrong_value("responses", "complete at the zero shift only", "other shifts, to be sorted by phase")
    phases, members = sort_by_phase(shifts, strides)
    weights = members / members.sum(dim=1, keepdim=True)
    resamples = ImageResamples(complete.num_images, settings)
    values: dict[str, tuple[Estimate, ...]] = {}
    squares = errors(complete)
    if squares is not None:
        by_phase = square_root(average_ratio(squares[0][moved], squares[1][moved], resamples)).combine(weights)
        values["error"] = tuple(estimate_magnitude(row, confidence) for row in _rows(by_phase))
    shares = {
        "accuracy": complete.correct,
        "agreement": agreement(complete) if complete.predictions is not None else None,
    }
    for name, table in shares.items():
        if table is not None:
            by_phase = average(weights @ table[moved].to(torch.float64), resamples)
            values[name] = tuple(estimate_mean_share(row, confidence) for row in _rows(by_phase))
    return PhaseTable(strides, phases, tuple(int(count) for count in members.sum(dim=1)), values)


def _check_stride(stride: int | Sequence[int], num_axes: int) -> tuple[int, ...]:
    strides = (stride,) * num_axes if isinstance(stride, int) else tuple(stride)
    if len(strides) != num_axes or min(strides) < 1:
        raise wrong_value("stride", stride, f"a whole number of at least 1, or one for each of {num_axes} axes")
    return strides


def _rows(average: ImageAverage) -> list[ImageAverage]:
    rows = range(len(average.values))
    return [
        ImageAverage(average.values[row, None], average.influence[row, None], average.draws[:, row, None])
        for row in rows
    ]
