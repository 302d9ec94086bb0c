"""What an audit's errors are to be held against: noise, and the change for the smallest of shifts."""

from collections.abc import Sequence
from dataclasses import dataclass

from teka.audit.measure.lie_derivative import LieDerivative
from teka.audit.page.notation import write_size
from teka.audit.report import AuditReport

AXES = ("dy", "dx")


@dataclass(frozen=True)
class NumericsRow:
    """One measurement of one model.

    Args:
        model: Place of the model's report in the list.
        name: What was measured.
        value: The number as written.
        words: What stands beside it.
    """

    model: int
    name: str
    value: str
    words: str


def numerics_rows(reports: Sequence[AuditReport]) -> list[NumericsRow]:
    """Noise floor and Lie derivative of every model that has them.

    Args:
        reports: The reports.
    """
    rows = []
    for model, report in enumerate(reports):
        noise = report.noise_floor
        if noise:
            rows.append(NumericsRow(model, "Noise, the same input twice", write_size(noise.repeat), ""))
            precise = "–" if noise.precision is None else write_size(noise.precision)
            words = noise.reason or ""
            rows.append(NumericsRow(model, "Noise, single against double precision", precise, words))
        rows += [NumericsRow(model, *_lie_derivative(found)) for found in report.lie_derivative]
    return rows


def _lie_derivative(found: LieDerivative) -> tuple[str, str, str]:
    ordered = sorted(found.by_image)
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.9))
    words = (
        f"mean of {len(ordered):,} images, {write_size(low)} to {write_size(high)} in the middle 80 %; {found.method}"
    )
    return f"Lie derivative along {AXES[found.axis]}", write_size(found.mean), words
