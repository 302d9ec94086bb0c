"""What to do about what was found in an attention layer."""

import math
from collections.abc import Iterable, Iterator

import torch

from teka.nn.diagnostics.report import (
    FLOAT16,
    EstimatorFindings,
    GroupFindings,
    ShiftFindings,
    float16_headroom,
)
from teka.nn.diagnostics.warnings import bounded_instead

TARGET_ERROR = 0.1  # error of an estimated output that is worth a sentence, and that a number of features is named for
# Mean of (‖q‖² + ‖k‖²)/√d above which the variance of positive features, which grows as its exponential, is large.
LARGE_EXPONENT = 4.0
EVEN = 0.02  # unevenness below which a head's output is the mean of the values for all that matters
# Gain above which outputs are called large, and share of queries above 1 that is called many.
LARGE_GAIN = 10.0
MANY_QUERIES = 0.1
HEADROOM = 10.0  # factor that float16 should have room for
EQUIVARIANT = 1e-8  # relative error under a shift, in float64, above which it is no rounding


def advise(
    groups: tuple[GroupFindings, ...],
    largest: dict[str, float],
    shift: ShiftFindings | None,
    *,
    dtype: torch.dtype,
    num_tokens: int,
    dim_head: int,
) -> tuple[str, ...]:
    """Sentences chosen by the findings about heads, the largest numbers and shifts, none where all is well."""
    sentences: list[str] = []
    for group in groups:
        if group.estimator is not None:
            sentences += _about_estimator(
                group, group.estimator, num_tokens=num_tokens, dim_head=dim_head
            )
        sentences += [*_about_size(group), *_about_numbers(group, dtype)]
    unbounded = any(sentence for group in groups for sentence in _about_size(group))
    sentences += _about_headroom(largest, has_bounds=not unbounded)
    if shift is not None:
        sentences += _about_shift(
            shift, dtype, joint=any(group.relative == "rotation_joint" for group in groups)
        )
    return tuple(sentences)


def features_for(error: float, num_features: int, target: float = TARGET_ERROR) -> int:
    """Least number of features for an error that falls as m^(−1/2), as it does unless few draws carry the estimate."""
    return math.ceil(num_features * (error / target) ** 2)


def _about_estimator(
    group: GroupFindings, estimator: EstimatorFindings, *, num_tokens: int, dim_head: int
) -> Iterator[str]:
    total = estimator.total
    if total.error <= TARGET_ERROR and not group.collapsed:
        return
    if group.collapsed:
        heads = _heads(group, (report.collapsed for report in estimator.by_head))
        yield f"{group.name} has collapsed in {heads}: the output is the mean of the values, whatever the tokens are."
    errs = f"{group.name} errs by {100 * total.error:.0f} %"
    if group.relative == "clipped_features":
        yield f"{errs}; relative='clipped' is the same without random features, exact and cheaper."
        return
    needed = features_for(total.error, estimator.num_features)
    worse = (
        ", more than predicting the mean of the values would"
        if total.error > total.error_of_mean
        else ""
    )
    further = ", and more while the estimate is that far off." if total.error > 0.5 else "."
    if needed > num_tokens:
        further += f" That is more than there are tokens: kernel='softmax' is exact and costs less at {num_tokens:,}."
    yield (
        f"{errs} with {estimator.num_features} features{worse}; as the error falls with the root of their number, 10 % "
        f"takes {needed:,} or more (num_features){further}"
    )
    if estimator.is_biased:
        yield (
            "Draws of fixed norm estimate less than the softmax kernel, and more of them do not mend that; "
            "projection='orthogonal' has no such bias."
        )
    if group.query_norm is not None and group.key_norm is not None:
        query, key = (sum(norms) / len(norms) for norms in (group.query_norm, group.key_norm))
        if (query**2 + key**2) / math.sqrt(dim_head) > LARGE_EXPONENT:
            yield (
                f"Queries and keys are long (mean norms {query:.3g} and {key:.3g}), and the error grows as the "
                "exponential of their squares: normalise them, or make them smaller."
            )
    yield (
        "Kernels without draws: 'squared_relu' needs only as many features as a head has dimensions, and 'taylor2' is "
        "near softmax where queries and keys are small."
    )


