"""Reports on attention layers, with measurements, the problems they show, and recommendations."""

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
# Relative distance in float64 below which two outputs count as equal.
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

# Meaning of each problem, and the recommended change.
RECOMMENDATIONS = {
    "collapsed features": "The output is nearly the mean of the values for every query. Use more "
    "random features (num_features), queries and keys of smaller norm, or a kernel without random "
    "features, such as kernel='squared_relu'.",
    "inaccurate features": "Use more random features, or kernel='softmax' for inputs with fewer "
    "tokens than features. Kernels without random features do not have this error: for example, "
    "use kernel='squared_relu', or kernel='taylor2' for small queries and keys.",
    "inaccurate position features": "Use relative='clipped', which is exact and costs less.",
    "biased features": "Random vectors of equal norm make attention weights too small. Use "
    "projection='orthogonal', which does not have this error.",
    "long queries and keys": "Random features have a large error for queries and keys with a large "
    "norm. Use query_key='normalized', or smaller weights of the query and key projections.",
    "large outputs": "Other inputs may cause even larger outputs. For bounded outputs, use "
    "kernel='squared_relu' or kernel='positive'. With relative='rotary', also use "
    "rotary_normalizer='mixed' (the default) or 'nonnegative'.",
    "float16 overflow": "Compute in bfloat16, normalize the tokens, or use smaller weights. If a "
    "layer has large outputs, choose a kernel that bounds them.",
    "even weights": "If the attention weights are still equal after training, use larger queries "
    "and keys. With kernel='constant' and relative=None, the weights are always equal.",
    "rounding of a backend": "Rounding errors grow if attention weights of both signs sum to "
    "almost 0. Use float64, backend='dense', or a kernel without negative weights.",
    "constant waves": "A sinusoid is constant if its wavelength is much longer than the periodic "
    "grid. Choose frequencies near multiples of 2π / period.",
    "shift sensitivity": "The layer is not equivariant to shifts. Instead of "
    "relative='rotation_joint', use relative='rotation', which is exactly equivariant. With "
    "relative='clipped', the distances between tokens must be multiples of the ring width. A "
    "custom relative kernel must depend only on the offsets between tokens.",
    "rounding under shifts": "Compute in a wider dtype if this error matters.",
}


