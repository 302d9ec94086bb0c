"""HTML page with the results of one or more audits."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from teka.audit.caveats import SEVERITIES, Caveat
from teka.audit.movement import Movement, parse_background
from teka.audit.page.charts import draw_curves, draw_layer_errors, model_color
from teka.audit.page.compared import comparison_sections, describe_differing_shifts
from teka.audit.page.metric_formatting import (
    explain_missing_intervals,
    format_difference_cells,
    format_estimate,
    metric_title,
)
from teka.audit.page.modes import format_confidence_levels, mode_sections
from teka.audit.report import AuditReport, ExampleImage
from teka.audit.statistics.comparison import ModelPair
from teka.audit.statistics.metrics import NUMBERS
from teka.audit.verdict import explain_layers
from teka.checks import check_instances
from teka.errors import escape_unprintable_except_newlines, require, wrong_value
from teka.files import check_file_is_writable, write_bytes
from teka.reporting.formatting import format_number, join_words

# The page starts with cards for the first three of these metrics that were measured.
FIRST_NUMBERS = (
    "consistency",
    "accuracy",
    "worst_shift_accuracy",
    "overlap",
    "minimum_overlap",
    "retrieval",
    "mean_error",
    "maximum_error",
)
LONGEST = 12  # maximum length of a list of settings that is not shortened


class AuditRow(NamedTuple):
    """Row of the results table, with the metrics of one model in one mode of shifting as text.

    Args:
        model: Index of the model.
        mode: Name of the mode.
        images: Number of images.
        shifts: Number of shifts.
        cells: Value and interval of each measured metric, by its name.
    """

    model: int
    mode: str
    images: str
    shifts: str
    cells: dict[str, tuple[str, str]]


def list_measured_metrics(
    reports: Sequence[AuditReport], numbers: Sequence[str] = tuple(NUMBERS)
) -> list[str]:
    """List the metrics that at least one report contains, out of the given names."""
    measured = {
        name for report in reports for metrics in report.metrics for name in metrics.numbers
    }
    return [name for name in numbers if name in measured]


def results_rows(reports: Sequence[AuditReport]) -> list[AuditRow]:
    """Return one row of the results table for each model and mode of shifting."""
    rows = []
    for model, report in enumerate(reports):
        for metrics in report.metrics:
            mode = f"{metrics.movement.mode}{' (invalid)' if report.invalid else ''}"
            shifts = f"{len(metrics.shifts):,}"
            if metrics.skipped_shifts:
                shifts += f" of {len(metrics.shifts) + len(metrics.skipped_shifts):,}"
            cells = {
                name: format_estimate(name, estimate, is_exact=metrics.is_exact)
                for name, estimate in metrics.numbers.items()
            }
            rows.append(AuditRow(model, mode, f"{metrics.num_images:,}", shifts, cells))
    return rows


def explain_intervals(reports: Sequence[AuditReport], columns: Sequence[str]) -> str:
    """Explain the confidence intervals in the results table, and why some are missing."""
    results = [metrics for report in reports for metrics in report.metrics]
    gaps = explain_missing_intervals(
        metrics.numbers[name].method
        for metrics in results
        for name in columns
        if name in metrics.numbers
    )
    return f"Below each number is its {format_confidence_levels(results)} interval. {gaps}".strip()


def describe_used_images(reports: Sequence[AuditReport]) -> list[str]:
    """Describe the images of all audits, such as "500 of 10,000 test images of mnist".

    Audits of the same images share a description, which appears once.
    """
    return list(
        dict.fromkeys(str(report.data["used"]) for report in reports if "used" in report.data)
    )


def model_names_by_caveat(reports: Sequence[AuditReport]) -> dict[Caveat, str]:
    """Map each caveat to the names of the models that it concerns, the most severe caveat first."""
    caveats = [caveat for report in reports for caveat in report.caveats]
    models = {}
    for caveat in sorted(caveats, key=lambda caveat: list(SEVERITIES).index(caveat.severity)):
        names = [report.name for report in reports if caveat in report.caveats]
        models[caveat] = "all models" if len(names) == len(reports) > 1 else join_words(names)
    return models


def protocol_sections(reports: Sequence[AuditReport]) -> list[dict[str, Any]]:
    """Return one section of the page for each published protocol, with its results and curves."""
    results_by_protocol = {}
    for index, report in enumerate(reports):
        for result in report.protocols:
            results_by_protocol.setdefault(result.name, {})[index] = result
    sections = []
    for results in results_by_protocol.values():
        first = next(iter(results.values()))
        figures = []
        for group in first.metrics:
            metrics = {index: result.metrics[group] for index, result in results.items()}
            figures.append(draw_curves(reports, metrics, "accuracy", f"{group}: accuracy (%)"))
        sections.append({"protocol": first, "results": results, "curves": figures})
    return sections


def format_setting(value: object) -> str:
    """Format the value of a setting as text.

    A long list is shortened to its length and its smallest and largest values.
    """
    if isinstance(value, Mapping):
        words = [f"{name}: {format_setting(inner)}" for name, inner in value.items()]
        return ", ".join(words) or "none"
    if isinstance(value, list | tuple):
        if len(value) > LONGEST:
            first, last = format_setting([min(value)]), format_setting([max(value)])
            return f"{len(value):,}, from {first} to {last}"
        words = [
            f"({format_setting(item)})" if isinstance(item, list | tuple) else format_setting(item)
            for item in value
        ]
        return ", ".join(words) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return (f"{value:,}" if isinstance(value, int) else f"{value:.6g}").replace("-", "−")
    return str(value)


def examples_to_json(reports: Sequence[AuditReport]) -> str:
    """Convert the example images of reports to JSON for the script of the page.

    Examples refer to images and lists of shifts by an index, so that each of them is stored once.
    """
    pixels = {}
    shifts = {}
    examples = []
    for model, report in enumerate(reports):
        movements = {metrics.movement.mode: metrics.movement for metrics in report.metrics}
        for example in report.examples:
            examples.append(
                {
                    **vars(example),
                    "model": model,
                    "movement": _movement_to_json(movements[example.mode], example),
                    "image": pixels.setdefault(example.image, len(pixels)),
                    "shifts": shifts.setdefault(example.shifts, len(shifts)),
                }
            )
    content = {
        "models": [
            {
                "name": report.name,
                "color": model_color(at, report),
                "classes": report.data.get("class_names"),
            }
            for at, report in enumerate(reports)
        ],
        "pixels": list(pixels),
        "shifts": list(shifts),
        "examples": examples,
    }
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    # Escape everything that could end the script element.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _movement_to_json(movement: Movement, example: ExampleImage) -> dict[str, Any]:
    """Convert a movement to JSON data, with which the script of the page shifts an image."""
    background = parse_background(movement.background)
    if len(background) == 1:
        background *= example.channels
    return {
        "mode": movement.mode,
        "background": [min(max(round(255 * value), 0), 255) for value in background],
        "seen": movement.seen_size((example.height, example.width)),
    }


def write_page(
    reports: Sequence[AuditReport], path: str | Path, pairs: Sequence[ModelPair] = ()
) -> Path:
    """Write an HTML page with the results of one or more audits. The file is written atomically.

    >>> import tempfile, torch
    >>> from teka.audit import AuditSettings, audit, write_page
    >>> layers = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4)
    >>> settings = AuditSettings(shifts=[(0, 1)], parts=())
    >>> report = audit(torch.nn.Sequential(*layers), torch.rand(20, 3, 8, 8), settings=settings)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_page([report], f"{folder}/audit.html").name
    'audit.html'

    Args:
        reports: Reports of the audits. Several reports are shown side by side.
        path: Path of the HTML file.
        pairs: Comparisons between the models, from
            `teka.audit.statistics.comparison.compare_all_pairs`, to show their differences.

    Returns:
        The path.

    Raises:
        ValueError: There is no report, or the file cannot be written.
    """
    reports = check_instances("reports", reports, AuditReport, "a list of reports")
    pairs = check_instances("pairs", pairs, ModelPair, "a list of comparisons")
    path = check_file_is_writable("path", path)
    write_bytes(path, render_audit_page(reports, pairs).encode("utf-8"))
    return path


def render_audit_page(reports: Sequence[AuditReport], pairs: Sequence[ModelPair] = ()) -> str:
    """Return the HTML of a page with the results of one or more audits."""
    if not reports:
        raise wrong_value("reports", list(reports), "one or more reports")
    columns = list_measured_metrics(reports)
    content = {
        "version": reports[0].provenance.get("teka", ""),
        "images": join_words(describe_used_images(reports)) or "images",
        "reports": reports,
        "colors": [model_color(index, report) for index, report in enumerate(reports)],
        "caveats": model_names_by_caveat(reports),
        "severities": SEVERITIES,
        "metrics": NUMBERS,
        "columns": columns,
        "rows": results_rows(reports),
        "first_numbers": list_measured_metrics(reports, FIRST_NUMBERS)[:3],
        "interval_note": explain_intervals(reports, columns),
        "comparisons": comparison_sections(pairs, reports),
        "modes": mode_sections(reports),
        "examples": examples_to_json(reports) if any(report.examples for report in reports) else "",
        "protocols": protocol_sections(reports),
    }
    functions = (
        draw_curves,
        describe_differing_shifts,
        explain_layers,
        draw_layer_errors,
        join_words,
        metric_title,
        format_difference_cells,
        format_estimate,
        format_setting,
        format_number,
    )
    content |= {function.__name__: function for function in functions}
    return _page_template().render(content)


@functools.cache
def _page_template() -> Any:
    # Compiling takes most of the time of a page, and a process often writes many pages.
    require("jinja2", "reports need", "teka[report]")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("teka.audit.page", ""),
        autoescape=True,
        finalize=_escape_control_characters,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = _escape_control_characters
    return environment.get_template("audit.html.j2")


def _escape_control_characters(value: object) -> object:
    """Replace control characters in plain text by visible escape codes."""
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return escape_unprintable_except_newlines(value) if is_text else value
