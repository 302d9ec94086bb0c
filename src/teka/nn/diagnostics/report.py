"""What a diagnosis of an attention layer found, in dataclasses, as a report and as JSON."""

from dataclasses import dataclass
from textwrap import wrap

import torch

from teka.codec import encode
from teka.functional.attention import EstimatorReport

LINE_LENGTH = 110
FLOAT16 = torch.finfo(torch.float16)


@dataclass(frozen=True)
class EstimatorFindings:
    """How well some heads' random features estimate what they stand for, in float64."""

    truth: str  # what they stand for, "kernel × relative kernel"
    num_features: int  # number of random features m
    is_biased: bool  # whether the draws have one fixed norm, so that no number of features makes the error 0
    total: EstimatorReport  # errors over all heads
    by_head: tuple[EstimatorReport, ...]  # errors of each head


@dataclass(frozen=True)
class SizeFindings:
    """How large outputs are, in float64. The gain of query i, which bounds its output, is Σ_j |w_ij| / D_i."""

    bound: (
        float | None
    )  # C with |out| ≤ C · max |v| whatever the tokens are, or None where the kernels promise none
    times_the_values: float  # largest |out| over the largest |v| of the same sample and head
    largest_gain: float  # largest gain
    share_above_1: float  # share of the queries, over samples and heads, whose gain is above 1
    largest_output: float  # largest |out|


@dataclass(frozen=True)
class GroupFindings:
    """What was found about heads that are computed together."""

    name: str  # content kernel and relative kernel, "kernel × relative kernel"
    kernel: str  # name of the content kernel
    relative: str | None  # name of the relative kernel, or None
    first_head: int  # the first of the heads
    num_heads: int  # how many heads
    backend: str  # the backend that computes them
    size: SizeFindings  # how large their outputs are
    estimator: EstimatorFindings | None  # how well random features do, or None where there are none
    variation: tuple[float, ...]  # ‖output − mean of V‖ / ‖V − mean of V‖ of each head
    # the same times the root of the mean number of keys a query sees: about the weights' coefficient of variation
    unevenness: tuple[float, ...]
    rounding: dict[
        str, float
    ]  # ‖output − dense output‖ / ‖dense output‖ of other backends in the layer's dtype
    query_norm: (
        tuple[float, ...] | None
    )  # mean ‖q‖ of each head, or None where queries are not looked at
    key_norm: tuple[float, ...] | None  # mean ‖k‖ likewise
    num_still_waves: int = 0  # waves that a periodic grid rounds to frequency 0
    num_waves: int = 0  # waves that a periodic grid rounds, 0 where there are none

    @property
    def collapsed(self) -> bool:
        """Whether, in any head, random features predict the mean of the values where the truth is another."""
        return self.estimator is not None and any(
            report.collapsed for report in self.estimator.by_head
        )


