"""Metrics by phase, which show whether errors depend on the shift modulo the model's stride."""

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
# Curves that are averaged for each phase.
PHASE_VALUES = ("error", "accuracy", "agreement", "overlap", "retrieval")
# A stride that explains this fraction of the best share is the stride sought or a multiple of it.
_NEARLY = 0.9


@dataclass(frozen=True)
class PhaseTable:
    """Means of `PHASE_VALUES` over the nonzero shifts of each phase.

    The phase of a shift (dy, dx) is (dy mod stride, dx mod stride).

    Args:
        stride: Stride along each axis.
        phases: Phases in ascending order.
        num_shifts: Number of shifts of each phase.
        values: Estimates for each phase, by the name of the metric.
    """

    stride: tuple[int, ...]
    phases: CheckedShifts
    num_shifts: tuple[int, ...]
    values: dict[str, tuple[Estimate, ...]]


@dataclass(frozen=True)
class StrideChoice:
    """Stride whose phases best explain how a metric varies over the shifts.

    Args:
        stride: Stride in pixels, or None if no candidate explains the variation.
        share: Share of the variance over shifts that the phases explain (adjusted R²).
        p_value: p-value of the hypothesis that the phases of no candidate explain anything.
        number: Name of the metric.
        shares: Share of each candidate that could be tested.
    """

    stride: int | None
    share: float
    p_value: float
    number: str
    shares: dict[int, float]


def error_by_phase(
    responses: Responses,
    stride: Size,
    *,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
) -> PhaseTable:
    """Average error, accuracy and agreement over the shifts of each phase.

    The phase of a shift (dy, dx) is (dy mod stride, dx mod stride). A model with total stride r
    sees an image that is shifted by a multiple of r on the same sampling grid, so its errors often
    depend on the phase. The zero shift and shifts that lack some images are left out.

    >>> import torch
    >>> from torch import nn
    >>> from teka.audit import Movement, error_by_phase, measure_responses, square_shifts
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    >>> images = torch.rand(20, 1, 8, 8)

    >>> responses = measure_responses(model, images, square_shifts(2), Movement("circular"))
    >>> error_by_phase(responses, 2).phases
    ((0, 0), (0, 1), (1, 0), (1, 1))

    Args:
        responses: Outputs of a model at all shifts.
        stride: Stride in pixels for all axes, or one for each axis.
        confidence: Confidence level of the intervals.
        num_resamples: Number of bootstrap resamples.
        seed: Seed of the resamples.

    Raises:
        ValueError: A stride is below 1 or their number is not that of the axes, there is no
            nonzero shift, or `summarize` rejects an argument.
    """
    check_instance("responses", responses, Responses)
    settings = BootstrapSettings(confidence, num_resamples, seed)
    complete = responses.take_complete()
    shifts = [complete.shifts[row] for row in complete.moved]
    strides = check_stride(stride, len(complete.shifts[0]))
    if not shifts:
        raise wrong_argument(
            "responses", "complete at the zero shift only", "complete at other shifts too"
        )
    phases, members = sort_by_phase(shifts, strides)
    weights = members / members.sum(dim=1, keepdim=True)
    resamples = ImageResamples(complete.num_images, settings)
    values: dict[str, tuple[Estimate, ...]] = {}
    for name in PHASE_VALUES:
        table = CURVES[name].table(complete)
        if table is None:
            continue
        moved_values = table[0][complete.moved].to(torch.float64)
        if table[1] is not None:
            norms = table[1][complete.moved]
            by_phase = average(moved_values, resamples, norms).square_root().combine(weights)
        else:
            by_phase = average(weights @ moved_values, resamples)
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
    """Return the phases of shifts in ascending order, and which shift belongs to which phase.

    Returns:
        Phases (dy mod stride, dx mod stride), and a tensor of shape (phases, shifts) that is 1
        where a shift has a phase, else 0.
    """

    def phase(step: int | float, stride: int) -> int | float:
        # Rounding gives fractions such as 0.1 and 1.1 the same phase.
        return step % stride if isinstance(step, int) else round(step % stride, 9) % stride

    shift_phases = [
        tuple(phase(step, stride) for step, stride in zip(shift, strides, strict=True))
        for shift in shifts
    ]
    phases = tuple(sorted(set(shift_phases)))
    members = torch.zeros(len(phases), len(shifts), dtype=torch.float64)
    for column, shift_phase in enumerate(shift_phases):
        members[phases.index(shift_phase), column] = 1.0
    return phases, members


def best_stride(
    responses: Responses,
    candidates: Strides,
    *,
    number: str = "error",
    num_permutations: int = 999,
    seed: int = 0,
) -> StrideChoice:
    """Find the stride whose phases explain most of the variation of a metric over the shifts.

    A smooth trend with the distance is removed first. The phases of a stride then explain the
    share R² of the remaining variance, adjusted for their number:
    1 − (1 − R²) (S − t) / (S − t − k), with S shifts, t terms of the trend, and k phases that are
    independent of the trend. The result is the smallest candidate with at least 90 % of the
    largest share. The p-value of the largest share comes from permuting the residuals of the trend
    over the shifts. Source: Freedman and Lane, "A nonstochastic interpretation of reported
    significance levels", 1983.

    >>> import torch
    >>> from torch import nn
    >>> from teka.audit import Movement, best_stride, measure_responses, square_shifts
    >>> patches = nn.Conv2d(1, 4, 2, stride=2)
    >>> model = nn.Sequential(patches, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    >>> images = torch.rand(20, 1, 8, 8)
    >>> responses = measure_responses(model, images, square_shifts(3), Movement("circular"))
    >>> best_stride(responses, [2, 3, 4]).stride
    2

    Args:
        responses: Outputs of a model at all shifts.
        candidates: Strides to test, each at least 2 pixels.
        number: Name of the metric, such as "error", "accuracy" or "agreement".
        num_permutations: Number of permutations for the p-value.
        seed: Seed of the permutations.

    Raises:
        ValueError: `candidates` is empty or contains a stride below 2, the responses do not define
            the metric, or `num_permutations` is below 1.
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
        raise wrong_value("number", number, "a metric that the responses define")
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
    # A smaller residual is the rounding error of values measured in float32.
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
    """Return orthonormal columns with the span of columns that may be linearly dependent."""
    left, sizes, _ = torch.linalg.svd(columns, full_matrices=False)
    return left[:, sizes > 1e-9 * math.sqrt(len(columns))]
