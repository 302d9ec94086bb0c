"""What was found, in one or two plain sentences made from the numbers."""

from collections.abc import Sequence

from teka.audit.page.notation import averaged, percent, write_step
from teka.training.report.model_result import AXES, BUILT_IN
from teka.training.report.results import Report
from teka.training.report.seed_group import SeedGroup

LINEAR_BACKENDS = ("linear", "toeplitz", "rings")
"""Backends whose cost is called linear: O(L), or for "toeplitz" O(L · Σ sides)."""

FALL = 5.0
"""Percentage points below the unshifted accuracy from which a model is said to fall."""


def _is_linear(group: SeedGroup) -> bool:
    return group.backend in LINEAR_BACKENDS


def _is_relative(group: SeedGroup) -> bool:
    return group.position not in ("none", "absolute", BUILT_IN)


def _points(share: float) -> float:
    """Percentage points as they are printed, so that printed differences agree with printed numbers."""
    return float(percent(share))


def _best(groups: Sequence[SeedGroup]) -> SeedGroup:
    return max(groups, key=lambda group: group.lowest.accuracy)


def _description(group: SeedGroup, candidates: Sequence[SeedGroup]) -> str:
    if group.position == BUILT_IN:
        return group.name if len(candidates) == 1 else f"{group.name} (best of {len(candidates)})"
    words = "without positions" if group.position == "none" else f"with {group.position} positions"
    if _is_relative(group):
        words += " at linear cost" if _is_linear(group) else f" and {group.kernel.replace('_', ' ')} attention"
    return f"{words} (best of {len(candidates)}: {group.name})" if len(candidates) > 1 else words


def _behaviour(group: SeedGroup) -> str:
    lowest, start = group.lowest, group.unshifted
    low = _points(lowest.accuracy)
    if start is None:
        high = max(value for axis in AXES for value in group.accuracy(axis).values())
        return f"stays between {low:.1f} % and {percent(high)} %"
    if _points(start) - low >= FALL:
        return f"falls from {percent(start)} % to {low:.1f} % (at {lowest.axis} = {write_step(lowest.shift)})"
    return f"keeps at least {low:.1f} % at every shift"


def _beside_softmax(group: SeedGroup, groups: Sequence[SeedGroup]) -> str:
    """How the lowest accuracy compares with that of the same position under softmax, if that was measured."""
    references = [other for other in groups if other.kernel == "softmax" and other.position == group.position]
    if not _is_relative(group) or group.kernel == "softmax" or not references:
        return ""
    reference = _points(_best(references).lowest.accuracy)
    difference = _points(group.lowest.accuracy) - reference
    if abs(difference) < 0.05:
        return ", as much as softmax attention at its lowest"
    side = "above" if difference > 0 else "below"
    return f", {abs(difference):.1f} points {side} softmax attention at its lowest ({reference:.1f} %)"


def finding(report: Report) -> str:
    """One or two sentences: how far each kind of model falls when images move, and the linear one beside softmax.

    The kinds are absolute positions (or, without such a model, none) and relative positions, at linear cost if there is
    such a model. Of several models of one kind it speaks of the one with the highest lowest accuracy, and says so.
    Differences are those of the printed numbers.

    Args:
        report: The results.
    """
    groups = report.groups
    absolute = [group for group in groups if group.position == "absolute"]
    without = [group for group in groups if group.position == "none"]
    relative = [group for group in groups if _is_relative(group)]
    at_linear_cost = [group for group in relative if _is_linear(group)]
    kinds = [absolute or without, at_linear_cost or relative or (without if absolute else [])]
    told = [(_best(kind), kind) for kind in kinds if kind] or [(_best(groups), groups)]

    clauses = []
    for group, kind in told:
        pronoun = "{} it" if clauses else "the model {}"
        subject = pronoun.format(_description(group, kind))
        clauses.append(f"{subject} {_behaviour(group)}{_beside_softmax(group, groups)}")
    reach = max(abs(shift) for axis in AXES for shift in report.shifts(axis))
    seeds = averaged([len(group.results) for group in groups])
    unit = "pixel" if reach == 1 else "pixels"
    text = f"With images of {report.dataset} moved by up to {reach} {unit} ({seeds}), {'; '.join(clauses)}."

    if len(told) == 2:
        (first, first_kind), (second, _) = told
        lead = _points(first.lowest.accuracy) - _points(second.lowest.accuracy)
        if lead >= 0.05:
            text += (
                f" Here the model {_description(first, first_kind)} holds up better: "
                f"its lowest accuracy is {lead:.1f} points higher."
            )
    return text
