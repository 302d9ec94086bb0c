"""Which stride explains how a number varies over the shifts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.measure.responses import Responses
from teka.audit.statistics.image_values import agreement, errors, moved_rows
from teka.audit.statistics.phases import PHASE_VALUES, sort_by_phase
from teka.errors import unknown_name, wrong_value

# Strides that explain nearly as much as the best are multiples of what is sought, or it.
_NEARLY = 0.9


@dataclass(frozen=True)
class StrideChoice:
    """Which stride explains how a number varies over the shifts.

    Args:
        stride: The stride, or None if no candidate could be tested or the number does not vary.
        share: The share of the variance over shifts that its phases explain, adjusted for their number.
        p_value: p-value that phases of none of the candidates explain anything.
        number: The number, of `PHASE_VALUES`.
        shares: The adjusted share of each candidate that could be tested.
    """

    stride: int | None
    share: float
    p_value: float
    number: str
    shares: dict[int, float]

    def to_dict(self) -> dict[str, object]:
        """The choice, ready for JSON, which has no whole numbers as keys."""
        return {**vars(self), "shares": [[stride, share] for stride, share in self.shares.items()]}

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "StrideChoice":
        """What `to_dict` wrote."""
        return cls(**{**content, "shares": dict(map(tuple, content["shares"]))})  # pyright: ignore


def best_stride(
    responses: Responses,
    candidates: Sequence[int],
    *,
    number: str = "error",
    num_permutations: int = 999,
    seed: int = 0,
) -> StrideChoice:
    """Find the stride whose phases explain most of how a number varies over the shifts.

    A trend with distance is taken out first, by least squares on |d| and d² along each axis, since far shifts are worse
    for most models, whatever their stride. Of what is left, with variance V over S shifts, the phases of stride r
    explain the share R²; it is adjusted for the number k of phases that the trend leaves apart,
    1 − (1 − R²) (S − t) / (S − t − k), where t counts the terms of the trend. Multiples of the true stride explain as
    much: taken is the smallest candidate with 90 % of the largest adjusted share. The p-value is that of the largest
    share over all candidates, when what the trend left is permuted over the shifts.

    Shifts near each other tend to have near values also without a stride; a small p-value says that values are not
    without order, and the share says how much of it is the stride's.

    Source: Freedman and Lane, "A nonstochastic interpretation of reported significance levels", Journal of Business &
    Economic Statistics 1 (1983), 292–298.

    Args:
        responses: What the model answered; shifts that are not complete and the zero shift are left out.
        candidates: Strides from 2. One with fewer than two shifts to a phase, on average, cannot be tested.
        number: "error", "accuracy" or "agreement".
        num_permutations: Number of random permutations.
        seed: Their seed.

    Raises:
        ValueError: A candidate below 2, or none; an unknown number, or one that the responses do not define; fewer than
            one permutation.
    """
    if not candidates or min(candidates) < 2:
        raise wrong_value("candidates", candidates, "strides of at least 2")
    if num_permutations < 1:
        raise wrong_value("num_permutations", num_permutations, "at least 1")
    complete = responses.take_complete()
    moved = moved_rows(complete)
    values = _by_shift(complete, number)[moved]
    shifts = [complete.shifts[row] for row in moved]
    nothing = StrideChoice(None, 0.0, 1.0, number, {})
    if len(shifts) < 2:
        return nothing
    trend = _trend(shifts)
    left = values - trend @ (trend.T @ values)
    # Rounding of the measured values, in float32, is no variation.
    if left.norm() <= 1e-6 * values.norm():
        return nothing
    generator = torch.Generator().manual_seed(seed)
    orders = torch.stack([torch.randperm(len(left), generator=generator) for _ in range(num_permutations)])
    permuted = left[orders].T
    columns = torch.cat([left[:, None], permuted - trend @ (trend.T @ permuted)], dim=1)
    total = columns.square().sum(dim=0)
    shares = {}
    for stride in sorted(set(candidates)):
        _, members = sort_by_phase(shifts, (stride,) * len(shifts[0]))
        phases = _basis(members.T - trend @ (trend.T @ members.T))
        freedom = len(shifts) - trend.shape[1] - phases.shape[1]
        if 2 * len(members) <= len(shifts) and phases.shape[1] and freedom > 0:
            unexplained = (1 - (phases.T @ columns).square().sum(dim=0) / total).clamp(min=0)
            shares[stride] = 1 - unexplained * (len(shifts) - trend.shape[1]) / freedom
    if not shares:
        return nothing
    largest = torch.stack(list(shares.values())).amax(dim=0)
    p_value = (1 + int((largest[1:] >= largest[0] - 1e-12).sum())) / (1 + num_permutations)
    observed = {stride: share[0].item() for stride, share in shares.items()}
    if largest[0] <= 0:
        return StrideChoice(None, 0.0, p_value, number, observed)
    stride = next(stride for stride, share in observed.items() if share >= _NEARLY * largest[0].item())
    return StrideChoice(stride, observed[stride], p_value, number, observed)


def _by_shift(complete: Responses, number: str) -> Float[Tensor, " shifts"]:
    if number not in PHASE_VALUES:
        raise unknown_name("number", number, PHASE_VALUES)
    if number == "error":
        squares = errors(complete)
        values = None if squares is None else (squares[0].sum(dim=1) / squares[1].sum(dim=1)).sqrt()
    elif number == "accuracy":
        values = None if complete.correct is None else complete.correct.to(torch.float64).mean(dim=1)
    else:
        values = None if complete.predictions is None else agreement(complete).to(torch.float64).mean(dim=1)
    if values is None:
        raise wrong_value("number", number, "one that the responses define")
    return values


def _trend(shifts: Sequence[tuple[int | float, ...]]) -> Float[Tensor, "shifts terms"]:
    """Orthonormal columns that span 1, and |d| and d² along each axis."""
    steps = torch.tensor(shifts, dtype=torch.float64)
    scaled = steps / steps.abs().amax().clamp(min=1.0)
    return _basis(torch.cat([torch.ones(len(steps), 1, dtype=torch.float64), scaled.abs(), scaled.square()], dim=1))


def _basis(columns: Float[Tensor, "shifts columns"]) -> Float[Tensor, "shifts dimensions"]:
    """Orthonormal columns with the span of the given ones, which may depend on each other."""
    left, sizes, _ = torch.linalg.svd(columns, full_matrices=False)
    return left[:, sizes > 1e-9 * math.sqrt(len(columns))]
