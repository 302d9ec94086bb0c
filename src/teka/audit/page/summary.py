"""What an audit comes to, in few words: Markdown for a pull request, and a badge for a README."""

from collections.abc import Sequence

from teka.audit.caveats import SEVERITIES
from teka.audit.page.compared import winner
from teka.audit.page.metric_formatting import MISSING, write_interval
from teka.audit.page.pages import audit_columns, audit_rows, caveat_models, interval_note
from teka.audit.report import AuditReport
from teka.audit.statistics.metrics import NUMBERS
from teka.audit.statistics.ranking import Pair
from teka.reporting.formatting import write_share
from teka.reporting.svg import element, escape, title
from teka.reporting.tables import Table, markdown_text

SUMMARY_NUMBERS = ("accuracy", "minimum_accuracy", "worst_shift_accuracy", "consistency")
SUMMARY_NUMBERS += ("overlap", "minimum_overlap", "retrieval", "maximum_error")
BADGE_WORDS = "shift-consistency"
# The lowest share of each colour, on which white is read: green, amber, red.
BADGE_COLOURS = ((0.99, "#14692f"), (0.9, "#8a5200"), (0.0, "#a31f10"))
UNKNOWN = "#4a5565"
HEIGHT, MARGIN, CHARACTER = (
    20.0,
    7.0,
    6.6,
)  # a character's width at 11 pixels, to which the text is fitted


def summary_markdown(reports: Sequence[AuditReport], pairs: Sequence[Pair] = ()) -> str:
    """Verdicts, the main numbers with their intervals, and what could mislead; of several models who wins."""
    parts = []
    for mode in dict.fromkeys(pair.comparison.movement.mode for pair in pairs):
        headline, evidence = winner(
            [pair for pair in pairs if pair.comparison.movement.mode == mode], reports
        )
        parts += [
            f"**{markdown_text(headline)}**",
            "\n".join(f"- {markdown_text(words)}" for _, words in evidence),
        ]
    for report in reports:
        parts.append(f"**{markdown_text(report.name)}.** {markdown_text(report.verdict[0])}")
    columns = audit_columns(reports, SUMMARY_NUMBERS)
    rows = []
    for row in audit_rows(reports, columns):
        cells = (MISSING if cell is None else f"{cell[0]} ({cell[1]})" for cell in row.cells)
        rows.append((f"{reports[row.model].name}, {row.mode}", *cells, row.images, row.shifts))
    heads = [f"{NUMBERS[name].label}{' (%)' if NUMBERS[name].is_share else ''}" for name in columns]
    if rows:
        parts.append(Table("", ("model, mode", *heads, "images", "shifts"), tuple(rows)).markdown())
        parts.append(interval_note(reports, columns).replace("Below", "Beside"))
    caveats = caveat_models(reports).items()
    lines = (
        f"- {markdown_text(names)}: {SEVERITIES[one.severity]}, **{one.name}**. {markdown_text(one.message)}"
        for one, names in caveats
    )
    parts.append("\n".join(lines))
    return "\n\n".join(part for part in parts if part) + "\n"


def badge_svg(report: AuditReport) -> str:
    """A badge with the lowest consistency of any mode, as SVG that needs nothing else; "–" where it is not known.

    It is not known of a model without answers, and of one whose numbers a caveat makes void.
    """
    found = [
        (one.numbers["consistency"], one) for one in report.metrics if "consistency" in one.numbers
    ]
    words, colour, why = MISSING, UNKNOWN, ", ".join(report.invalid) or "no answers to compare"
    if found and not report.invalid:
        lowest, metrics = min(found, key=lambda pair: pair[0].value)
        words = f"{write_share(lowest.value)} %"
        colour = next(colour for least, colour in BADGE_COLOURS if lowest.value >= least)
        ends = write_interval("consistency", lowest.lower, lowest.upper, lowest.method)
        why = f"{ends}, mode {metrics.movement.mode}, {len(metrics.shifts)} shifts, {metrics.num_images:,} images"
    sizes = [CHARACTER * len(text) for text in (BADGE_WORDS, words)]
    edge, width = sizes[0] + 2 * MARGIN, sum(sizes) + 4 * MARGIN
    box = {"y": 0.0, "height": HEIGHT}
    parts = [
        title(f"{report.name}: {BADGE_WORDS} {words} ({why})"),
        element("rect", {**box, "x": 0.0, "width": width, "rx": 3.0, "fill": colour}),
        element(
            "path",
            {
                "d": f"M3 0H{edge:.1f}V{HEIGHT:.0f}H3A3 3 0 0 1 0 17V3A3 3 0 0 1 3 0z",
                "fill": "#333b46",
            },
        ),
    ]
    for text, size, start in ((BADGE_WORDS, sizes[0], MARGIN), (words, sizes[1], edge + MARGIN)):
        place = {"x": start, "y": 14.0, "textLength": size, "lengthAdjust": "spacingAndGlyphs"}
        parts.append(element("text", {**place, "fill": "#fff"}, escape(text)))
    frame = {"xmlns": "http://www.w3.org/2000/svg", "width": width, "height": HEIGHT, "role": "img"}
    said = {
        "aria-label": f"{BADGE_WORDS} {words}",
        "font-family": "Verdana,Geneva,DejaVu Sans,sans-serif",
    }
    return element("svg", {**frame, **said, "font-size": 11.0}, *parts)
