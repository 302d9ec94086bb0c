"""Findings about attention layers: dataclasses, reports as text and JSON, and recommendations."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from textwrap import wrap
from typing import TypeVar

import torch

from teka.codec import encode
from teka.functional.attention import EstimatorReport

LINE_LENGTH = 110
FLOAT16 = torch.finfo(torch.float16)
# Error of an estimate below which the report recommends nothing.
TARGET_ERROR = 0.1
# Mean of (‖q‖² + ‖k‖²)/√d from which the variance of positive features, its exponential, is large.
LARGE_EXPONENT = 4.0
# Unevenness of the weights below which the output is practically the mean of the values.
EVEN = 0.02
LARGE_GAIN = 10.0
LARGE_SHARE = 0.1  # Share of queries with a gain above 1.
FLOAT16_HEADROOM = 10.0
EQUIVARIANCE_TOLERANCE = 1e-8  # Relative error under a shift that float64 rounding can explain.
T = TypeVar("T")


@dataclass(frozen=True)
class EstimatorFindings:
    """Errors of random features against the kernels that they estimate, in float64."""

    truth: str  # the estimated kernels, "kernel × relative kernel"
    num_features: int  # number of random features
    is_biased: (
        bool  # True for draws of one fixed norm, whose error does not vanish with their number
    )
    total: EstimatorReport  # errors over all heads
    by_head: tuple[EstimatorReport, ...]  # errors of each head


@dataclass(frozen=True)
class SizeFindings:
    """Sizes of outputs, in float64. The gain of a query i, Σ_j |w_ij| / D_i, bounds its output."""

    bound: float | None  # guaranteed bound of |out| / max |v|, or None if there is none
    times_the_values: float  # largest |out| / max |v| of a sample and head
    largest_gain: float  # largest gain
    share_above_1: float  # share of the queries whose gain is above 1
    largest_output: float  # largest |out|


@dataclass(frozen=True)
class GroupFindings:
    """Findings about the heads that one pair of kernels computes."""

    name: str  # "kernel × relative kernel"
    kernel: str  # name of the content kernel
    relative: str | None  # name of the relative kernel
    first_head: int  # index of the first head
    num_heads: int  # number of heads
    backend: str  # name of the backend
    size: SizeFindings  # sizes of the outputs
    estimator: EstimatorFindings | None  # errors of random features, None without any
    variation: tuple[float, ...]  # ‖output − mean of V‖ / ‖V − mean of V‖ of each head
    # variation times √(mean number of keys of a query), about the weights' coefficient of variation
    unevenness: tuple[float, ...]
    rounding: dict[str, float]  # relative difference of each other backend from the dense one
    query_norm: tuple[float, ...] | None  # mean ‖q‖ of each head, None if queries are not used
    key_norm: tuple[float, ...] | None  # mean ‖k‖ of each head, None if keys are not used
    num_still_waves: int = 0  # waves whose frequency a periodic grid rounds to 0
    num_waves: int = 0  # waves whose frequency a periodic grid rounds

    @property
    def collapsed(self) -> bool:
        """True if the random features of any head give the mean of the values, unlike the truth."""
        return self.estimator is not None and any(
            report.collapsed for report in self.estimator.by_head
        )


@dataclass(frozen=True)
class ShiftFindings:
    """Changes of the output under shifts."""

    how: str  # how the tokens were moved
    by_shift: dict[tuple[float, ...], float]  # relative error of each shift, in the layer's dtype
    noise_floor: float  # relative difference of two calls with the same input
    without_rounding: float  # relative error at the worst shift in float64

    @property
    def maximum(self) -> float:
        """Largest error over the shifts."""
        return max(self.by_shift.values())

    @property
    def worst_shift(self) -> tuple[float, ...]:
        """The shift with the largest error."""
        return max(self.by_shift, key=self.by_shift.__getitem__)


@dataclass(frozen=True)
class Diagnosis:
    """Findings about one attention layer. `str` returns a report."""

    dtype: str  # dtype of the layer
    num_samples: int  # number of samples
    num_tokens: int  # number of tokens of a sample
    measured: str  # the part of the tokens that the findings about heads come from
    groups: tuple[GroupFindings, ...]  # findings about heads
    largest: dict[str, float]  # largest absolute value of each tensor in the layer's dtype
    shift: ShiftFindings | None  # findings about shifts, None if no shift is a symmetry
    advice: tuple[str, ...]  # recommendations, empty if there is no problem

    @property
    def collapsed(self) -> bool:
        """True if the random features of any head give the mean of the values."""
        return any(group.collapsed for group in self.groups)

    @property
    def float16_headroom(self) -> float:
        """Factor by which all tensors could grow in float16. Below 1, float16 overflows."""
        return float16_headroom(self.largest)

    def to_dict(self) -> dict[str, object]:
        """Return the findings as plain JSON."""
        result = encode(self) | {
            "collapsed": self.collapsed,
            "float16_headroom": self.float16_headroom,
        }
        for group, encoded in zip(self.groups, result["groups"], strict=True):
            encoded["collapsed"] = group.collapsed
            if group.estimator is not None:
                encoded["estimator"] |= encoded["estimator"].pop("total")
        if self.shift is not None:
            by_shift = self.shift.by_shift
            result["shift"] |= {
                "shifts": list(map(list, by_shift)),
                "errors": list(by_shift.values()),
                "maximum": self.shift.maximum,
            }
            del result["shift"]["by_shift"]
        return result

    def __str__(self) -> str:
        samples = "1 sample" if self.num_samples == 1 else f"{self.num_samples:,} samples"
        lines = [f"{samples} of {self.num_tokens:,} tokens, {self.dtype}; heads {self.measured}"]
        for group in self.groups:
            lines += ["", *_group_lines(group)]
        largest = ", ".join(f"{name} {number:.3g}" for name, number in self.largest.items())
        lines += ["", f"largest numbers: {largest};"]
        lines += [f"  float16 has room for {self.float16_headroom:.3g} times as much"]
        if self.shift is None:
            lines += ["", "shifts: not measured, because no shift is a symmetry here"]
        else:
            worst = ", ".join(f"{step:g}" for step in self.shift.worst_shift)
            lines += [
                "",
                f"shifts ({self.shift.how}): the output changes by {self.shift.maximum:.1e}, most "
                f"at ({worst});",
                f"  {self.shift.without_rounding:.1e} in float64; noise floor "
                f"{self.shift.noise_floor:.1e}",
            ]
        lines += ["", "what to do"]
        for sentence in self.advice or ("Nothing: all is well.",):
            lines += wrap(sentence, LINE_LENGTH, initial_indent="  - ", subsequent_indent="    ")
        return "\n".join(lines)


class LayerReports(dict[str, T]):
    """Reports of the attention layers of a model by name. `str` joins them."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped: dict[str, str] = {}  # reasons by the names of layers without a report

    def __str__(self) -> str:
        parts = [f"{name}\n{report}" for name, report in self.items()]
        parts += [f"{name}\nskipped: {reason}" for name, reason in self.skipped.items()]
        return "\n\n".join(parts)


