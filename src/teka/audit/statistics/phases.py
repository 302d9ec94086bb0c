"""Shifts sorted by phase."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

PHASE_VALUES = ("error", "accuracy", "agreement")
"""Numbers of a shift that are told apart by phase."""


def sort_by_phase(
    shifts: Sequence[tuple[int | float, ...]], strides: tuple[int, ...]
) -> tuple[tuple[tuple[int | float, ...], ...], Float[Tensor, "phases shifts"]]:
    """The phases (dy mod stride, dx mod stride) of shifts, and which shift has which.

    Args:
        shifts: Shifts, with one step for each axis.
        strides: The stride along each axis.

    Returns:
        The phases in ascending order; and 1 where a shift has a phase, else 0.
    """

    def phase(step: int | float, stride: int) -> int | float:
        # Fractions such as 0.1 and 1.1 have one phase, but for rounding.
        return step % stride if isinstance(step, int) else round(step % stride, 9) % stride

    of_shifts = [tuple(phase(step, stride) for step, stride in zip(shift, strides, strict=True)) for shift in shifts]
    phases = tuple(sorted(set(of_shifts)))
    members = torch.zeros(len(phases), len(shifts), dtype=torch.float64)
    for column, each in enumerate(of_shifts):
        members[phases.index(each), column] = 1.0
    return phases, members
