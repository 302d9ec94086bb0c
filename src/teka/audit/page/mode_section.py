"""What the page shows of one mode: curves along both axes, and a map of the shifts for each model."""

from collections.abc import Sequence
from dataclasses import dataclass

from teka.audit.page.curve_figure import CurveFigure, curve_figure
from teka.audit.page.heat_map import HeatMap, heat_map_chart, heat_scale
from teka.audit.page.modes import mode_words
from teka.audit.page.notation import listed, write_shift
from teka.audit.page.number import CURVE_NAMES, SHARES, write_number
from teka.audit.page.phase import phase_map
from teka.audit.report import AuditReport
from teka.audit.statistics.metrics import CURVES, Metrics

FIRST_CURVES = ("accuracy", "agreement")
"""Shown at once; the others are folded away, unless there is none of these."""
MAP_KINDS = {
    "shifts": "At every shift: {}",
    "sensitivity": "Translation sensitivity",
    "phase": "By phase: {}",
}
"""The maps, and what each is called; braces stand for the number."""


@dataclass(frozen=True)
class MapFigure:
    """A map of one model.

    Args:
        key: Its name among the elements of the page.
        model: Place of the model's report in the list.
        name: What the map shows.
        chart: The drawing.
        words: What stands out in it.
        corner: What stands in rows and columns.
        columns: Heads of the table's columns.
        rows: Rows of the table: head and cells.
        unit: What is written after each number.
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


@dataclass(frozen=True)
class ModeSection:
    """What is shown of one mode.

    Args:
        mode: Its name.
        words: What happens at the edge; where models differ in it, of each.
        curves: Shown at once.
        more_curves: Folded away.
        bands: How intervals and bands were made.
        maps: Maps, model after model.
    """

    mode: str
    words: tuple[str, ...]
    curves: tuple[CurveFigure, ...]
    more_curves: tuple[CurveFigure, ...]
    bands: str
    maps: tuple[MapFigure, ...]


def mode_sections(reports: Sequence[AuditReport]) -> list[ModeSection]:
    """A section for each mode that any report has, in the order of the reports.

    Args:
        reports: The reports.
    """
    modes = dict.fromkeys(metrics.movement.mode for report in reports for metrics in report.metrics)
    return [_section(reports, mode) for mode in modes]


def _section(reports: Sequence[AuditReport], mode: str) -> ModeSection:
    chosen = {
        model: metrics
        for model, report in enumerate(reports)
        for metrics in report.metrics
        if metrics.movement.mode == mode
    }
    names = [report.name for report in reports]
    figures = {curve: curve_figure(names, chosen, curve, CURVE_NAMES[curve]) for curve in CURVES}
    drawn = {curve: figure for curve, figure in figures.items() if figure}
    first = [curve for curve in FIRST_CURVES if curve in drawn] or list(drawn)[:1]
    return ModeSection(
        mode,
        tuple(dict.fromkeys(mode_words(metrics.movement) for metrics in chosen.values())),
        tuple(drawn[curve] for curve in first),
        tuple(figure for curve, figure in drawn.items() if curve not in first),
        _bands(chosen),
        tuple(_maps(reports, chosen, mode)),
    )


def _bands(chosen: dict[int, Metrics]) -> str:
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


def _maps(reports: Sequence[AuditReport], chosen: dict[int, Metrics], mode: str) -> list[MapFigure]:
    shown: dict[str, dict[int, HeatMap]] = {kind: {} for kind in MAP_KINDS}
    for model, metrics in chosen.items():
        if any(len(shift) != 2 for shift in metrics.shifts):
            continue
        shifts = _shift_map(metrics)
        if shifts and shifts.is_square:
            shown["shifts"][model] = shifts
        sensitivity = reports[model].sensitivity.get(mode)
        if sensitivity:
            one = HeatMap("sensitivity", dict(zip(sensitivity.shifts, sensitivity.values, strict=True)))
            if one.is_square:
                shown["sensitivity"][model] = one
        table = reports[model].phases.get(mode)
        phases = None if table is None else phase_map(table)
        if phases:
            shown["phase"][model] = phases
    figures = []
    for kind, maps in shown.items():
        by_number: dict[str, list[HeatMap]] = {}
        for one in maps.values():
            by_number.setdefault(one.number, []).append(one)
        for model, one in maps.items():
            figures.append(_map_figure(reports[model].name, model, mode, kind, one, by_number[one.number]))
    return sorted(figures, key=lambda figure: figure.model)


def _shift_map(metrics: Metrics) -> HeatMap | None:
    number = next((name for name in (*FIRST_CURVES, "error") if name in metrics.curves), None)
    if number is None:
        return None
    return HeatMap(number, dict(zip(metrics.shifts, metrics.curves[number].values, strict=True)))


def _map_figure(name: str, model: int, mode: str, kind: str, heat_map: HeatMap, beside: Sequence[HeatMap]) -> MapFigure:
    head = MAP_KINDS[kind].format(CURVE_NAMES.get(heat_map.number, ""))
    words = _map_words(kind, heat_map)
    chart = heat_map_chart(heat_map, heat_scale(beside), f"{name}, mode {mode}. {head}, a heat map. {words}")
    return MapFigure(
        f"{kind}-{model}-{mode}",
        model,
        head,
        chart,
        words,
        f"{heat_map.down} \\ {heat_map.across}",
        tuple(heat_map.write_place(right) for right in heat_map.columns),
        tuple(heat_map.table()),
        " %" if heat_map.number in SHARES else "",
    )


def _map_words(kind: str, heat_map: HeatMap) -> str:
    def written(place: tuple[int | float, ...]) -> str:
        unit = " %" if heat_map.number in SHARES else ""
        return f"{write_number(heat_map.number, heat_map.values[place])}{unit}"

    worst, extreme = heat_map.worst, "Lowest" if heat_map.number in SHARES else "Highest"
    if worst is None:
        words = f"Everywhere {written(next(iter(heat_map.values)))}."
    else:
        at = f"phase ({worst[0]:g}, {worst[1]:g})" if kind == "phase" else write_shift(worst)
        words = f"{extreme}: {written(worst)} at {at} (bold frame)."
    if kind == "sensitivity":
        return f"{words} How far the answers move on the mean; 1 is as far as those to another image."
    if kind == "phase" and (0, 0) in heat_map.values:
        return f"{words} At multiples of the stride: {written((0, 0))}."
    return words