@dataclass(frozen=True)
class ShiftFindings:
    """How much of the layer's output changes when everything moves."""

    how: str  # what moved
    # relative error at each shift, in cells on a grid and else in physical units, in the layer's dtype
    by_shift: dict[tuple[float, ...], float]
    noise_floor: float  # relative difference of two calls with the same input
    without_rounding: float  # relative error of the same layer in float64, at the worst shift

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
    """What was found about a layer on given tokens; `str` of it is a report."""

    dtype: str  # the layer's
    num_samples: int  # that were given
    num_tokens: int  # of each
    measured: str  # what of them the findings about heads were measured on, in words
    groups: tuple[GroupFindings, ...]  # findings about heads
    largest: dict[
        str, float
    ]  # the largest |number| of each tensor that the layer keeps in its dtype, in float64
    shift: ShiftFindings | None  # findings about shifts, or None where no shift is a symmetry
    advice: tuple[str, ...]  # what to do, sentences; empty when all is well

    @property
    def collapsed(self) -> bool:
        """Whether random features of any head predict the mean of the values where the truth is another."""
        return any(group.collapsed for group in self.groups)

    @property
    def float16_headroom(self) -> float:
        """How many times as large the layer's numbers could be in float16; below 1 it has infinities there."""
        return float16_headroom(self.largest)

    def to_dict(self) -> dict[str, object]:
        """The findings as dictionaries, lists, strings and numbers, ready for JSON."""
        found = encode(self) | {
            "collapsed": self.collapsed,
            "float16_headroom": self.float16_headroom,
        }
        for group, written in zip(self.groups, found["groups"], strict=True):
            written["collapsed"] = group.collapsed
            if group.estimator is not None:
                written["estimator"] |= written["estimator"].pop("total")
        if self.shift is not None:
            by_shift = self.shift.by_shift
            found["shift"] |= {
                "shifts": list(map(list, by_shift)),
                "errors": list(by_shift.values()),
            }
            found["shift"] |= {"maximum": self.shift.maximum}
            del found["shift"]["by_shift"]
        return found

    def __str__(self) -> str:
        samples = "1 sample" if self.num_samples == 1 else f"{self.num_samples:,} samples"
        lines = [f"{samples} of {self.num_tokens:,} tokens, {self.dtype}; heads {self.measured}"]
        for group in self.groups:
            lines += ["", *_group_lines(group)]
        largest = ", ".join(f"{name} {number:.3g}" for name, number in self.largest.items())
        lines += ["", f"largest numbers: {largest};"]
        lines += [f"  float16 has room for {self.float16_headroom:.3g} times as much"]
        if self.shift is None:
            lines += ["", "shifts: not measured, for none is a symmetry here"]
        else:
            worst = ", ".join(f"{step:g}" for step in self.shift.worst_shift)
            changes = f"the output changes by {self.shift.maximum:.1e}, most at ({worst});"
            lines += ["", f"shifts ({self.shift.how}): {changes}"]
            lines += [
                f"  {self.shift.without_rounding:.1e} in float64; noise floor {self.shift.noise_floor:.1e}"
            ]
        lines += ["", "what to do"]
        for sentence in self.advice or ("Nothing: all is well.",):
            lines += wrap(sentence, LINE_LENGTH, initial_indent="  - ", subsequent_indent="    ")
        return "\n".join(lines)


def float16_headroom(largest: dict[str, float]) -> float:
    """How many times as large the largest number, at least float16's smallest normal one, could be in float16."""
    return FLOAT16.max / max(*largest.values(), FLOAT16.tiny)


def _group_lines(group: GroupFindings) -> list[str]:
    last = group.first_head + group.num_heads - 1
    heads = f"head {last}" if group.num_heads == 1 else f"heads {group.first_head} to {last}"
    lines = [f"{group.name}, {heads}, computed by the {group.backend} backend"]
    measured = {"variation": group.variation, "‖q‖": group.query_norm, "‖k‖": group.key_norm}
    columns = {name: numbers for name, numbers in measured.items() if numbers is not None}
    if group.estimator is not None:
        total = group.estimator.total
        lines += [
            f"  {group.estimator.num_features} random features for {group.estimator.truth}: the output errs by "
            f"{total.error:.2g} of its size,",
            f"  where the mean of the values would err by {total.error_of_mean:.2g}",
        ]
        errors = [
            (report.error, report.error_of_mean, report.spread)
            for report in group.estimator.by_head
        ]
        columns |= dict(
            zip(("error", "mean's error", "spread"), zip(*errors, strict=True), strict=True)
        )
    lines.append("  " + "".join(f"{name:>14}" for name in ("head", *columns)))
    for head, numbers in enumerate(zip(*columns.values(), strict=True), start=group.first_head):
        lines.append(f"  {head:>14}" + "".join(f"{number:>14.3g}" for number in numbers))
    size = group.size
    bound = (
        "nothing bounds them"
        if size.bound is None
        else f"at most {size.bound:.3g} times whatever the tokens are"
    )
    lines += [
        f"  outputs are up to {size.times_the_values:.3g} times as large as the largest value; {bound}",
        f"  gain, a query's weights in absolute value over its denominator: up to {size.largest_gain:.3g}, above 1 for "
        f"{100 * size.share_above_1:.0f} % of the queries",
    ]
    for name, difference in group.rounding.items():
        lines.append(f"  the {name} backend differs from the dense one by {difference:.1e}")
    return lines
