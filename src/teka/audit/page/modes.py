"""What the page shows of one mode: words, curves along both axes, and maps of the shifts and phases of each model."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from teka.audit.movement import MODES, Movement
from teka.audit.page.curves import CurveFigure, curve_figure
from teka.audit.page.heat_map import HeatMap, heat_map_chart, heat_scale
from teka.audit.page.notation import is_share, listed, write_shift
from teka.audit.report import AuditReport
from teka.audit.statistics.metrics import CURVES, Metrics
from teka.audit.statistics.phase import PhaseTable

FIRST_CURVES = ("accuracy", "agreement")
"""Shown at once; the others are folded away, unless there is none of these."""
MAP_NUMBERS = (*FIRST_CURVES, "error")
"""Of these the first that is defined is drawn as a map."""
MAP_KINDS = {
    "shifts": "At every shift: {}",
    "sensitivity": "Translation sensitivity",
    "phase": "By phase: {}",
}
"""The maps, and what each is called; braces stand for the number."""


class MapFigure(NamedTuple):
    """A map of the model at a place in the list: a drawing, what stands out in it, and the same as a table.

    The key names it among the elements of the page; the unit is written after each number.
    """

    key: str
    model: int
    name: str
    chart: str
    words: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, list[str]], ...]
    unit: str


class ModeSection(NamedTuple):
    """What is shown of one mode; further curves are folded away, `bands` says how intervals and bands were made."""

    mode: str
    words: tuple[str, ...]
    curves: tuple[CurveFigure, ...]
    more_curves: tuple[CurveFigure, ...]
    bands: str
    maps: tuple[MapFigure, ...]


def mode_sections(reports: Sequence[AuditReport]) -> list[ModeSection]:
    """A section for each mode that any report has, in the order of the reports."""
    modes: dict[str, dict[int, Metrics]] = {}
    for model, report in enumerate(reports):
        for metrics in report.metrics:
            modes.setdefault(metrics.movement.mode, {})[model] = metrics
    return [_section(reports, mode, chosen) for mode, chosen in modes.items()]


def _section(reports: Sequence[AuditReport], mode: str, chosen: Mapping[int, Metrics]) -> ModeSection:
    names = [report.name for report in reports]
    figures = {curve: curve_figure(names, chosen, curve, metric.label) for curve, metric in CURVES.items()}
    drawn = {curve: figure for curve, figure in figures.items() if figure}
    first = [curve for curve in FIRST_CURVES if curve in drawn] or list(drawn)[:1]
    return ModeSection(
        mode,
        tuple(dict.fromkeys(mode_words(metrics.movement) for metrics in chosen.values())),
        tuple(drawn[curve] for curve in first),
        tuple(figure for curve, figure in drawn.items() if curve not in first),
        _band_words(chosen),
        tuple(_map_figures(reports, chosen, mode)),
    )


def mode_words(movement: Movement) -> str:
    """What happens at the edge, with the sizes and the background that matter."""
    mode, background = MODES[movement.mode], movement.background
    words = mode.words
    if mode.has_background:
        values = background if isinstance(background, tuple) else (background,)
        words += f" Background: {', '.join(f'{value:g}' for value in values)}."
    for name, size in (("Canvas", movement.canvas_size), ("Window", movement.crop_size)):
        if size is not None:
            words += f" {name}: {' × '.join(map(str, size if isinstance(size, tuple) else (size, size)))} pixels."
    return words


def _band_words(chosen: Mapping[int, Metrics]) -> str:
    confidences = listed(list(dict.fromkeys(f"{100 * metrics.confidence:g} %" for metrics in chosen.values())))
    # What follows a semicolon says how wide the band is.
    methods = dict.fromkeys(
        curve.method.split(";")[0].replace("wilson", "Wilson")
        for metrics in chosen.values()
        for curve in metrics.curves.values()
    )
    return (
        f"The darker band is the {confidences} interval of each shift alone, the paler one holds at all shifts "
        f"together. Intervals: {listed(list(methods))}."
    )


def _map_figures(reports: Sequence[AuditReport], chosen: Mapping[int, Metrics], mode: str) -> list[MapFigure]:
    found = [
        (model, kind, heat_map)
        for model, metrics in chosen.items()
        if all(len(shift) == 2 for shift in metrics.shifts)
        for kind, heat_map in _maps(reports[model], metrics, mode).items()
    ]
    figures = []
    for model, kind, heat_map in found:
        # Maps of one kind and number are compared, so they share a scale.
        beside = [one for _, other, one in found if (other, one.number) == (kind, heat_map.number)]
        figures.append(_map_figure(reports[model].name, model, mode, kind, heat_map, beside))
    return figures


def _maps(report: AuditReport, metrics: Metrics, mode: str) -> dict[str, HeatMap]:
    """The maps of one model by their kinds, in the order of `MAP_KINDS`."""
    maps: dict[str, HeatMap] = {}
    number = next((name for name in MAP_NUMBERS if name in metrics.curves), None)
    if number is not None:
        maps["shifts"] = HeatMap(number, dict(zip(metrics.shifts, metrics.curves[number].values, strict=True)))
    if mode in report.sensitivity:
        sensitivity = report.sensitivity[mode]
        values = dict(zip(sensitivity.shifts, sensitivity.values, strict=True))
        maps["sensitivity"] = HeatMap("sensitivity", values)
    squares = {kind: one for kind, one in maps.items() if one.is_square}
    phases = phase_map(report.phases[mode]) if mode in report.phases else None
    return squares if phases is None else {**squares, "phase": phases}


def phase_map(table: PhaseTable) -> HeatMap | None:
    """The mean of a number over the shifts of each phase, (dy mod stride, dx mod stride); None for a single phase."""
    number = next((name for name in MAP_NUMBERS if name in table.values), None)
    if number is None or len(table.phases) < 2 or len(table.stride) != 2:
        return None
    down, across = table.stride
    values = dict(zip(table.phases, (one.value for one in table.values[number]), strict=True))
    return HeatMap(number, values, f"dy mod {down}", f"dx mod {across}", lambda phase: f"{phase:g}")


def _map_figure(name: str, model: int, mode: str, kind: str, heat_map: HeatMap, beside: Sequence[HeatMap]) -> MapFigure:
    metric = CURVES.get(heat_map.number)
    head = MAP_KINDS[kind].format(metric.label if metric else "")
    unit = " %" if is_share(heat_map.number) else ""
    words = _map_words(kind, heat_map, unit)
    return MapFigure(
        f"{kind}-{model}-{mode}",
        model,
        head,
        heat_map_chart(heat_map, heat_scale(beside), f"{name}, mode {mode}. {head}, a heat map. {words}"),
        words,
        f"{heat_map.down} \\ {heat_map.across}",
        tuple(heat_map.write_place(right) for right in heat_map.columns),
        tuple(heat_map.table()),
        unit,
    )


def _map_words(kind: str, heat_map: HeatMap, unit: str) -> str:
    worst = heat_map.worst
    if worst is None:
        words = f"Everywhere {heat_map.write(next(iter(heat_map.values)))}{unit}."
    else:
        at = f"phase ({worst[0]:g}, {worst[1]:g})" if kind == "phase" else write_shift(worst)
        extreme = "Lowest" if unit else "Highest"
        words = f"{extreme}: {heat_map.write(worst)}{unit} at {at} (bold frame)."
    if kind == "sensitivity":
        return f"{words} How far the answers move on the mean; 1 is as far as those to another image."
    if kind == "phase" and (0, 0) in heat_map.values:
        return f"{words} At multiples of the stride: {heat_map.write((0, 0))}{unit}."
    return words