@dataclass(frozen=True)
class Finding:
    """A problem that `teka.diagnose` has found in an attention layer.

    `str` returns a text that states the measurement, explains it and recommends a remedy.

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
class ApproximationErrors:
    """Errors of attention with random features, compared with attention with the exact kernel.

    Random features approximate a kernel such as softmax. If there are too few of them, the output
    may collapse to nearly the mean of the values for every query.

    Attributes:
        error: Relative error of the output, ‖estimate − exact‖ / ‖exact‖.
        error_of_mean: Relative error of the mean of the values, ‖mean − exact‖ / ‖exact‖.
        spread: Distance of the output from the mean of the values, relative to that of the exact
            output: ‖estimate − mean‖ / ‖exact − mean‖. It is 0 if the output equals the mean, and
            set to 1 if the exact output equals the mean.
    """

    error: float
    error_of_mean: float
    spread: float

    @classmethod
    def from_outputs(cls, estimate: Tensor, exact: Tensor, mean: Tensor) -> "ApproximationErrors":
        """Compute the errors from three outputs of the same attention.

        Args:
            estimate: Output with random features.
            exact: Output with the exact kernel.
            mean: Output with equal attention weights, which is the mean of the values.
        """
        size = exact.norm().clamp_min(torch.finfo(exact.dtype).tiny)
        distance = (exact - mean).norm()
        spread = 1.0
        if distance > EQUAL_OUTPUTS * size:
            spread = float((estimate - mean).norm() / distance)
        return cls(float((estimate - exact).norm() / size), float(distance / size), spread)

    @property
    def is_collapsed(self) -> bool:
        """True if the approximate output, but not the exact one, is nearly the mean value."""
        return self.spread < COLLAPSED_SPREAD


@dataclass(frozen=True)
class RandomFeatureErrors:
    """Errors of the random features that approximate the kernel of some attention heads.

    The errors are relative to the output of the exact kernel, and computed in float64.

    Attributes:
        exact: Names of the exact kernels, such as "softmax × alibi".
        num_features: Number of random features.
        is_biased: True if all random vectors have the same norm. More features then do not reduce
            the error to 0.
        total: Errors over all heads.
        by_head: Errors of each head.
    """

    exact: str
    num_features: int
    is_biased: bool
    total: ApproximationErrors
    by_head: tuple[ApproximationErrors, ...]


@dataclass(frozen=True)
class HeadMeasurements:
    """Accuracy and output sizes of attention heads that share the same kernels, in float64.

    The gain of a query is the sum of its absolute attention weights. No output is larger than the
    gain times the largest value.

    Attributes:
        name: Names of the kernels, such as "softmax × rotary".
        relative: Name of the relative kernel, or None.
        heads: Indices of the heads.
        backend: Attention algorithm that computes the heads.
        features: Errors of random features, or None if the heads have no random features.
        bound: Guaranteed bound of |output| / max |value|, or None.
        output_ratio: Largest |output| / max |value| of a sample and head.
        largest_output: Largest |output|.
        largest_gain: Largest gain.
        share_of_gains_above_1: Share of the queries with a gain above 1.
        unevenness: Root mean square over the queries of √n ‖w_i − 1/n‖ for each head, with the
            weights w_i of a query and the number n of its keys. It is 0 for equal weights.
        query_norm: Mean ‖q‖ of each head, or None if the heads have no queries.
        key_norm: Mean ‖k‖ of each head, or None if the heads have no keys.
        rounding: Relative difference of each backend from "dense", in the layer's dtype.
        num_constant_waves: Number of sinusoids whose frequency a periodic grid rounds to 0.
    """

    name: str
    relative: str | None
    heads: tuple[int, ...]
    backend: str
    features: RandomFeatureErrors | None
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
        """True if the random features of at least one head have collapsed.

        The output of such a head is nearly the mean of the values for every query.
        """
        return self.features is not None and any(
            errors.is_collapsed for errors in self.features.by_head
        )


@dataclass(frozen=True)
class ShiftErrors:
    """Shift equivariance errors of an attention layer, measured for several shifts.

    An error is the relative difference between the output for shifted tokens and the shifted
    output. For an equivariant layer, it is only a rounding error.

    Attributes:
        method: How the tokens were shifted.
        by_shift: Error for each shift, in the layer's dtype.
        noise_floor: Relative difference between two calls with the same input.
        float64_error: Error in float64, for the shift with the largest error.
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
        measured: Number of samples and tokens on which the heads are measured.
        groups: Measurements of each group of heads that share their kernels.
        largest: Largest absolute value of each tensor that has the layer's dtype.
        float16_headroom: Factor by which these tensors could grow before float16 overflows. Below
            1, they already overflow.
        shift: Changes of the output under shifts. None if the layer is not expected to be
            equivariant to any shift.
        findings: Problems that the measurements show.
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
        """Return the measurements and findings as a dictionary that can be saved as JSON."""
        return encode(self)

    def __str__(self) -> str:
        lines = [f"{self.inputs}, {self.dtype}; heads measured on {self.measured}"]
        for group in self.groups:
            lines += [group.name, *_format_fields(group)]
        lines += ["largest values", *_format_fields(self.largest)]
        lines.append(f"  room in float16: a factor of {self.float16_headroom:.3g}")
        if self.shift is not None:
            lines += ["shifts", *_format_fields(self.shift)]
        lines.append("findings" if self.findings else "No problem found.")
        for finding in self.findings:
            lines += wrap(f"  - {finding}", LINE_LENGTH, subsequent_indent="    ")
        return "\n".join(lines)


