"""Sets of shifts: along each axis, over the full square, and the check that a set fits a canvas."""

import itertools
import math
from collections.abc import Iterable, Sequence
from operator import index
from typing import SupportsFloat, SupportsIndex

from teka.errors import wrong_value
from teka.grid import Grid

MOST_STEPS = 500  # of a set of shifts along an axis, in each direction: a million shifts of an image

# An int, Python's or NumPy's, along the last axis; or one for each axis.
Shift = SupportsIndex | Sequence[SupportsIndex]
# The same with fractions, for the sub-pixel modes.
SubpixelShift = SupportsFloat | SupportsIndex | Sequence[SupportsFloat | SupportsIndex]


def axis_shifts(max_shift: int, num_axes: int = 2) -> tuple[tuple[int, ...], ...]:
    """All shifts −m … m along each axis separately, the zero shift once: 2 m n + 1 shifts.

    Args:
        max_shift: Largest shift m, in cells.
        num_axes: Number of axes n; of an image, axis 0 is dy (downwards) and axis 1 is dx (to the right).

    Raises:
        ValueError: A negative `max_shift` or a `num_axes` below 1.
    """
    steps = _steps(max_shift, num_axes)
    along_axes = ((0,) * axis + (step,) + (0,) * (num_axes - axis - 1) for axis in range(num_axes) for step in steps)
    return tuple(dict.fromkeys(along_axes))


def square_shifts(max_shift: int, num_axes: int = 2) -> tuple[tuple[int, ...], ...]:
    """All shifts of −m … m along every axis at once, in row-major order: (2 m + 1)^n shifts.

    Args:
        max_shift: Largest shift m along an axis, in cells.
        num_axes: Number of axes n.

    Raises:
        ValueError: A negative `max_shift` or a `num_axes` below 1.
    """
    return tuple(itertools.product(_steps(max_shift, num_axes), repeat=num_axes))


def check_shift(grid: Grid, shift: Shift) -> tuple[int, ...]:
    """The shift as one int for each axis of the grid; a single int moves along the last axis.

    Raises:
        ValueError: Not one whole number for each axis, or further than the grid is long.
    """
    steps = grid.check_shift([index(step) for step in shift] if isinstance(shift, Sequence) else index(shift))
    _check_reach(grid, shift, steps)
    return steps


def check_shifts(grid: Grid, shifts: Iterable[Shift]) -> tuple[tuple[int, ...], ...]:
    """The set of shifts in the order given, each as one int for each axis of the grid; repeats count once.

    Raises:
        ValueError: No shift at all, or one that `check_shift` refuses.
    """
    checked = tuple(dict.fromkeys(check_shift(grid, shift) for shift in shifts))
    if not checked:
        raise wrong_value("shifts", shifts, "at least one shift")
    return checked


def check_subpixel_shift(grid: Grid, shift: SubpixelShift) -> tuple[int | float, ...]:
    """The shift as one number for each axis of the grid, whole ones as ints; a single number moves along the last axis.

    Raises:
        ValueError: Not one finite number for each axis, or further than the grid is long.
    """
    given = shift if isinstance(shift, Sequence) else (0,) * (grid.num_axes - 1) + (shift,)
    values = [float(step) if isinstance(step, SupportsFloat | SupportsIndex) else math.nan for step in given]
    if len(values) != grid.num_axes or not all(map(math.isfinite, values)):
        raise wrong_value("shift", shift, f"a finite number for each of the {grid.num_axes} axes")
    steps = tuple(int(value) if value.is_integer() else value for value in values)
    _check_reach(grid, shift, steps)
    return steps


def check_subpixel_shifts(grid: Grid, shifts: Iterable[SubpixelShift]) -> tuple[tuple[int | float, ...], ...]:
    """The set of shifts in the order given, each as one number for each axis of the grid; repeats count once.

    Raises:
        ValueError: No shift at all, or one that `check_subpixel_shift` refuses.
    """
    checked = tuple(dict.fromkeys(check_subpixel_shift(grid, shift) for shift in shifts))
    if not checked:
        raise wrong_value("shifts", shifts, "at least one shift")
    return checked


def _check_reach(grid: Grid, shift: object, steps: Sequence[int | float]) -> None:
    if any(abs(step) > side for step, side in zip(steps, grid.shape, strict=True)):
        raise wrong_value("shift", shift, f"at most the size of the canvas along each axis, {grid.shape}")


def _steps(max_shift: int, num_axes: int) -> range:
    if max_shift < 0:
        raise wrong_value("max_shift", max_shift, "a whole number of at least 0")
    if max_shift > MOST_STEPS:
        raise wrong_value("max_shift", max_shift, f"at most {MOST_STEPS} steps along an axis")
    if num_axes < 1:
        raise wrong_value("num_axes", num_axes, "a whole number of at least 1")
    return range(-max_shift, max_shift + 1)
