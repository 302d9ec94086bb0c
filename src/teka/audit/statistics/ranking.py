"""Pairwise comparisons of several models, and the best model for each metric."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from teka.audit.measure.responses import Responses, take_common
from teka.audit.statistics.comparison import (
    COMPARED_NUMBERS,
    Comparison,
    Difference,
    compare_responses,
)
from teka.audit.statistics.metrics import NUMBERS


@dataclass(frozen=True)
class Pair:
    """Comparison of two models, given by their indices, as first minus second."""

    first: int
    second: int
    comparison: Comparison


@dataclass(frozen=True)
class Lead:
    """Best model for one metric, and its advantage over each other model.

    The p-values are adjusted with Holm's method over all pairs of models. They are valid although
    the best model was chosen on the same images.

    Args:
        number: Name of the metric.
        best: Index of the best model.
        over: Advantage over each other model, by the model's index, from the smallest to the
            largest advantage.
    """

    number: str
    best: int
    over: dict[int, Difference]

    @property
    def tied(self) -> list[int]:
        """Indices of models that are not significantly worse than the best."""
        return [
            model
            for model, difference in self.over.items()
            if difference.p_value > 1 - difference.confidence
        ]

    @property
    def beaten(self) -> list[int]:
        """Indices of models that are significantly worse, from the closest to the farthest."""
        return [model for model in self.over if model not in self.tied]


def compare_every_two(
    responses: Sequence[Responses], *, noise: Sequence[float] | None = None, **options: Any
) -> tuple[Pair, ...]:
    """Compare every pair of models with `compare_responses`.

    Args:
        responses: Outputs of each model on the same images and shifts.
        noise: Relative difference of each model's outputs for equal images. By default 0.
        **options: Options of `compare_responses`, such as `confidence` and `seed`.
    """
    noise = noise or [0.0] * len(responses)
    pairs = []
    for first, second in itertools.combinations(range(len(responses)), 2):
        level = max(noise[first], noise[second])
        both = responses[first], responses[second]
        pairs.append(Pair(first, second, compare_responses(*both, noise=level, **options)))
    return tuple(pairs)


def pairs_by_mode(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Return the comparisons of each mode, by the name of the mode."""
    by_mode: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_mode.setdefault(pair.comparison.movement.mode, []).append(pair)
    return by_mode


def find_leads(pairs: Sequence[Pair]) -> list[Lead]:
    """Find the best model for each metric, in the order of `NUMBERS`.

    Among equally good models, the first one is the best. A model for which a metric is not defined
    is left out for this metric.
    """
    leads = []
    for number in COMPARED_NUMBERS:
        differences = {
            (pair.first, pair.second): pair.comparison.numbers[number]
            for pair in pairs
            if number in pair.comparison.numbers
        }
        models = sorted({model for indices in differences for model in indices})
        if not differences or len(differences) < math.comb(len(models), 2):
            continue
        adjusted = holm_adjust([each.p_value for each in differences.values()])
        better: dict[tuple[int, int], Difference] = {}
        for ((first, second), unadjusted), p_value in zip(
            differences.items(), adjusted, strict=True
        ):
            forward = replace(unadjusted, p_value=p_value)
            backward = replace(
                forward, value=-forward.value, lower=-forward.upper, upper=-forward.lower
            )
            # Higher is better for shares. Lower is better for all other metrics.
            is_share = NUMBERS[number].is_share
            better[first, second] = forward if is_share else backward
            better[second, first] = backward if is_share else forward
        best = max(
            models,
            key=lambda model: sum(better[model, other].value for other in models if other != model),
        )
        over = {other: better[best, other] for other in models if other != best}
        leads.append(Lead(number, best, dict(sorted(over.items(), key=lambda item: item[1].value))))
    return leads


def holm_adjust(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple tests by Holm's method.

    The i-th of m p-values in ascending order becomes max_{j ≤ i} min(1, (m − j + 1) p_(j)).
    Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
    Statistics 6 (1979), 65–70.
    """
    order = np.argsort(p_values)
    scaled = np.array(p_values)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.maximum.accumulate(scaled).clip(max=1.0)
    return adjusted.tolist()


def disagreement(responses: Sequence[Responses]) -> Bool[Tensor, "shifts images"]:
    """Return a mask of the shifts and images for which classifiers disagree.

    With labels, models disagree if some are correct and some are wrong. Without labels, they
    disagree if they do not all predict the same class.
    """
    common = take_common(responses)
    outcomes = [each.predictions if each.correct is None else each.correct for each in common]
    answers = torch.stack([outcome for outcome in outcomes if outcome is not None])
    return (answers != answers[0]).any(dim=0)
