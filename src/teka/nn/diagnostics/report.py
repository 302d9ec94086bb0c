"""Reports on attention layers: measurements, the problems that they show and recommendations."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TypeVar

import torch
from torch import Tensor

from teka.codec import encode

T = TypeVar("T")
LINE_LENGTH = 100
FLOAT16 = torch.finfo(torch.float16)
# Ratio of distances to the exact output below which it equals the mean of the values, in float64.
EQUAL_OUTPUTS = 1e-9

# Thresholds of the findings.
COLLAPSED_SPREAD = 0.1
FEATURE_ERROR = 0.1
# Mean of (‖q‖² + ‖k‖²)/√d. The variance of positive features grows with its exponential.
LARGE_EXPONENT = 4.0
LARGE_GAIN = 10.0
SHARE_OF_GAINS_ABOVE_1 = 0.1
FLOAT16_HEADROOM = 10.0
# Unevenness of the weights below which the output is practically the mean of the values.
EVEN_WEIGHTS = 0.02
# Relative error under a shift that rounding in float64 can explain.
FLOAT64_ROUNDING = 1e-8

RECOMMENDATIONS = {
    "collapsed features": "Use more features (num_features), smaller queries and keys, or a kernel "
    "without random features, such as 'squared_relu'.",
    "inaccurate features": "Use more features, kernel='softmax' if there are fewer tokens than "
    "features, or a kernel without random features: 'squared_relu', or 'taylor2' for small queries "
    "and keys.",
    "inaccurate position features": "Use relative='clipped', which is exact and costs less.",
    "biased features": "Use projection='orthogonal', which has no such bias.",
    "long queries and keys": "Use query_key='normalized', or smaller weights.",
    "large outputs": "With relative='rotary', use rotary_normalizer='nonnegative', or 'mixed' (the "
    "default) and a kernel without negative weights. Otherwise use kernel='squared_relu' or "
    "'positive'. Their outputs are bounded.",
    "float16 overflow": "Compute in bfloat16, normalize the tokens, or use smaller weights. If a "
    "layer has large outputs, choose a kernel that bounds them.",
    "even weights": "If this remains after training, scale queries and keys up. The constant "
    "kernel without a relative kernel has no other output.",
    "rounding of a backend": "Use float64, backend='dense', or a kernel without negative weights.",
    "constant waves": "Choose frequencies near multiples of 2π / period.",
    "shift sensitivity": "relative='rotation_joint' is equivariant in expectation only; "
    "relative='rotation' is the same kernel and exactly equivariant. Otherwise check custom "
    "relative kernels, and positions whose distance lies between two rings.",
    "rounding under shifts": "Compute in a wider dtype if this error matters.",
}


@dataclass(frozen=True)
class Finding:
    """A problem that `teka.diagnose` has found in an attention layer.

    `str` returns its message and a recommendation.

    Attributes:
        name: Name of the problem, a key of `RECOMMENDATIONS`.
        value: Measured value.
        threshold: Limit beyond which the value is a problem.
        message: One or two sentences about the measurement.
    """

    name: str
    value: float
    threshold: float
    message: str

    def __str__(self) -> str:
        return f"{self.message} {RECOMMENDATIONS[self.name]}"


@dataclass(frozen=True)
class EstimatorErrors:
    """Errors of attention with random features, compared with attention with the exact kernel.

    Random features have inner products that approximate a kernel. If they are too few, the output
    may collapse: it is nearly the mean of the values for every query.

    Attributes:
        error: Relative error with random features, ‖estimate − exact‖ / ‖exact‖.
        error_of_mean: Relative error of the mean of the values, ‖mean − exact‖ / ‖exact‖.
        spread: ‖estimate − mean‖ / ‖exact − mean‖. It is 0 if the estimate is the mean of the
            values, and set to 1 if the exact output is that mean too.
    """

    error: float
    error_of_mean: float
    spread: float

    @classmethod
    def from_outputs(cls, estimate: Tensor, exact: Tensor, mean: Tensor) -> "EstimatorErrors":
        """Compare an approximate attention output with the exact one and with a baseline.

        The baseline `mean` is the mean of the values, the output of attention with equal weights.
        """
        size = exact.norm().clamp_min(torch.finfo(exact.dtype).tiny)
        distance = (exact - mean).norm()
        spread = 1.0
        if distance > EQUAL_OUTPUTS * size:
            spread = float((estimate - mean).norm() / distance)
        return cls(float((estimate - exact).norm() / size), float(distance / size), spread)

    @property
    def is_collapsed(self) -> bool:
        """True if the approximate output has collapsed: it is nearly the mean of the values.

        All queries then get nearly the same output, although the exact output differs from that
        mean.
        """
        return self.spread < COLLAPSED_SPREAD


@dataclass(frozen=True)
class FeatureErrors:
    """Errors of the random features that approximate the kernel of some attention heads.

    The errors are relative to the output of the exact kernel and computed in float64.

    Attributes:
        exact: Names of the exact kernels, such as "softmax × alibi".
        num_features: Number of random features.
        is_biased: True if all random vectors have the same norm. Their error does not vanish with
            their number.
        total: Errors over all heads.
        by_head: Errors of each head.
    """

    exact: str
    num_features: int
    is_biased: bool
    total: EstimatorErrors
    by_head: tuple[EstimatorErrors, ...]


@dataclass(frozen=True)
class HeadMeasurements:
    """Accuracy and output sizes of attention heads that share the same kernels, in float64.

    The gain of query i is Σ_j |w_ij|, where w_ij is the normalized attention weight of value j. The
    output is at most the gain times the largest value.

    Attributes:
        name: Names of the kernels, such as "softmax × rotary".
        relative: Name of the relative kernel, or None.
        heads: Indices of the heads.
        backend: Backend of the heads.
        features: Errors of random features, or None without any.
        bound: Guaranteed bound of |output| / max |value|, or None.
        output_ratio: Largest |output| / max |value| of a sample and head.
        largest_output: Largest |output|.
        largest_gain: Largest gain.
        share_of_gains_above_1: Share of the queries with a gain above 1.
        unevenness: Root mean square over the queries of √n ‖w_i − 1/n‖ for each head, with the
            weights w_i of a query and the number n of its keys. It is 0 for equal weights.
        query_norm: Mean ‖q‖ of each head, or None without queries.
        key_norm: Mean ‖k‖ of each head, or None without keys.
        rounding: Relative difference of each backend from "dense", in the layer's dtype.
        num_constant_waves: Number of waves whose frequency a periodic grid rounds to 0.
    """

    name: str
    relative: str | None
    heads: tuple[int, ...]
    backend: str
    features: FeatureErrors | None
    bound: float | None
    output_ratio: float
    largest_output: float
    largest_gain: float
    share_of_gains_above_1: float
    unevenness: tuple[float, ...]
    query_norm: tuple[float, ...] | None
    key_norm: tuple[float, ...] | None
    rounding: dict[str, float]
    num_constant_waves: int = 0

    @property
    def is_collapsed(self) -> bool:
        """True if the random features of at least one of these heads have collapsed.

        The output of such a head is nearly the mean of the values for every query.
        """
        return self.features is not None and any(
            errors.is_collapsed for errors in self.features.by_head
        )


@dataclass(frozen=True)
class ShiftErrors:
    """Relative changes of the output of an attention layer when its tokens are shifted.

    For an equivariant layer, the output moves with the tokens, and only rounding errors remain.

    Attributes:
        method: How the tokens were shifted.
        by_shift: Error of each shift, in the layer's dtype.
        noise_floor: Difference of two calls with the same input.
        float64_error: Error of the worst shift in float64.
    """

    method: str
    by_shift: dict[tuple[float, ...], float]
    noise_floor: float
    float64_error: float

    @property
    def maximum(self) -> float:
        """Largest error over the shifts."""
        return max(self.by_shift.values())


@dataclass(frozen=True)
class Diagnosis:
    """Result of `teka.diagnose`: measurements of an attention layer and the problems found.

    `str` returns a report as text.

    Attributes:
        dtype: Dtype of the layer.
        inputs: Number of samples and tokens.
        measured: The part of the inputs on which the heads are measured.
        groups: Measurements of each group of heads that share their kernels.
        largest: Largest absolute value of each tensor that has the layer's dtype.
        float16_headroom: Factor by which these tensors could grow in float16. Below 1, float16
            overflows.
        shift: Changes of the output under shifts, or None if no shift is a symmetry.
        findings: Problems. Empty if there are none.
    """

    dtype: str
    inputs: str
    measured: str
    groups: tuple[HeadMeasurements, ...]
    largest: dict[str, float]
    float16_headroom: float
    shift: ShiftErrors | None
    findings: tuple[Finding, ...]

    @property
    def is_collapsed(self) -> bool:
        """True if the random features of at least one head of the layer have collapsed.

        The output of such a head is nearly the mean of the values for every query.
        """
        return any(finding.name == "collapsed features" for finding in self.findings)

    def to_dict(self) -> dict[str, object]:
        """Return the measurements and findings as plain JSON."""
        return encode(self)

    def __str__(self) -> str:
        lines = [f"{self.inputs}, {self.dtype}; heads measured on {self.measured}"]
        for group in self.groups:
            lines += [group.name, *_lines(group)]
        lines += ["largest values", *_lines(self.largest)]
        lines.append(f"  room in float16: a factor of {self.float16_headroom:.3g}")
        if self.shift is not None:
            lines += ["shifts", *_lines(self.shift)]
        lines.append("findings" if self.findings else "No problem found.")
        for finding in self.findings:
            lines += wrap(f"  - {finding}", LINE_LENGTH, subsequent_indent="    ")
        return "\n".join(lines)


def _lines(measurements: object) -> list[str]:
    """Return the fields of a dataclass or dictionary as text."""
    lines = []
    for name, value in encode(measurements).items():
        line = f"  {name.replace('_', ' ')}: {_format(value)}"
        lines += wrap(line, LINE_LENGTH, subsequent_indent="    ")
    return lines


def _format(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return ", ".join(map(_format, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format(item)}" for name, item in value.items())
    return str(value)


class LayerReports(dict[str, T]):
    """Dictionary from the name of each attention layer of a model to its report.

    `str` returns all reports as one text.

    Attributes:
        skipped: Reason for each layer without a report, by the name of the layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.skipped: dict[str, str] = {}

    def __str__(self) -> str:
        parts = [f"{name}\n{report}" for name, report in self.items()]
        parts += [f"{name}\nskipped: {reason}" for name, reason in self.skipped.items()]
        return "\n\n".join(parts)


