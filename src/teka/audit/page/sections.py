"""What is shown beside modes and layers: numbers, caveats, procedures, noise and derivatives, settings, examples."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from teka.audit.caveats import Caveat
from teka.audit.measure.lie_derivative import LieDerivative
from teka.audit.movement import Movement
from teka.audit.page.curves import CurveFigure, curve_figure
from teka.audit.page.notation import is_share, write_number, write_share, write_size
from teka.audit.page.style import line_style
from teka.audit.report import AuditReport
from teka.audit.statistics.estimate import Estimate
from teka.audit.statistics.metrics import NUMBERS

SEVERITY_NAMES = {
    "invalidates": "These numbers do not hold",
    "limits": "These numbers hold for less",
    "note": "Worth knowing",
}
"""What each of `teka.audit.caveats.SEVERITIES` means to a reader, the gravest first."""
LONGEST = 12
"""A list of more settings is shortened: the JSON file of the report has all of it."""


class AuditRow(NamedTuple):
    """One model, by its place in the list, in one mode: for each column the number and its interval, where defined."""

    model: int
    mode: str
    images: str
    shifts: str
    cells: tuple[tuple[str, str] | None, ...]


class Measured(NamedTuple):
    """One number of the model at a place in the list, as written, and what stands beside it."""

    model: int
    name: str
    value: str
    words: str


class PresetSection(NamedTuple):
    """One procedure of the literature: its numbers, counts of images and passes, and a curve for each group moved."""

    name: str
    procedure: str
    source: str
    rows: tuple[Measured, ...]
    counts: str
    curves: tuple[CurveFigure, ...]


def audit_columns(reports: Sequence[AuditReport], numbers: Sequence[str] = tuple(NUMBERS)) -> list[str]:
    """Those of the numbers that any mode of any report has, in their order."""
    found = {name for report in reports for metrics in report.metrics for name in metrics.numbers}
    return [name for name in numbers if name in found]


def audit_rows(reports: Sequence[AuditReport], columns: Sequence[str]) -> list[AuditRow]:
    """The numbers of some columns, model after model and mode after mode."""
    rows = []
    for model, report in enumerate(reports):
        for metrics in report.metrics:
            shifts = f"{len(metrics.shifts):,}"
            if metrics.skipped_shifts:
                shifts += f" of {len(metrics.shifts) + len(metrics.skipped_shifts):,}"
            numbers = ((name, metrics.numbers.get(name)) for name in columns)
            cells = tuple(
                found and (write_number(name, found.value), _interval(name, found)) for name, found in numbers
            )
            rows.append(AuditRow(model, metrics.movement.mode, f"{metrics.num_images:,}", shifts, cells))
    return rows


def _interval(name: str, found: Estimate) -> str:
    return f"{write_number(name, found.lower)}–{write_number(name, found.upper)}"


def column_head(name: str) -> str:
    """What a number is called at the head of its column, with its unit."""
    return f"{NUMBERS[name].label}{' (%)' if is_share(name) else ''}"


def confidences(reports: Sequence[AuditReport]) -> list[str]:
    """Every confidence that intervals of the reports have, as written."""
    found = sorted({metrics.confidence for report in reports for metrics in report.metrics})
    return [f"{100 * confidence:g} %" for confidence in found]


def sorted_caveats(caveats: Sequence[Caveat]) -> list[Caveat]:
    """The caveats, the gravest first."""
    return sorted(caveats, key=lambda caveat: list(SEVERITY_NAMES).index(caveat.severity))


def preset_sections(reports: Sequence[AuditReport]) -> list[PresetSection]:
    """A section for each procedure that any report has, with the models that it was done with."""
    sections = []
    for name in dict.fromkeys(preset.name for report in reports for preset in report.presets):
        found = {at: preset for at, report in enumerate(reports) for preset in report.presets if preset.name == name}
        rows = tuple(
            Measured(at, number, write_share(one.value), _interval("accuracy", one))
            for at, preset in found.items()
            for number, one in preset.numbers.items()
        )
        counts = dict.fromkeys(f"{what}: {n:,}" for preset in found.values() for what, n in preset.counts.items())
        names, figures = [report.name for report in reports], []
        for group in dict.fromkeys(group for preset in found.values() for group in preset.metrics):
            moved = {at: preset.metrics[group] for at, preset in found.items() if group in preset.metrics}
            figures.append(curve_figure(names, moved, "accuracy", f"{group}: correct (%)"))
        first = next(iter(found.values()))
        curves = tuple(figure for figure in figures if figure)
        sections.append(PresetSection(name, first.procedure, first.source, rows, "; ".join(counts), curves))
    return sections


def numerics_rows(reports: Sequence[AuditReport]) -> list[Measured]:
    """Noise floor and Lie derivative of every model that has them: what errors are to be held against."""
    rows = []
    for model, report in enumerate(reports):
        noise = report.noise_floor
        if noise:
            precise = "–" if noise.precision is None else write_size(noise.precision)
            rows.append(Measured(model, "Noise, the same input twice", write_size(noise.repeat), ""))
            rows.append(Measured(model, "Noise, single against double precision", precise, noise.reason or ""))
        for found in report.lie_derivative:
            name = f"Lie derivative along {('dy', 'dx')[found.axis]}"
            rows.append(Measured(model, name, write_size(found.mean), _spread(found)))
    return rows


def _spread(found: LieDerivative) -> str:
    ordered = sorted(found.by_image)
    low, high = (write_size(ordered[round(share * (len(ordered) - 1))]) for share in (0.1, 0.9))
    return f"mean of {len(ordered):,} images, {low} to {high} in the middle 80 %; {found.method}"


def settings_groups(report: AuditReport) -> list[tuple[str, list[tuple[str, str]]]]:
    """Model, data, settings and provenance, each with names and values; what is None or empty is left out."""
    made = report.provenance
    groups = {"Model": report.model, "Data": report.data, "Settings": report.settings, "Made with": made}
    written = {
        head: [(_name(name), _write(value)) for name, value in content.items() if value not in (None, "")]
        for head, content in groups.items()
    }
    return [(head, pairs) for head, pairs in written.items() if pairs]


def _name(name: str) -> str:
    words = name.replace("num_", "number_of_").replace("_", " ").replace("sha256", "SHA-256")
    return words[:1].upper() + words[1:]


def _write(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return (f"{value:,}" if abs(value) >= 10_000 else str(value)).replace("-", "−")
        case float():
            return f"{value:.6g}".replace("-", "−")
        case str():
            return value
        case Mapping():
            return ", ".join(f"{name}: {_write(inner)}" for name, inner in value.items()) or "none"
        case list() | tuple():
            return _write_list(value)
    return json.dumps(value, default=str)


def _write_list(values: Sequence) -> str:
    if not values:
        return "none"
    if len(values) > LONGEST and all(isinstance(one, list | tuple) and len(one) == len(values[0]) for one in values):
        low, high = (tuple(map(end, zip(*values, strict=True))) for end in (min, max))
        return f"{len(values):,}, from ({_write(low)}) to ({_write(high)})"
    words = [f"({_write(one)})" if isinstance(one, list | tuple) else _write(one) for one in values[:LONGEST]]
    return ", ".join(words) + (f", … ({len(values):,} in all)" if len(values) > LONGEST else "")


def write_examples(reports: Sequence[AuditReport]) -> str:
    """The examples of all reports as JSON for the page's script, which moves them and says what each model answered.

    The same image of two reports, moved in the same mode, becomes one with the answers of both models.
    """
    models = [
        {"name": report.name, "colour": line_style(at).colour, "classes": report.data.get("class_names")}
        for at, report in enumerate(reports)
    ]
    content = {"models": models, **_collect(reports)}
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # Nothing in it may end the script element or open a comment.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _collect(reports: Sequence[AuditReport]) -> dict[str, list]:
    # Each is numbered in the order of first appearance, and named by its number.
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
            image = {"movement": place, "pixels": levels, "index": example.index, "label": example.label, "answers": []}
            images.setdefault((place, example.index, levels), image)["answers"].append(
                {
                    "model": model,
                    "shifts": shifts.setdefault(example.shifts, len(shifts)),
                    "classes": list(example.predictions),
                    "probabilities": [round(probability, 4) for probability in example.probabilities],
                }
            )
    return {
        "pixels": [dict(zip(("levels", "height", "width", "channels"), one, strict=True)) for one in pixels],
        "shifts": [list(map(list, steps)) for steps in shifts],
        "movements": [json.loads(movement) for movement in movements],
        "images": sorted(images.values(), key=lambda image: image["movement"]),
    }


def _movement(movement: Movement, sizes: tuple[int, int, int]) -> dict[str, object]:
    """Mode, background as levels for each channel, and the size of what the model sees of the placed image."""
    height, width, channels = sizes
    background = movement.background if isinstance(movement.background, tuple) else (movement.background,) * channels
    seen = (height, width) if movement.crop_size is None else movement.crop_size
    levels = [min(max(round(255 * value), 0), 255) for value in background]
    return {"mode": movement.mode, "background": levels, "seen": [seen] * 2 if isinstance(seen, int) else list(seen)}