def _format_fields(measurements: object) -> list[str]:
    """Return the names and values of the fields of a dataclass or dictionary as lines of text."""
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
    """Reports on the attention layers of a model, as a dictionary from layer names to reports.

    `str` returns all reports as one text.

    Attributes:
        skipped: Reason why a layer has no report, by the name of the layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.skipped: dict[str, str] = {}

    def __str__(self) -> str:
        parts = [f"{name}\n{report}" for name, report in self.items()]
        parts += [f"{name}\nskipped: {reason}" for name, reason in self.skipped.items()]
        return "\n\n".join(parts)


def estimate_required_features(
    error: float, num_features: int, target: float = FEATURE_ERROR
) -> int:
    """Estimate how many random features an attention layer needs for a target error.

    The estimate starts from the `error` that was measured with `num_features` features, and assumes
    that errors are inversely proportional to the square root of the number of features.
    """
    return math.ceil(num_features * (error / target) ** 2)


def find_layer_problems(
    groups: Sequence[HeadMeasurements],
    largest: dict[str, float],
    shift: ShiftErrors | None,
    *,
    dtype: torch.dtype,
    dim_head: int,
) -> tuple[Finding, ...]:
    """Return the problems that the measurements of an attention layer show.

    A measurement that is beyond its threshold is a problem. Examples are inaccurate random
    features, large outputs and sensitivity to shifts.
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
    """Return the factor by which the largest value could grow before float16 overflows."""
    return FLOAT16.max / max(*largest.values(), FLOAT16.tiny)


def _feature_problems(group: HeadMeasurements, dim_head: int) -> Iterator[Finding]:
    features = group.features
    if features is None:
        return
    spreads = [errors.spread for errors in features.by_head]
    if group.is_collapsed:
        heads = _names_of_heads_below(group, spreads, COLLAPSED_SPREAD)
        message = f"The random features of {group.name} have collapsed in {heads}."
        yield Finding("collapsed features", min(spreads), COLLAPSED_SPREAD, message)
    error, num_features = features.total.error, features.num_features
    if error <= FEATURE_ERROR:
        return
    name = "inaccurate features"
    message = (
        f"The output of {group.name} with {num_features} random features has an error of "
        f"{100 * error:.0f} %. The mean of the values has an error of "
        f"{100 * features.total.error_of_mean:.0f} %. For an error of 10 %, use at least "
        f"{estimate_required_features(error, num_features):,} features."
    )
    if group.relative == "clipped_features":
        name = "inaccurate position features"
    yield Finding(name, error, FEATURE_ERROR, message)
    if features.is_biased:
        message = f"The random vectors of {group.name} all have the same norm."
        yield Finding("biased features", error, FEATURE_ERROR, message)
    if group.query_norm is not None and group.key_norm is not None:
        query_norm = sum(group.query_norm) / len(group.query_norm)
        key_norm = sum(group.key_norm) / len(group.key_norm)
        exponent = (query_norm**2 + key_norm**2) / math.sqrt(dim_head)
        if exponent > LARGE_EXPONENT:
            message = (
                f"Queries and keys of {group.name} are long, with mean norms of {query_norm:.3g}"
                f" and {key_norm:.3g}."
            )
            yield Finding("long queries and keys", exponent, LARGE_EXPONENT, message)


def _head_problems(group: HeadMeasurements, rounding: float) -> Iterator[Finding]:
    gain, share = group.largest_gain, group.share_of_gains_above_1
    if gain > 1.01 * (group.bound or 1.0) and (gain > LARGE_GAIN or share > SHARE_OF_GAINS_ABOVE_1):
        message = (
            f"Outputs of {group.name} are not bounded. They are up to {group.output_ratio:.3g} "
            f"times the largest value (sum of absolute weights: {gain:.3g})."
        )
        yield Finding("large outputs", gain, LARGE_GAIN, message)
    if min(group.unevenness) < EVEN_WEIGHTS and not group.is_collapsed:
        heads = _names_of_heads_below(group, group.unevenness, EVEN_WEIGHTS)
        message = f"All attention weights of {group.name} are nearly equal in {heads}."
        yield Finding("even weights", min(group.unevenness), EVEN_WEIGHTS, message)
    for backend, difference in group.rounding.items():
        if difference > rounding:
            message = (
                f"The backend {backend!r} of {group.name} differs from 'dense' by {difference:.1e}."
            )
            yield Finding("rounding of a backend", difference, rounding, message)
    if group.num_constant_waves:
        message = f"{group.num_constant_waves} sinusoids of {group.name} are constant on this grid."
        yield Finding("constant waves", float(group.num_constant_waves), 0.0, message)


def _names_of_heads_below(
    group: HeadMeasurements, values: Sequence[float], threshold: float
) -> str:
    """Return the names of the heads whose value is below a threshold, such as "heads 0, 2"."""
    heads = [head for head, value in zip(group.heads, values, strict=True) if value < threshold]
    return f"head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))}"
