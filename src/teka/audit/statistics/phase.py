"""Error by phase: does a model answer otherwise at shifts that are no multiples of its stride?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.images import Size
from teka.audit.measure.responses import Responses
from teka.audit.shifts import CheckedShift, CheckedShifts
from teka.audit.statistics.bootstrap import ImageAverage, ImageResamples, average
from teka.audit.statistics.estimate import MOST_RESAMPLES, BootstrapSettings, Estimate
from teka.audit.statistics.intervals import estimate_magnitudes, estimate_mean_share
from teka.audit.statistics.metrics import CURVES
from teka.checks import (
    MAX_SIZE,
    check_instance,
    check_name,
    check_sequence,
    check_sizes,
    check_stride,
    is_integer,
)
from teka.errors import wrong_argument, wrong_value

Strides = Sequence[int]
Members = Float[Tensor, "phases shifts"]
# Curves of which the values are told apart by phase.
PHASE_VALUES = ("error", "accuracy", "agreement", "overlap", "retrieval")
_NEARLY = (
    0.9  # strides that explain nearly as much as the best are multiples of what is sought, or it
)


@dataclass(frozen=True)
class PhaseTable:
    """Means of `PHASE_VALUES` over the shifts but zero of each phase, (dy mod stride, dx mod stride), in order."""

    stride: tuple[int, ...]
    phases: CheckedShifts
    num_shifts: tuple[int, ...]
    values: dict[str, tuple[Estimate, ...]]


@dataclass(frozen=True)
class StrideChoice:
    """Which stride explains how a number of `PHASE_VALUES` varies over the shifts, or None."""

    stride: int | None
    share: float  # of the variance over shifts that its phases explain, adjusted for their number
    p_value: float  # that phases of no candidate explain anything
    number: str
    shares: dict[int, float]  # of the candidates that could be tested


def error_by_phase(
    responses: Responses,
    stride: Size,
    *,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
) -> PhaseTable:
    """Means of error, accuracy and agreement over the shifts of each phase, (dy mod stride, dx mod stride).

    A model of stride r sees an image moved by a multiple of r on the same grid. The zero shift and those that are not
    complete are left out. The stride is one for all axes or one for each, and the other arguments are as of
    `summarize`.

    Raises:
        ValueError: A stride below 1, or not one for each axis; no shift to be sorted; or what `summarize` refuses.
    """
    check_instance("responses", responses, Responses)
    settings = BootstrapSettings(confidence, num_resamples, seed)
    complete = responses.take_complete()
    shifts = [complete.shifts[row] for row in complete.moved]
    strides = check_stride(stride, len(complete.shifts[0]))
    if not shifts:
        raise wrong_argument(
            "responses", "complete at the zero shift only", "other shifts, to be sorted by phase"
        )
    phases, members = sort_by_phase(shifts, strides)
    weights = members / members.sum(dim=1, keepdim=True)
    resamples = ImageResamples(complete.num_images, settings)
    values: dict[str, tuple[Estimate, ...]] = {}
    for name in PHASE_VALUES:
        table = CURVES[name].table(complete)
        if table is None:
            continue
        found = table[0][complete.moved].to(torch.float64)
        if table[1] is not None:
            by_phase = (
                average(found, resamples, table[1][complete.moved]).square_root().combine(weights)
            )
        else:
            by_phase = average(weights @ found, resamples)
        if CURVES[name].is_share:
            rows = zip(
                by_phase.values[:, None],
                by_phase.influence[:, None],
                by_phase.draws.T[..., None],
                strict=True,
            )
            values[name] = tuple(
                estimate_mean_share(ImageAverage(*row), confidence) for row in rows
            )
        else:
            values[name] = estimate_magnitudes(by_phase, resamples, confidence)
    return PhaseTable(strides, phases, tuple(int(count) for count in members.sum(dim=1)), values)


def sort_by_phase(
    shifts: Sequence[CheckedShift], strides: tuple[int, ...]
) -> tuple[CheckedShifts, Members]:
    """The phases (dy mod stride, dx mod stride) in ascending order; and 1 where a shift has a phase, else 0."""

    def phase(step: int | float, stride: int) -> int | float:
        # Fractions such as 0.1 and 1.1 have one phase, but for rounding.
        return step % stride if isinstance(step, int) else round(step % stride, 9) % stride

    of_shifts = [
        tuple(phase(step, stride) for step, stride in zip(shift, strides, strict=True))
        for shift in shifts
    ]
    phases = tuple(sorted(set(of_shifts)))
    members = torch.zeros(len(phases), len(shifts), dtype=torch.float64)
    for column, each in enumerate(of_shifts):
        members[phases.index(each), column] = 1.0
    return phases, members


def best_stride(
    responses: Responses,
    candidates: Strides,
    *,
    number: str = "error",
    num_permutations: int = 999,
    seed: int = 0,
) -> StrideChoice:
    """Find the stride, of candidates from 2, whose phases explain most of how a number varies over the shifts.

    The number is "error", "accuracy" or "agreement". Of what a trend with distance leaves over S shifts, the phases
    explain the share R², adjusted for the number k of phases that the trend of t terms leaves apart, 1 − (1 − R²) (S −
    t) / (S − t − k). Taken is the smallest candidate with 90 % of the largest share. The p-value is that of the largest
    share, when what the trend left is permuted over the shifts so many times (Freedman and Lane 1983).

    Raises:
        ValueError: A candidate below 2, or none; a number that the responses do not define; no permutation.
    """
    check_instance("responses", responses, Responses)
    expected = "strides of at least 2 pixels"
    candidates = check_sequence("candidates", candidates, expected)
    if not candidates or not all(
        is_integer(stride) and 2 <= stride <= MAX_SIZE for stride in candidates
    ):
        raise wrong_value("candidates", candidates, expected)
    check_sizes({"num_permutations": num_permutations}, most=MOST_RESAMPLES)
    check_sizes({"seed": seed}, least=0)
    check_name("number", number, PHASE_VALUES)
    complete = responses.take_complete()
    by_shift = CURVES[number].values(complete)
    if by_shift is None:
        raise wrong_value("number", number, "one that the responses define")
    values = by_shift[complete.moved]
    shifts = [complete.shifts[row] for row in complete.moved]
    nothing = StrideChoice(None, 0.0, 1.0, number, {})
    if len(shifts) < 2:
        return nothing
    steps = torch.tensor(shifts, dtype=torch.float64)
    scaled = steps / steps.abs().amax().clamp(min=1.0)
    trend = _basis(
        torch.cat(
            [torch.ones(len(steps), 1, dtype=torch.float64), scaled.abs(), scaled.square()], dim=1
        )
    )
    left = values - trend @ (trend.T @ values)
    # Rounding of the measured values, in float32, is no variation.
    if left.norm() <= 1e-6 * values.norm():
        return nothing
    generator = torch.Generator().manual_seed(int(seed))
    orders = torch.stack(
        [torch.randperm(len(left), generator=generator) for _ in range(num_permutations)]
    )
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
    stride = next(
        stride for stride, share in observed.items() if share >= _NEARLY * largest[0].item()
    )
    return StrideChoice(stride, observed[stride], p_value, number, observed)


def _basis(columns: Float[Tensor, "shifts columns"]) -> Float[Tensor, "shifts dimensions"]:
    """Orthonormal columns with the span of the given ones, which may depend on each other."""
    left, sizes, _ = torch.linalg.svd(columns, full_matrices=False)
    return left[:, sizes > 1e-9 * math.sqrt(len(columns))]