def float16_headroom(largest: dict[str, float]) -> float:
    """Return the largest float16 over the largest number."""
    return FLOAT16.max / max(*largest.values(), FLOAT16.tiny)


def _group_lines(group: GroupFindings) -> list[str]:
    last = group.first_head + group.num_heads - 1
    heads = f"head {last}" if group.num_heads == 1 else f"heads {group.first_head} to {last}"
    lines = [f"{group.name}, {heads}, computed by the {group.backend} backend"]
    columns = {"variation": group.variation}
    if group.query_norm is not None:
        columns["‖q‖"] = group.query_norm
    if group.key_norm is not None:
        columns["‖k‖"] = group.key_norm
    if group.estimator is not None:
        total, by_head = group.estimator.total, group.estimator.by_head
        lines += [
            f"  {group.estimator.num_features} random features for {group.estimator.truth}: the "
            f"output errs by {total.error:.2g} of its size,",
            f"  where the mean of the values would err by {total.error_of_mean:.2g}",
        ]
        columns["error"] = tuple(report.error for report in by_head)
        columns["mean's error"] = tuple(report.error_of_mean for report in by_head)
        columns["spread"] = tuple(report.spread for report in by_head)
    lines.append("  " + "".join(f"{name:>14}" for name in ("head", *columns)))
    for head, numbers in enumerate(zip(*columns.values(), strict=True), start=group.first_head):
        lines.append(f"  {head:>14}" + "".join(f"{number:>14.3g}" for number in numbers))
    size = group.size
    bound = "nothing bounds them"
    if size.bound is not None:
        bound = f"at most {size.bound:.3g} times whatever the tokens are"
    lines += [
        f"  outputs are up to {size.times_the_values:.3g} times as large as the largest value; "
        f"{bound}",
        "  gain, a query's weights in absolute value over its denominator: up to "
        f"{size.largest_gain:.3g}, above 1 for {100 * size.share_above_1:.0f} % of the queries",
    ]
    for name, difference in group.rounding.items():
        lines.append(f"  the {name} backend differs from the dense one by {difference:.1e}")
    return lines


