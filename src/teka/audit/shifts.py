"""Sets of permutations, and of shifts: along axes, over the square, checked to fit a canvas, ordered coarse to fine."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import SupportsFloat, SupportsIndex

import torch

from teka.checks import check_sizes
from teka.errors import wrong_value

MOST_STEPS = 500  # of a set of shifts along an axis, in each direction
MOST_SHIFTS = 100_000  # of a set
MOST_AXES = 8  # of images

# An int, Python's or NumPy's, along the last axis; or one for each axis.
Shift = SupportsIndex | Sequence[SupportsIndex]
# The same with fractions, for the sub-pixel modes.
SubpixelShift = SupportsFloat | SupportsIndex | Sequence[SupportsFloat | SupportsIndex]
CheckedShift = tuple[int | float, ...]  # one step for each axis, as `check_shifts` gives them
CheckedShifts = tuple[CheckedShift, ...]
SubpixelShifts = Iterable[SubpixelShift]


def axis_shifts(max_shift: int, num_axes: int = 2) -> tuple[tuple[int, ...], ...]:
    """All shifts −m … m along each axis separately, the zero shift once: 2 m n + 1 shifts; of images, dy then dx."""
    steps = _steps(max_shift, num_axes)
    along_axes = ((0,) * axis + (step,) + (0,) * (num_axes - axis - 1) for axis in range(num_axes) for step in steps)
    return tuple(dict.fromkeys(along_axes))


def square_shifts(max_shift: int, num_axes: int = 2, *, argument: str = "max_shift") -> tuple[tuple[int, ...], ...]:
    """All shifts of −m … m along every axis at once, in row-major order: (2 m + 1)^n shifts; as `axis_shifts`."""
    steps = _steps(max_shift, num_axes, argument)
    if len(steps) ** num_axes > MOST_SHIFTS:
        expected = f"one with at most {MOST_SHIFTS:,} shifts, not (2 · {max_shift} + 1)^{num_axes}"
        raise wrong_value(argument, max_shift, expected)
    return tuple(itertools.product(steps, repeat=num_axes))


def _steps(max_shift: int, num_axes: int, argument: str = "max_shift") -> range:
    check_sizes({argument: max_shift}, least=0, most=MOST_STEPS)
    check_sizes({"num_axes": num_axes}, most=MOST_AXES)
    return range(-max_shift, max_shift + 1)


def random_permutations(num_tokens: int, number: int = 8, *, seed: int = 0) -> tuple[tuple[int, ...], ...]:
    """So many permutations of two tokens or more, drawn uniformly from all but the one that moves nothing."""
    check_sizes({"num_tokens": num_tokens}, least=2)
    check_sizes({"number": number})
    generator = torch.Generator().manual_seed(seed)
    drawn: list[tuple[int, ...]] = []
    while len(drawn) < number:
        order = tuple(torch.randperm(num_tokens, generator=generator).tolist())
        if order != tuple(range(num_tokens)):
            drawn.append(order)
    return tuple(drawn)


def check_shifts(sizes: Sequence[int], shifts: Iterable[SubpixelShift]) -> CheckedShifts:
    """The set of shifts in the order given, one number for each axis, whole ones as ints; repeats count once."""
    checked: dict[CheckedShift, None] = {}
    for shift in shifts:
        given = shift if isinstance(shift, Sequence) else (0,) * (len(sizes) - 1) + (shift,)
        try:
            values = [float(step) for step in given]
        except (TypeError, ValueError):
            values = [math.nan]
        if len(values) != len(sizes) or not all(map(math.isfinite, values)):
            raise wrong_value("shift", shift, f"a finite number for each of the {len(sizes)} axes")
        if any(abs(value) > side for value, side in zip(values, sizes, strict=True)):
            raise wrong_value("shift", shift, f"at most the size of the canvas along each axis, {tuple(sizes)}")
        checked[tuple(int(value) if value.is_integer() else value for value in values)] = None
    if not checked:
        raise wrong_value("shifts", shifts, "at least one shift")
    return tuple(checked)


def shift_order(shifts: Sequence[Sequence[int | float]]) -> tuple[int, ...]:
    """Indices of shifts from coarse to fine, so that a budget that ends leaves a coarse set; zero comes first.

    Along every axis the smallest step, zero and the largest are of level 0, and each further level halves the gaps that
    are left. A shift has the level of its finest step; within a level the farthest come first.
    """
    levels = [_levels({0, *steps}) for steps in zip(*shifts, strict=True)]
    ranks = []
    for index, shift in enumerate(shifts):
        level = max([of_step[step] for of_step, step in zip(levels, shift, strict=True)])
        ranks.append((any(shift), level, -math.hypot(*shift), index))
    return tuple([index for *_, index in sorted(ranks)])


def _levels(steps: set[int | float]) -> dict[int | float, int]:
    values = sorted(steps)
    anchors = sorted({0, values.index(0), len(values) - 1})
    levels = {values[anchor]: 0 for anchor in anchors}
    gaps, level = list(itertools.pairwise(anchors)), 0
    while gaps := [(left, right) for left, right in gaps if right - left > 1]:
        level += 1
        levels |= {values[(left + right) // 2]: level for left, right in gaps}
        gaps = [half for left, right in gaps for half in itertools.pairwise((left, (left + right) // 2, right))]
    return levels
