"""How the numbers of a study are written for people."""

from collections.abc import Sequence
from statistics import fmean, stdev

from teka.audit.page.notation import percent
from teka.experiments.study.report.estimate import Estimate
from teka.experiments.study.report.group import StudyGroup

NOTHING = "–"


def with_interval(share: Estimate) -> str:
    """A share in % and half the width of its interval: "95.3 ± 0.4"."""
    return percent(share.mean) + _half_width(share)


def signed_with_interval(difference: Estimate) -> str:
    """A difference of shares in % points with its sign, a true minus: "−0.3 ± 0.4"."""
    return _signed(difference.mean) + _half_width(difference)


def with_deviation(shares: Sequence[float]) -> str:
    """Mean and standard deviation over seeds of shares in %: "94.8 ± 0.3"; the mean alone for one seed."""
    return percent(fmean(shares)) + _deviation(shares)


def signed_with_deviation(differences: Sequence[float]) -> str:
    """The same of differences of shares, with a sign, a true minus: "−0.3 ± 0.4"."""
    return _signed(fmean(differences)) + _deviation(differences)


def _deviation(shares: Sequence[float]) -> str:
    return f" ± {percent(stdev(shares))}" if len(shares) > 1 else ""


def _signed(difference: float) -> str:
    rounded = round(100 * difference, 1) + 0.0  # Adding 0 makes a rounded −0 a 0.
    return f"{rounded:+.1f}".replace("-", "−")


def _half_width(share: Estimate) -> str:
    return "" if share.half_width is None else f" ± {percent(share.half_width)}"


def diverged(group: StudyGroup) -> str:
    """How many runs of a group diverged, of those that are there: "diverged (1 of 3)"; empty for none."""
    total = len(group.failed) + len(group.results)
    return f"diverged ({len(group.failed)} of {total})" if group.failed else ""


def accuracy_cell(group: StudyGroup | None) -> str:
    """The accuracy of a group over its seeds, and on a further line how many of them diverged; a dash for nothing."""
    if group is None:
        return NOTHING
    accuracy = group.estimate("accuracy")
    return "\n".join(part for part in (accuracy and with_interval(accuracy), diverged(group)) if part)