def advise(
    groups: tuple[GroupFindings, ...],
    largest: dict[str, float],
    shift: ShiftFindings | None,
    *,
    dtype: torch.dtype,
    num_tokens: int,
    dim_head: int,
) -> tuple[str, ...]:
    """Return recommendations, none if there is no problem."""
    sentences: list[str] = []
    has_bounds = True
    for group in groups:
        if group.estimator is not None:
            sentences += _about_estimator(
                group, group.estimator, num_tokens=num_tokens, dim_head=dim_head
            )
        about_size = list(_about_size(group))
        has_bounds = has_bounds and not about_size
        sentences += [*about_size, *_about_weights(group, dtype)]
    sentences += _about_headroom(largest, has_bounds=has_bounds)
    if shift is not None:
        is_joint = any(group.relative == "rotation_joint" for group in groups)
        sentences += _about_shift(shift, dtype, is_joint=is_joint)
    return tuple(sentences)


def features_for(error: float, num_features: int, target: float = TARGET_ERROR) -> int:
    """Return the number of features for a target error, if the error falls as 1/√m."""
    return math.ceil(num_features * (error / target) ** 2)


def bounded_instead(relative: str | None) -> str:
    """Return options of a layer whose outputs are bounded, to replace those of an unbounded one."""
    if relative == "rotary":
        return (
            "rotary_normalizer='nonnegative', or 'mixed' (the default) with a kernel without "
            "negative weights"
        )
    return "kernel='squared_relu' or 'positive'"


def _about_estimator(
    group: GroupFindings, estimator: EstimatorFindings, *, num_tokens: int, dim_head: int
) -> Iterator[str]:
    total = estimator.total
    if total.error <= TARGET_ERROR and not group.collapsed:
        return
    if group.collapsed:
        heads = _heads(group, (report.collapsed for report in estimator.by_head))
        yield (
            f"{group.name} has collapsed in {heads}: the output is the mean of the values, "
            "whatever the tokens are."
        )
    summary = f"{group.name} errs by {100 * total.error:.0f} %"
    if group.relative == "clipped_features":
        yield f"{summary}; relative='clipped' is the same without random features, exact and cheaper."
        return
    num_needed = features_for(total.error, estimator.num_features)
    comparison = ""
    if total.error > total.error_of_mean:
        comparison = ", more than predicting the mean of the values would"
    yield (
        f"{summary} with {estimator.num_features} features{comparison}. The error falls with the "
        f"root of their number: 10 % takes {num_needed:,} or more (num_features)."
    )
    if num_needed > num_tokens:
        yield (
            "That is more features than there are tokens: kernel='softmax' is exact and costs less "
            f"at {num_tokens:,}."
        )
    if estimator.is_biased:
        yield (
            "Draws of fixed norm underestimate the softmax kernel, however many there are; "
            "projection='orthogonal' has no such bias."
        )
    if group.query_norm is not None and group.key_norm is not None:
        query, key = (sum(norms) / len(norms) for norms in (group.query_norm, group.key_norm))
        if (query**2 + key**2) / math.sqrt(dim_head) > LARGE_EXPONENT:
            yield (
                f"Queries and keys are long (mean norms {query:.3g} and {key:.3g}), and the error "
                "grows as the exponential of their squares: normalize them, or scale them down."
            )
    yield (
        "Kernels without draws: 'squared_relu' needs only as many features as a head has "
        "dimensions, and 'taylor2' is near softmax where queries and keys are small."
    )


