"""Badge for a README with the consistency of a model."""

from html import escape

from teka.audit.page.metric_formatting import MISSING, format_interval
from teka.audit.report import AuditReport
from teka.errors import escape_unprintable
from teka.reporting.formatting import format_count, format_share

BADGE_LABEL = "shift-consistency"
# Lowest consistency for each color: green, amber, red. White text is readable on all of them.
BADGE_COLORS = ((0.99, "#14692f"), (0.9, "#8a5200"), (0.0, "#a31f10"))
UNKNOWN_COLOR = "#4a5565"


def badge_svg(report: AuditReport) -> str:
    """Draw an SVG badge that shows the lowest consistency of a model over all modes of shifting.

    If the report is invalid or the model makes no predictions, the badge shows "–".
    """
    measured = [metrics for metrics in report.metrics if "consistency" in metrics.numbers]
    value, color = MISSING, UNKNOWN_COLOR
    reason = ", ".join(report.invalid) or "no predictions to compare"
    if measured and not report.invalid:
        metrics = min(measured, key=lambda metrics: metrics.numbers["consistency"].value)
        lowest = metrics.numbers["consistency"]
        value = f"{format_share(lowest.value)} %"
        color = next(color for least, color in BADGE_COLORS if lowest.value >= least)
        interval = format_interval("consistency", lowest)
        reason = (
            f"{interval}, mode {metrics.movement.mode}, {len(metrics.shifts)} shifts, "
            f"{format_count(metrics.num_images, 'image')}"
        )
    left, right = (7 * len(text) + 14 for text in (BADGE_LABEL, value))
    title = escape(escape_unprintable(f"{report.name}: {BADGE_LABEL} {value} ({reason})"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{BADGE_LABEL} {escape(value)}" font-family="Verdana,DejaVu Sans,sans-serif" '
        f'font-size="11" text-anchor="middle" fill="#fff"><title>{title}</title>'
        f'<rect width="{left + 4}" height="20" rx="3" fill="#333b46"/>'
        f'<rect x="{left}" width="{right}" height="20" rx="3" fill="{color}"/>'
        f'<text x="{left / 2:g}" y="14">{BADGE_LABEL}</text>'
        f'<text x="{left + right / 2:g}" y="14">{escape(value)}</text></svg>'
    )
