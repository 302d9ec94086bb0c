"""The order in which shifts are measured: coarse first, so that a budget that ends leaves a coarse set."""

import itertools
import math
from collections.abc import Sequence


def shift_order(shifts: Sequence[Sequence[int | float]]) -> tuple[int, ...]:
    """Indices of shifts from coarse to fine.

    The zero shift comes first. Along every axis the smallest step, zero and the largest are of level 0, and each
    further level halves the gaps that the levels before have left. A shift has the level of its finest step; within a
    level the farthest come first. Of the square −8 … 8 the first 9 shifts are the square of steps of 8, the first 25
    that of steps of 4, the first 81 that of steps of 2.

    Args:
        shifts: The set of shifts, one step for each axis.

    Returns:
        A permutation of the indices of `shifts`.
    """
    levels = [_levels({0, *steps}) for steps in zip(*shifts, strict=True)]

    def rank(index: int) -> tuple[bool, int, float, int]:
        shift = shifts[index]
        level = max(of_step[step] for of_step, step in zip(levels, shift, strict=True))
        return any(shift), level, -math.hypot(*shift), index

    return tuple(sorted(range(len(shifts)), key=rank))


def _levels(steps: set[int | float]) -> dict[int | float, int]:
    values = sorted(steps)
    anchors = sorted({0, values.index(0), len(values) - 1})
    levels = {values[anchor]: 0 for anchor in anchors}
    gaps = list(itertools.pairwise(anchors))
    level = 0
    while gaps:
        level += 1
        halves = []
        for left, right in gaps:
            if right - left > 1:
                middle = (left + right) // 2
                levels[values[middle]] = level
                halves += [(left, middle), (middle, right)]
        gaps = halves
    return levels