def features_for(error: float, num_features: int, target: float = FEATURE_ERROR) -> int:
    """Return how many random features are needed to reduce the error to a target.

    The error of random features falls with the square root of their number.
    """
    return math.ceil(num_features * (error / target) ** 2)


def find_problems(
    groups: Sequence[HeadMeasurements],
    largest: dict[str, float],
    shift: ShiftErrors | None,
    *,
    dtype: torch.dtype,
    dim_head: int,
) -> tuple[Finding, ...]:
    """Compare the measurements of an attention layer with thresholds, and return each problem.

    Problems are, for example, inaccurate random features, large outputs, or an output that changes
    when the tokens are shifted.
    """
    rounding = math.sqrt(torch.finfo(dtype).eps)
    findings: list[Finding] = []
    for group in groups:
        findings += _feature_problems(group, dim_head)
        findings += _head_problems(group, rounding)
    headroom = float16_headroom(largest)
    if headroom < FLOAT16_HEADROOM:
        name = max(largest, key=largest.__getitem__)
        message = (
            f"The largest {name} is {largest[name]:.3g}, and the largest float16 is "
            f"{FLOAT16.max:,.0f}."
        )
        findings.append(Finding("float16 overflow", headroom, FLOAT16_HEADROOM, message))
    if shift is not None:
        message = (
            f"A shift changes the output by {shift.maximum:.1e}, in float64 by "
            f"{shift.float64_error:.1e}."
        )
        if shift.float64_error > FLOAT64_ROUNDING:
            name, value, threshold = "shift sensitivity", shift.float64_error, FLOAT64_ROUNDING
            findings.append(Finding(name, value, threshold, message))
        elif shift.maximum > rounding:
            findings.append(Finding("rounding under shifts", shift.maximum, rounding, message))
    return tuple(findings)


