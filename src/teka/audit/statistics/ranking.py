"""Every two of several models on the same images, and which is best at a number as far as that can be told."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from teka.audit.measure.responses import Responses, take_common
from teka.audit.statistics.comparison import (
    COMPARED_NUMBERS,
    Comparison,
    Difference,
    compare_responses,
    holm_adjust,
)
from teka.audit.statistics.metrics import NUMBERS


@dataclass(frozen=True)
class Pair:
    """Two models, by their places in a list, and the first less the second."""

    first: int
    second: int
    comparison: Comparison


@dataclass(frozen=True)
class Lead:
    """The model that is best at a number, and by how much, at least 0, it is better than each of the others.

    p-values are adjusted by Holm over all pairs of models, and so hold though the best was chosen by the same images.
    """

    number: str
    best: int
    over: dict[int, Difference]  # by place, from the nearest to the farthest

    @property
    def tied(self) -> list[int]:
        """Those that the best is not told apart from: at a confidence c, p > 1 − c."""
        return [model for model, one in self.over.items() if one.p_value > 1 - one.confidence]

    @property
    def beaten(self) -> list[int]:
        """The others, from the nearest to the farthest."""
        return [model for model in self.over if model not in self.tied]


def compare_every_two(
    responses: Sequence[Responses],
    *,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
) -> tuple[Pair, ...]:
    """Compare every model with every later one, as `compare_responses` does and with its arguments."""
    how: Any = {"confidence": confidence, "num_resamples": num_resamples, "seed": seed}
    places = itertools.combinations(range(len(responses)), 2)
    return tuple(
        Pair(one, other, compare_responses(responses[one], responses[other], **how))
        for one, other in places
    )


def find_leads(pairs: Sequence[Pair]) -> list[Lead]:
    """Return which model is best at each number, in the order of `NUMBERS`; of equal ones the first.

    Models that lack a number are left out for that number.
    """
    leads = []
    for number in COMPARED_NUMBERS:
        found = {(pair.first, pair.second): pair.comparison.numbers.get(number) for pair in pairs}
        known = {both: difference for both, difference in found.items() if difference is not None}
        models = sorted({model for both in known for model in both})
        if not known or len(known) < math.comb(len(models), 2):
            continue
        adjusted = holm_adjust(
            torch.tensor([one.p_value for one in known.values()], dtype=torch.float64)
        ).tolist()
        better: dict[tuple[int, int], Difference] = {}
        for ((first, second), one), p_value in zip(known.items(), adjusted, strict=True):
            one = replace(one, p_value=p_value)
            other = replace(one, value=-one.value, lower=-one.upper, upper=-one.lower)
            # Shares are the better the higher, all else the lower.
            ahead = (one, other) if NUMBERS[number].is_share else (other, one)
            better |= {(first, second): ahead[0], (second, first): ahead[1]}
        best = max(
            models,
            key=lambda one: sum(better[one, other].value for other in models if other != one),
        )
        over = {other: better[best, other] for other in models if other != best}
        leads.append(Lead(number, best, dict(sorted(over.items(), key=lambda item: item[1].value))))
    return leads


def disagreement(responses: Sequence[Responses]) -> Bool[Tensor, "shifts images"]:
    """Where several classifiers are not all right or all wrong; without labels, where they do not all answer alike."""
    common = take_common(responses)
    found = [each.predictions if each.correct is None else each.correct for each in common]
    answers = torch.stack([one for one in found if one is not None])
    return (answers != answers[0]).any(dim=0)
