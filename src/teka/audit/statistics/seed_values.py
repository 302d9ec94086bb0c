"""The numbers of one seed, and what they would be with other images."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.measure.responses import Responses
from teka.audit.statistics.image_average import ImageAverage, average, average_ratio, square_root
from teka.audit.statistics.image_values import agreement, errors, moved_rows, right_at_every_shift
from teka.audit.statistics.resampling import ImageResamples


@dataclass(frozen=True, eq=False)
class SeedValues:
    """A number of one seed, or one at every shift, and what other images would have made of it.

    Args:
        values: The values, (rows,): a row for each shift, or a single one.
        draws: The same of each resample of the images, (R, rows).
    """

    values: Float[Tensor, " rows"]
    draws: Float[Tensor, "resamples rows"]


def seed_values(responses: Responses, resamples: ImageResamples) -> tuple[dict[str, SeedValues], dict[str, SeedValues]]:
    """Curves and numbers of one seed, named as in `Metrics`, with their draws.

    Args:
        responses: What the model of this seed answered, complete at every shift.
        resamples: Resamples of the images, the same for all seeds.

    Returns:
        The curves, with as many rows as shifts; and the numbers, with one row.
    """
    curves: dict[str, SeedValues] = {}
    numbers: dict[str, SeedValues] = {}
    moved = moved_rows(responses)

    def mean(values: Tensor) -> SeedValues:
        return _values(average(values.to(torch.float64), resamples))

    if responses.correct is not None:
        curves["accuracy"] = mean(responses.correct)
        numbers["accuracy"] = mean(responses.correct[responses.zero][None])
        numbers["minimum_accuracy"] = _extreme(curves["accuracy"], torch.amin)
        numbers["worst_shift_accuracy"] = mean(right_at_every_shift(responses)[None])
    if responses.predictions is not None:
        agrees = agreement(responses)
        curves["agreement"] = mean(agrees)
        if moved:
            shares = agrees[moved].to(torch.float64).mean(dim=0)[None]
            numbers["consistency"] = mean(shares)
            numbers["flip_rate"] = mean(1 - shares)
            right = responses.correct[responses.zero] if responses.correct is not None else None
            if right is not None and bool(right.any()):
                weights = right.to(torch.float64)[None]
                numbers["consistency_when_right"] = _values(average_ratio(shares * weights, weights, resamples))
    for name, table in (
        ("loss", responses.loss),
        ("probability_change", responses.probability_change),
        ("divergence", responses.divergence),
    ):
        if table is not None:
            curves[name] = mean(table)
            if moved and name != "loss":
                numbers[name] = mean(table[moved].to(torch.float64).mean(dim=0)[None])
    squares = errors(responses)
    if squares is not None:
        by_shift = square_root(average_ratio(*squares, resamples))
        curves["error"] = _values(by_shift)
        if moved:
            weights = torch.zeros(1, len(responses.shifts), dtype=torch.float64)
            weights[0, moved] = 1 / len(moved)
            numbers["mean_error"] = _values(by_shift.combine(weights))
            numbers["maximum_error"] = _extreme(curves["error"], torch.amax)
    return curves, numbers


def _values(average: ImageAverage) -> SeedValues:
    return SeedValues(average.values, average.draws)


def _extreme(curve: SeedValues, extreme: Callable[..., Tensor]) -> SeedValues:
    return SeedValues(extreme(curve.values, dim=0, keepdim=True), extreme(curve.draws, dim=1, keepdim=True))