def float16_headroom(largest: dict[str, float]) -> float:
    """Return the largest float16 over the largest of some values."""
    return FLOAT16.max / max(*largest.values(), FLOAT16.tiny)


def _feature_problems(group: HeadMeasurements, dim_head: int) -> Iterator[Finding]:
    features = group.features
    if features is None:
        return
    spreads = [errors.spread for errors in features.by_head]
    if group.is_collapsed:
        heads = _heads_below(group, spreads, COLLAPSED_SPREAD)
        message = (
            f"The random features of {group.name} have collapsed in {heads}: the output is the "
            "mean of the values for every input."
        )
        yield Finding("collapsed features", min(spreads), COLLAPSED_SPREAD, message)
    error, num_features = features.total.error, features.num_features
    if error <= FEATURE_ERROR:
        return
    name = "inaccurate features"
    message = (
        f"{group.name} has an error of {100 * error:.0f} % with {num_features} random features; "
        f"the mean of the values has {100 * features.total.error_of_mean:.0f} %. The error falls "
        "with the square root of their number, so that 10 % takes "
        f"{features_for(error, num_features):,} or more."
    )
    if group.relative == "clipped_features":
        name = "inaccurate position features"
    yield Finding(name, error, FEATURE_ERROR, message)
    if features.is_biased:
        message = f"The draws of {group.name} have one norm. They underestimate the softmax kernel."
        yield Finding("biased features", error, FEATURE_ERROR, message)
    if group.query_norm is not None and group.key_norm is not None:
        query_norm = sum(group.query_norm) / len(group.query_norm)
        key_norm = sum(group.key_norm) / len(group.key_norm)
        exponent = (query_norm**2 + key_norm**2) / math.sqrt(dim_head)
        if exponent > LARGE_EXPONENT:
            message = (
                f"Queries and keys of {group.name} have mean norms of {query_norm:.3g} and "
                f"{key_norm:.3g}. The error of random features grows with the exponential of "
                "their squares."
            )
            yield Finding("long queries and keys", exponent, LARGE_EXPONENT, message)