def _about_size(group: GroupFindings) -> Iterator[str]:
    size = group.size
    promised = 1.0 if size.bound is None else size.bound
    is_much = size.largest_gain > LARGE_GAIN or size.share_above_1 > MANY_QUERIES
    if size.largest_gain > 1.01 * promised and is_much:
        yield (
            f"The denominator of {group.name} does not bound its weights: outputs are up to "
            f"{size.times_the_values:.3g} times as large as the largest value here, gains up to "
            f"{size.largest_gain:.3g}, and other tokens may give any size. Take "
            f"{bounded_instead(group.relative)}, with which outputs are bounded."
        )


def _about_headroom(largest: dict[str, float], *, has_bounds: bool) -> Iterator[str]:
    headroom = float16_headroom(largest)
    if headroom >= HEADROOM:
        return
    name = max(largest, key=largest.__getitem__)
    found = (
        "are infinite there"
        if headroom < 1
        else f"leave room for {headroom:.2g} times as much only"
    )
    remedy = "normalise the tokens, or make the weights of that map smaller"
    if name == "heads' outputs":
        remedy = "make the values smaller"
    if "outputs" in name and not has_bounds:
        remedy = "bound the weights, as above"
    numbers = f"{name} of {largest[name]:.3g} {found}"
    yield f"float16 ends at {FLOAT16.max:,.0f}, and {numbers}: compute in bfloat16, or {remedy}."


def _about_numbers(group: GroupFindings, dtype: torch.dtype) -> Iterator[str]:
    even = [number < EVEN for number in group.unevenness]
    if any(even) and not group.collapsed:
        why = "the weights are all but equal; if they still are after training, scale queries and keys up"
        if group.kernel == "constant" and group.relative is None:
            why = "the constant kernel without a relative kernel can give nothing else"
        yield f"The output of {group.name} is the mean of the values in {_heads(group, even)}: {why}."
    for name, difference in group.rounding.items():
        if difference > math.sqrt(torch.finfo(dtype).eps):
            other = ", or kernel='positive'" if group.kernel == "trigonometric" else ""
            yield (
                f"The {name} backend differs from the dense one by {difference:.1e} for {group.name}: sums of weights "
                f"come near 0 there. Use float64 or backend='dense'{other}."
            )
    if group.num_still_waves:
        yield (
            f"{group.num_still_waves} of the {group.num_waves} waves of {group.name} are longer than this torus and "
            "are rounded to frequency 0, where they see no position: give frequencies near multiples of 2π / period."
        )


def _about_shift(shift: ShiftFindings, dtype: torch.dtype, *, joint: bool) -> Iterator[str]:
    if shift.without_rounding > EQUIVARIANT:
        why = (
            "relative='rotation_joint' is equivariant in expectation only. relative='rotation' is the same kernel, "
            "exact and equivariant for every draw."
            if joint
            else "no kernel of this library should. Look at relative kernels of your own, and at positions whose "
            "distance lies between two rings."
        )
        yield f"A shift changes the output by {100 * shift.maximum:.2g} %: {why}"
    elif shift.maximum > math.sqrt(torch.finfo(dtype).eps):
        yield (
            f"A shift changes the output by {shift.maximum:.1e} by rounding alone ({shift.without_rounding:.1e} in "
            "float64): compute in a wider dtype where that matters."
        )


def _heads(group: GroupFindings, found: Iterable[bool]) -> str:
    heads = [str(group.first_head + head) for head, is_one in enumerate(found) if is_one]
    return ("head " if len(heads) == 1 else "heads ") + ", ".join(heads)
