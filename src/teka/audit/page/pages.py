"""The HTML page of an audit."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from teka.audit.caveats import SEVERITIES, Caveat
from teka.audit.movement import Movement
from teka.audit.page import layers
from teka.audit.page.charts import curve_figure, layer_chart
from teka.audit.page.compared import comparison_sections
from teka.audit.page.metric_formatting import missing_intervals, write_interval, write_number
from teka.audit.page.modes import confidences, mode_sections
from teka.audit.protocols import ProtocolResult
from teka.audit.report import AuditReport
from teka.audit.statistics.estimate import Estimate
from teka.audit.statistics.metrics import NUMBERS, NumberMetric
from teka.audit.statistics.ranking import Pair
from teka.checks import check_instance, check_path, check_sequence
from teka.errors import wrong_value
from teka.files import check_output_file, write_bytes
from teka.reporting.formatting import listed, write_size
from teka.reporting.html import render_page
from teka.reporting.plots import line_color

FIRST_NUMBERS = (
    "consistency",
    "accuracy",
    "worst_shift_accuracy",
    "overlap",
    "minimum_overlap",
    "retrieval",
)
FIRST_NUMBERS += ("mean_error", "maximum_error")
# Longer labels for the cards on the first screen.
CARD_TITLES = {
    "unshifted": "accuracy, unshifted",
    "worst shift": "accuracy at the worst shift",
    "every shift": "accuracy at every shift",
}
MOST_NAMED = 2  # number of models whose names are in the title
LONGEST = 12  # longer lists of settings are shortened


class AuditRow(NamedTuple):
    """A row of the table of metrics: one model in one mode.

    Args:
        model: Index of the model.
        mode: Name of the mode.
        images: Number of images.
        shifts: Number of shifts.
        cells: Value and interval of each metric, or None.
    """

    model: int
    mode: str
    images: str
    shifts: str
    cells: tuple[tuple[str, str] | None, ...]


def audit_columns(
    reports: Sequence[AuditReport], numbers: Sequence[str] = tuple(NUMBERS)
) -> list[str]:
    """Return the names of the metrics that any report contains."""
    found = {name for report in reports for metrics in report.metrics for name in metrics.numbers}
    return [name for name in numbers if name in found]


def audit_rows(reports: Sequence[AuditReport], columns: Sequence[str]) -> list[AuditRow]:
    """Return the rows of the table of metrics, for each model and mode."""
    rows = []
    for model, report in enumerate(reports):
        for metrics in report.metrics:
            mode = f"{metrics.movement.mode}{' (invalid)' if report.invalid else ''}"
            shifts = f"{len(metrics.shifts):,}"
            if metrics.skipped_shifts:
                shifts += f" of {len(metrics.shifts) + len(metrics.skipped_shifts):,}"
            numbers = ((name, metrics.numbers.get(name)) for name in columns)
            cells = tuple(found and _write_estimate(name, found) for name, found in numbers)
            rows.append(AuditRow(model, mode, f"{metrics.num_images:,}", shifts, cells))
    return rows


def _write_estimate(name: str, found: Estimate) -> tuple[str, str]:
    return write_number(name, found.value), write_interval(
        name, found.lower, found.upper, found.method
    )


def interval_note(reports: Sequence[AuditReport], columns: Sequence[str]) -> str:
    """Explain the intervals below the metrics, and why any are missing."""
    every = [metrics for report in reports for metrics in report.metrics]
    methods = [
        metrics.numbers[name].method
        for metrics in every
        for name in columns
        if name in metrics.numbers
    ]
    return (
        f"Below each number its {confidences(every)} interval. {missing_intervals(methods)}".strip()
    )


def sorted_caveats(caveats: Sequence[Caveat]) -> list[Caveat]:
    """Return the caveats, the most severe first."""
    return sorted(caveats, key=lambda caveat: list(SEVERITIES).index(caveat.severity))


def caveat_models(reports: Sequence[AuditReport]) -> dict[Caveat, str]:
    """Return each caveat once, the most severe first, with the names of its models."""
    of = {
        caveat: []
        for caveat in sorted_caveats([caveat for report in reports for caveat in report.caveats])
    }
    for report in reports:
        for caveat in dict.fromkeys(report.caveats):
            of[caveat].append(report.name)
    return {
        caveat: "all models" if len(names) == len(reports) > 1 else listed(names)
        for caveat, names in of.items()
    }


def protocol_sections(reports: Sequence[AuditReport]) -> list[dict[str, Any]]:
    """Return the content of a section for each published protocol of any report."""
    names = [report.name for report in reports]
    results_by_protocol: dict[str, dict[int, ProtocolResult]] = {}
    for index, report in enumerate(reports):
        for result in report.protocols:
            results_by_protocol.setdefault(result.name, {})[index] = result
    sections = []
    for name, results in results_by_protocol.items():
        first = next(iter(results.values()))
        rows = [
            (index, number, *_write_estimate("accuracy", estimate))
            for index, result in results.items()
            for number, estimate in result.numbers.items()
        ]
        counts = dict.fromkeys(
            f"{noun}: {count:,}"
            for result in results.values()
            for noun, count in result.counts.items()
        )
        figures = []
        for group in first.metrics:
            curves = {}
            for index, result in results.items():
                metrics = result.metrics[group]
                curves[index] = (metrics.shifts, metrics.curves.get("accuracy"))
            figures.append(curve_figure(names, curves, f"{group}: accuracy (%)", is_percent=True))
        section = {
            "name": name,
            "procedure": first.procedure,
            "source": first.source,
            "rows": rows,
            "counts": "; ".join(counts),
            "curves": [figure for figure in figures if figure],
        }
        sections.append(section)
    return sections


def name_setting(name: str) -> str:
    """Return the name of a setting for readers, such as "Number of images"."""
    words = name.replace("num_", "number_of_").replace("_", " ").replace("sha256", "SHA-256")
    return words[:1].upper() + words[1:]


def write_setting(value: object) -> str:
    """Write the value of a setting. Of a long list, only the length and the ends are written."""
    if isinstance(value, Mapping):
        words = [f"{name}: {write_setting(inner)}" for name, inner in value.items()]
        return ", ".join(words) or "none"
    if isinstance(value, list | tuple):
        if len(value) > LONGEST:
            first, last = write_setting([min(value)]), write_setting([max(value)])
            return f"{len(value):,}, from {first} to {last}"
        words = [
            f"({write_setting(item)})" if isinstance(item, list | tuple) else write_setting(item)
            for item in value
        ]
        return ", ".join(words) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        is_large = isinstance(value, int) and abs(value) >= 10_000
        return (f"{value:,}" if is_large else f"{value:.6g}").replace("-", "−")
    return str(value)


def write_examples(reports: Sequence[AuditReport]) -> str:
    """Convert the examples to JSON for the script of the page.

    An image that several models have in common becomes one entry.
    """
    models = [
        {"name": report.name, "color": line_color(at), "classes": report.data.get("class_names")}
        for at, report in enumerate(reports)
    ]
    # Values that repeat are stored once and named by their index.
    pixels: dict[tuple, int] = {}
    shifts: dict[tuple, int] = {}
    movements: dict[str, int] = {}
    images: dict[tuple, dict] = {}
    for model, report in enumerate(reports):
        moved = {metrics.movement.mode: metrics.movement for metrics in report.metrics}
        for example in report.examples:
            picture = (example.image, example.height, example.width, example.channels)
            movement = json.dumps(_movement(moved[example.mode], picture[1:]))
            place = movements.setdefault(movement, len(movements))
            levels = pixels.setdefault(picture, len(pixels))
            image = {
                "movement": place,
                "pixels": levels,
                "index": example.index,
                "label": example.label,
                "predictions": [],
            }
            images.setdefault((place, example.index, levels), image)["predictions"].append(
                {
                    "model": model,
                    "shifts": shifts.setdefault(example.shifts, len(shifts)),
                    "classes": list(example.predictions),
                    "probabilities": [
                        round(probability, 4) for probability in example.probabilities
                    ],
                }
            )
    content = {
        "models": models,
        "pixels": [
            dict(zip(("levels", "height", "width", "channels"), one, strict=True)) for one in pixels
        ],
        "shifts": [list(map(list, steps)) for steps in shifts],
        "movements": [json.loads(movement) for movement in movements],
        "images": sorted(images.values(), key=lambda image: image["movement"]),
    }
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # Escape everything that could end the script element.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _movement(movement: Movement, sizes: tuple[int, int, int]) -> dict[str, object]:
    """Return the mode, the background as levels, and the size of the image that the model sees."""
    height, width, channels = sizes
    background = movement.background
    if isinstance(background, int | float):
        background = (background,) * channels
    seen = (height, width) if movement.crop_size is None else movement.crop_size
    levels = [min(max(round(255 * value), 0), 255) for value in background]
    return {
        "mode": movement.mode,
        "background": levels,
        "seen": [seen] * 2 if isinstance(seen, int) else list(seen),
    }


def write_page(
    reports: Sequence[AuditReport], path: str | Path, pairs: Sequence[Pair] = ()
) -> Path:
    """Write one HTML page about one or more audits, atomically.

    >>> import tempfile, torch
    >>> from teka.audit import AuditSettings, audit, write_page
    >>> layers = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4)
    >>> settings = AuditSettings(shifts=[(0, 1)], parts=())
    >>> report = audit(torch.nn.Sequential(*layers), torch.rand(20, 3, 8, 8), settings=settings)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_page([report], f"{folder}/audit.html").name
    'audit.html'

    Args:
        reports: Reports, which the page shows side by side.
        path: File of the page.
        pairs: Comparisons of the models, from
            `teka.audit.statistics.ranking.compare_every_two`, for paired differences.

    Returns:
        The path.

    Raises:
        ValueError: No report, or a path that cannot be written.
    """
    reports = check_sequence("reports", reports, "a list of reports")
    if not reports:
        raise wrong_value("reports", reports, "at least one report")
    for report in reports:
        check_instance("reports", report, AuditReport)
    pairs = check_sequence("pairs", pairs, "a list of comparisons")
    for pair in pairs:
        check_instance("pairs", pair, Pair)
    path = check_path("path", path)
    check_output_file("path", path)
    write_bytes(path, render_audit_page(reports, pairs).encode("utf-8"))
    return path


def render_audit_page(reports: Sequence[AuditReport], pairs: Sequence[Pair] = ()) -> str:
    """Return the HTML page about one or more audits."""
    if not reports:
        raise wrong_value("reports", list(reports), "one or more reports")
    folder = files("teka.audit.page")
    columns = audit_columns(reports)
    data = dict.fromkeys(
        str(report.data.get("used", report.data.get("name", "images"))) for report in reports
    )
    content = {
        "audit_style": (folder / "audit.css").read_text(encoding="utf-8"),
        "script": (folder / "audit.js").read_text(encoding="utf-8"),
        "title": f"{_named(reports)} under shifts",
        "data": listed(list(data)),
        "reports": reports,
        "colors": [line_color(index) for index in range(len(reports))],
        "caveats": caveat_models(reports),
        "severities": SEVERITIES,
        "columns": [NUMBERS[name] for name in columns],
        "rows": audit_rows(reports, columns),
        "first_numbers": _first_numbers(reports),
        "card_titles": CARD_TITLES,
        "interval_note": interval_note(reports, columns),
        "comparisons": comparison_sections(pairs, reports),
        "modes": mode_sections(reports),
        "examples": write_examples(reports) if any(report.examples for report in reports) else "",
        "has_labels": any(
            example.label is not None for report in reports for example in report.examples
        ),
        "layers": layers,
        "layer_chart": layer_chart,
        "listed": listed,
        "write_size": write_size,
        "protocols": protocol_sections(reports),
        "name_setting": name_setting,
        "write_setting": write_setting,
        "version": next(
            (str(report.provenance["teka"]) for report in reports if "teka" in report.provenance),
            "",
        ),
    }
    return render_page("teka.audit.page", "audit.html.j2", content)


def _first_numbers(reports: Sequence[AuditReport]) -> list[tuple[NumberMetric, tuple[str, str]]]:
    """Return the three metrics that a reader of one valid report sees first."""
    columns = audit_columns(reports, FIRST_NUMBERS)[:3]
    rows = audit_rows(reports, columns) if len(reports) == 1 and not reports[0].invalid else []
    return [
        (NUMBERS[name], cell)
        for row in rows[:1]
        for name, cell in zip(columns, row.cells, strict=True)
        if cell
    ]


def _named(reports: Sequence[AuditReport]) -> str:
    return (
        listed([report.name for report in reports])
        if len(reports) <= MOST_NAMED
        else f"{len(reports)} models"
    )