def _head_problems(group: HeadMeasurements, rounding: float) -> Iterator[Finding]:
    gain, share = group.largest_gain, group.share_of_gains_above_1
    if gain > 1.01 * (group.bound or 1.0) and (gain > LARGE_GAIN or share > SHARE_OF_GAINS_ABOVE_1):
        message = (
            f"The denominator of {group.name} does not bound its weights. Outputs are up to "
            f"{group.output_ratio:.3g} times as large as the largest value, gains up to "
            f"{gain:.3g}, and other tokens may give larger ones."
        )
        yield Finding("large outputs", gain, LARGE_GAIN, message)
    if min(group.unevenness) < EVEN_WEIGHTS and not group.is_collapsed:
        heads = _heads_below(group, group.unevenness, EVEN_WEIGHTS)
        message = f"The output of {group.name} is the mean of the values in {heads}."
        yield Finding("even weights", min(group.unevenness), EVEN_WEIGHTS, message)
    for backend, difference in group.rounding.items():
        if difference > rounding:
            message = (
                f"The {backend} backend of {group.name} differs from the dense one by "
                f"{difference:.1e}, because sums of weights are close to 0."
            )
            yield Finding("rounding of a backend", difference, rounding, message)
    if group.num_constant_waves:
        message = (
            f"{group.num_constant_waves} waves of {group.name} are longer than the torus. Their "
            "frequencies are rounded to 0, so that they do not depend on the position."
        )
        yield Finding("constant waves", float(group.num_constant_waves), 0.0, message)


def _heads_below(group: HeadMeasurements, values: Sequence[float], threshold: float) -> str:
    """Return the heads whose value is below a threshold, as text."""
    heads = [head for head, value in zip(group.heads, values, strict=True) if value < threshold]
    return f"head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))}"
