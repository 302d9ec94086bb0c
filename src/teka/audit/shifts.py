"""Sets of shifts and of random permutations: functions that create, check and sort them."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import SupportsFloat, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from teka.checks import check_dense_tensor, check_iterable, check_number, check_sizes
from teka.errors import wrong_argument, wrong_value

MAX_STEPS = 500  # along an axis, in each direction
MAX_SHIFTS = 100_000  # of a set
MAX_AXES = 8  # spatial axes
MAX_TOKENS = 10_000_000  # total length of the permutations of a set

# Integer of Python or NumPy for the last axis, or one integer for each axis.
Shift = SupportsIndex | Sequence[SupportsIndex]
# The same with fractions of a pixel, for the modes that interpolate.
SubpixelShift = SupportsFloat | SupportsIndex | Sequence[SupportsFloat | SupportsIndex]
CheckedShift = tuple[int | float, ...]  # one step for each axis, as returned by `parse_shifts`
CheckedShifts = tuple[CheckedShift, ...]
WholeShifts = tuple[tuple[int, ...], ...]
SubpixelShifts = Iterable[SubpixelShift]


def axis_shifts(max_shift: int, num_axes: int = 2) -> WholeShifts:
    """Return all shifts of at most m pixels along a single axis, including the zero shift.

    The shifts along the first axis come first. For n axes, there are 2 m n + 1 shifts.

    >>> from teka.audit import axis_shifts
    >>> axis_shifts(1)
    ((-1, 0), (0, 0), (1, 0), (0, -1), (0, 1))

    Args:
        max_shift: Largest shift m in pixels.
        num_axes: Number n of spatial axes.
    """
    steps = _step_range(max_shift, num_axes)
    axes = range(num_axes)
    shifts = [tuple(step * (axis == other) for other in axes) for axis in axes for step in steps]
    return tuple(dict.fromkeys(shifts))


def square_shifts(max_shift: int, num_axes: int = 2) -> WholeShifts:
    """Return all shifts of at most m pixels along each axis, including the zero shift.

    For n axes, there are (2 m + 1)^n shifts, in row-major order.

    >>> from teka.audit import square_shifts
    >>> square_shifts(1)[:4]
    ((-1, -1), (-1, 0), (-1, 1), (0, -1))

    Args:
        max_shift: Largest shift m in pixels.
        num_axes: Number n of spatial axes.

    Raises:
        ValueError: There are too many shifts.
    """
    steps = _step_range(max_shift, num_axes)
    if len(steps) ** num_axes > MAX_SHIFTS:
        expected = f"small enough for at most {MAX_SHIFTS:,} shifts"
        hint = f"There are (2 · {max_shift} + 1)^{num_axes} shifts."
        raise wrong_value("max_shift", max_shift, expected, hint)
    return tuple(itertools.product(steps, repeat=num_axes))


def _step_range(max_shift: int, num_axes: int) -> range:
    check_sizes({"max_shift": max_shift}, least=0, most=MAX_STEPS)
    check_sizes({"num_axes": num_axes}, most=MAX_AXES)
    return range(-max_shift, max_shift + 1)


def random_permutations(num_tokens: int, number: int = 8, *, seed: int = 0) -> WholeShifts:
    """Draw random permutations uniformly from all permutations except the identity.

    >>> from teka.audit import random_permutations
    >>> [sorted(permutation) for permutation in random_permutations(3, 2)]
    [[0, 1, 2], [0, 1, 2]]

    Args:
        num_tokens: Length of each permutation, at least 2.
        number: Number of permutations.
        seed: Seed of the random generator.

    Raises:
        ValueError: `num_tokens` is below 2, or `number` is below 1.
    """
    check_sizes({"num_tokens": num_tokens}, least=2, most=MAX_TOKENS)
    check_sizes({"number": number}, most=max(1, MAX_TOKENS // num_tokens))
    check_sizes({"seed": seed}, least=0)
    generator = torch.Generator().manual_seed(int(seed))
    drawn = []
    while len(drawn) < number:
        order = tuple(torch.randperm(num_tokens, generator=generator).tolist())
        if order != tuple(range(num_tokens)):
            drawn.append(order)
    return tuple(drawn)


def shifts_to_floats(argument: str, shifts: object) -> list[list[float] | float]:
    """Check that shifts consist of finite numbers, and convert these to floats.

    The result is a list with an entry for each shift: a single number, or a list with one number
    for each axis.

    Args:
        argument: Name of the shifts in error messages.
        shifts: List, tensor or array of shifts. A shift is a number or has one number per axis.

    Raises:
        ValueError: The shifts are not finite numbers, or there are too many.
    """
    expected = "a list of shifts, each a finite number or a list with one for each axis"
    if isinstance(shifts, Tensor):
        check_dense_tensor(argument, shifts)
    rows = []
    for shift in check_iterable(argument, shifts, expected):
        steps = shift.tolist() if isinstance(shift, (Tensor, np.ndarray)) else shift
        is_row = isinstance(steps, Sequence)
        for step in steps if is_row else [steps]:
            check_number(argument, step, expected)
        rows.append(list(map(float, steps)) if is_row else float(steps))
    return rows


def shifts_to_tuples(
    argument: str, shifts: Iterable[list[float] | float], num_axes: int
) -> CheckedShifts:
    """Convert shifts to tuples with one step for each axis, and remove duplicates.

    A single number is a step along the last axis. Whole steps become integers.

    Raises:
        ValueError: A shift has a wrong number of steps. The message names the argument.
    """
    rows = [
        shift if isinstance(shift, list) else [0.0] * (num_axes - 1) + [shift] for shift in shifts
    ]
    steps = [tuple(int(step) if step.is_integer() else step for step in row) for row in rows]
    for row in steps:
        if len(row) != num_axes:
            raise wrong_value(argument, row, f"a finite number for each of the {num_axes} axes")
    return tuple(dict.fromkeys(steps))


def parse_shifts(
    sizes: Sequence[int], shifts: Iterable[SubpixelShift], argument: str = "shifts"
) -> CheckedShifts:
    """Check that no shift is larger than the images, and convert the shifts to tuples.

    Args:
        sizes: Spatial sizes of the images or their canvas.
        shifts: Shifts with one step for each axis, or a number for a step along the last axis.
        argument: Name of the shifts in error messages.

    Returns:
        Each shift once, in the given order, as a tuple with one step for each axis. Whole steps
        are of type int.

    Raises:
        ValueError: There are no shifts, or a shift has a wrong length or is larger than the canvas.
    """
    checked = shifts_to_tuples(argument, shifts_to_floats(argument, shifts), len(sizes))
    for steps in checked:
        if any(abs(step) > side for step, side in zip(steps, sizes, strict=True)):
            expected = f"at most the size of the canvas along each axis, {tuple(sizes)}"
            raise wrong_value(argument, steps, expected)
    if not checked:
        raise wrong_argument(argument, "empty", "at least one shift")
    return checked


def shift_order(shifts: Sequence[Sequence[int | float]]) -> tuple[int, ...]:
    """Return the indices of shifts in the order in which they are measured, from coarse to fine.

    In this order, a measurement covers the whole range of shifts even if it runs out of time. For
    example, the shifts −2 … 2 are measured in the order 0, −2, 2, −1, 1. The zero shift comes
    first. It is followed by the multiples of the largest power of two, then by those of the next
    smaller power, and so on. Among these, longer shifts come first.

    The powers of two refer to the positions of the steps in the sorted list of all steps along an
    axis, so that steps of half a pixel are ordered in the same way.
    """
    axes = [sorted({0, *steps}) for steps in zip(*shifts, strict=True)]
    ranks = []
    for index, shift in enumerate(shifts):
        numbers = [
            steps.index(step) - steps.index(0) for steps, step in zip(axes, shift, strict=True)
        ]
        shared = math.gcd(*numbers)
        ranks.append((-(shared & -shared) if shared else -math.inf, -math.hypot(*shift), index))
    return tuple(index for *_, index in sorted(ranks))