def _about_size(group: GroupFindings) -> Iterator[str]:
    size = group.size
    bound = 1.0 if size.bound is None else size.bound
    is_large = size.largest_gain > LARGE_GAIN or size.share_above_1 > LARGE_SHARE
    if size.largest_gain > 1.01 * bound and is_large:
        yield (
            f"The denominator of {group.name} does not bound its weights: outputs are up to "
            f"{size.times_the_values:.3g} times as large as the largest value here, gains up to "
            f"{size.largest_gain:.3g}, and there is no limit for other tokens. Take "
            f"{bounded_instead(group.relative)}, with which outputs are bounded."
        )


def _about_headroom(largest: dict[str, float], *, has_bounds: bool) -> Iterator[str]:
    headroom = float16_headroom(largest)
    if headroom >= FLOAT16_HEADROOM:
        return
    name = max(largest, key=largest.__getitem__)
    consequence = f"leave room for {headroom:.2g} times as much only"
    if headroom < 1:
        consequence = "are infinite there"
    remedy = "normalize the tokens, or make the weights of that projection smaller"
    if name == "heads' outputs":
        remedy = "make the values smaller"
    if "outputs" in name and not has_bounds:
        remedy = "bound the weights, as above"
    yield (
        f"float16 ends at {FLOAT16.max:,.0f}, and {name} of {largest[name]:.3g} {consequence}: "
        f"compute in bfloat16, or {remedy}."
    )


def _about_weights(group: GroupFindings, dtype: torch.dtype) -> Iterator[str]:
    is_even = [unevenness < EVEN for unevenness in group.unevenness]
    if any(is_even) and not group.collapsed:
        reason = (
            "the weights are all but equal; if they still are after training, scale queries and "
            "keys up"
        )
        if group.kernel == "constant" and group.relative is None:
            reason = "the constant kernel without a relative kernel can give nothing else"
        heads = _heads(group, is_even)
        yield f"The output of {group.name} is the mean of the values in {heads}: {reason}."
    for name, difference in group.rounding.items():
        if difference > math.sqrt(torch.finfo(dtype).eps):
            other = ", or kernel='positive'" if group.kernel == "trigonometric" else ""
            yield (
                f"The {name} backend differs from the dense one by {difference:.1e} for "
                f"{group.name}, because sums of weights come near 0. Use float64 or "
                f"backend='dense'{other}."
            )
    if group.num_still_waves:
        yield (
            f"{group.num_still_waves} of the {group.num_waves} waves of {group.name} are longer "
            "than this torus and are rounded to frequency 0, where they depend on no position: "
            "give frequencies near multiples of 2π / period."
        )


def _about_shift(shift: ShiftFindings, dtype: torch.dtype, *, is_joint: bool) -> Iterator[str]:
    if shift.without_rounding > EQUIVARIANCE_TOLERANCE:
        reason = (
            "no kernel of this library should. Check custom relative kernels, and positions whose "
            "distance lies between two rings."
        )
        if is_joint:
            reason = (
                "relative='rotation_joint' is equivariant in expectation only. "
                "relative='rotation' is the same kernel, exact and equivariant for every draw."
            )
        yield f"A shift changes the output by {100 * shift.maximum:.2g} %: {reason}"
    elif shift.maximum > math.sqrt(torch.finfo(dtype).eps):
        yield (
            f"A shift changes the output by {shift.maximum:.1e} by rounding alone "
            f"({shift.without_rounding:.1e} in float64): compute in a wider dtype where that "
            "matters."
        )


def _heads(group: GroupFindings, is_selected: Iterable[bool]) -> str:
    """Return the indices of selected heads as text."""
    heads = [str(group.first_head + head) for head, flag in enumerate(is_selected) if flag]
    return ("head " if len(heads) == 1 else "heads ") + ", ".join(heads)
