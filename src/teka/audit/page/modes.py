"""The sections of an audit page about the modes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from teka.audit.movement import MODES, Movement
from teka.audit.page.charts import MOST_BANDS, HeatMap, curve_figure, heat_map_chart
from teka.audit.page.metric_formatting import is_share, missing_intervals, write_number
from teka.audit.report import AuditReport
from teka.audit.statistics.estimate import has_interval
from teka.audit.statistics.metrics import CURVES, Metrics
from teka.audit.statistics.phase import PhaseTable
from teka.reporting.formatting import listed, write_shift, write_step

# Curves that are visible at once. The others are collapsed, unless there is none of these.
FIRST_CURVES = ("accuracy", "agreement", "overlap", "retrieval")
# The first of these that is defined is drawn as a heat map.
MAP_METRICS = (*FIRST_CURVES, "error")
MAP_TITLES = {
    "shifts": "At every shift: {}",
    "sensitivity": "Sensitivity to shifts",
    "phase": "By phase of the stride: {}",
}
# Smallest end of a color scale, so that rounding does not look like an effect.
LEAST_WORST = {"sensitivity": 1.0, "error": 0.01}


def mode_sections(reports: Sequence[AuditReport]) -> list[dict[str, Any]]:
    """Return the content of a section for each mode of any report."""
    modes: dict[str, dict[int, Metrics]] = {}
    for model, report in enumerate(reports):
        for metrics in report.metrics:
            modes.setdefault(metrics.movement.mode, {})[model] = metrics
    names = [report.name for report in reports]
    sections = []
    for mode, by_model in modes.items():
        figures = {}
        for name, metric in CURVES.items():
            curves = {
                model: (metrics.shifts, metrics.curves.get(name))
                for model, metrics in by_model.items()
            }
            figure = curve_figure(names, curves, metric.label, is_percent=is_share(name))
            if figure:
                figures[name] = figure
        first = [name for name in FIRST_CURVES if name in figures] or list(figures)[:1]
        methods = {
            curve.method for metrics in by_model.values() for curve in metrics.curves.values()
        }
        sections.append(
            {
                "mode": mode,
                "words": list(
                    dict.fromkeys(describe_mode(metrics.movement) for metrics in by_model.values())
                ),
                "curves": [figures[name] for name in first],
                "more_curves": [figures[name] for name in figures if name not in first],
                "bands": _describe_bands(by_model.values(), methods),
                **_heat_maps(reports, by_model, mode),
            }
        )
    return sections


def _describe_bands(metrics: Iterable[Metrics], methods: set[str]) -> str:
    metrics = list(metrics)
    if len(metrics) > MOST_BANDS:
        sentence = f"Intervals of more than {MOST_BANDS} models would hide each other."
    else:
        sentence = (
            f"The dark band is the {confidences(metrics)} interval of each shift alone, the pale "
            "band holds at all shifts together."
        )
    # The words after a semicolon are about the band.
    names = sorted(
        {
            method.split(";")[0].replace("wilson", "Wilson")
            for method in methods
            if has_interval(method)
        }
    )
    return f"{sentence} Intervals: {listed(names) or 'none'}. {missing_intervals(methods)}".strip()


def confidences(metrics: Iterable[Metrics]) -> str:
    """Write the confidences of the intervals, such as "95 %"."""
    return listed([f"{100 * each:g} %" for each in sorted({one.confidence for one in metrics})])


def describe_mode(movement: Movement) -> str:
    """Describe what happens at the edges, with the relevant sizes and the background."""
    mode, background = MODES[movement.mode], movement.background
    words = mode.words
    if mode.has_background:
        values = background if isinstance(background, tuple) else (background,)
        words += f" Background: {', '.join(f'{value:g}' for value in values)}."
    for name, size in (("Canvas", movement.canvas_size), ("Window", movement.crop_size)):
        if size is not None:
            sides = size if isinstance(size, tuple) else (size, size)
            words += f" {name}: {' × '.join(map(str, sides))} pixels."
    return words


def _heat_maps(
    reports: Sequence[AuditReport], by_model: Mapping[int, Metrics], mode: str
) -> dict[str, list[dict[str, Any]]]:
    maps = [
        (model, kind, heat_map)
        for model, metrics in by_model.items()
        if all(len(shift) == 2 for shift in metrics.shifts)
        for kind, heat_map in _maps_of(reports[model], metrics, mode).items()
    ]
    figures: dict[str, list[dict[str, Any]]] = {"maps": [], "more_maps": []}
    for model, kind, heat_map in maps:
        metric = CURVES.get(heat_map.metric)
        title = MAP_TITLES[kind].format(metric.label if metric else "")
        words = _describe_map(kind, heat_map)
        # Maps of the same kind have the same colors.
        limits = _color_limits([other for _, other_kind, other in maps if other_kind == kind])
        description = f"{reports[model].name}, mode {mode}: {title}. {words}"
        columns = sorted({right for _, right in heat_map.values})
        rows = [
            (
                write_step(down),
                [
                    write_number(heat_map.metric, heat_map.values[down, right])
                    if (down, right) in heat_map.values
                    else "–"
                    for right in columns
                ],
            )
            for down in sorted({down for down, _ in heat_map.values})
        ]
        figure = {
            "model": model,
            "name": title,
            "chart": heat_map_chart(heat_map, limits, description),
            "words": words,
            "corner": f"{heat_map.down} \\ {heat_map.right}",
            "columns": list(map(write_step, columns)),
            "rows": rows,
        }
        figures["maps" if kind == "shifts" else "more_maps"].append(figure)
    return figures


def _color_limits(maps: Sequence[HeatMap]) -> tuple[float, float]:
    """Return the best and the worst value of heat maps that share a color scale."""
    metric = maps[0].metric
    values = [value for heat_map in maps for value in heat_map.values.values()]
    if is_share(metric):
        return 1.0, min(*values, 0.9)
    return 0.0, max(*values, LEAST_WORST.get(metric, 0.0))


def _maps_of(report: AuditReport, metrics: Metrics, mode: str) -> dict[str, HeatMap]:
    maps = {}
    metric = next((name for name in MAP_METRICS if name in metrics.curves), None)
    if metric is not None:
        values = dict(zip(metrics.shifts, metrics.curves[metric].values, strict=True))
        maps["shifts"] = HeatMap(metric, values)
    sensitivity = report.sensitivity.get(mode)
    if sensitivity is not None:
        values = dict(zip(sensitivity.shifts, sensitivity.values, strict=True))
        maps["sensitivity"] = HeatMap("sensitivity", values)
    # If no shift moves both axes, the curves show the same.
    maps = {
        kind: heat_map
        for kind, heat_map in maps.items()
        if any(down and right for down, right in heat_map.values)
    }
    phases = phase_map(report.phases[mode]) if mode in report.phases else None
    return maps if phases is None else {**maps, "phase": phases}


def phase_map(table: PhaseTable) -> HeatMap | None:
    """Return a heat map of a metric by phase, (dy mod stride, dx mod stride).

    Returns:
        The heat map, or None for a single phase.
    """
    metric = next((name for name in MAP_METRICS if name in table.values), None)
    if metric is None or len(table.phases) < 2 or len(table.stride) != 2:
        return None
    values = [estimate.value for estimate in table.values[metric]]
    down, right = table.stride
    return HeatMap(
        metric, dict(zip(table.phases, values, strict=True)), f"dy mod {down}", f"dx mod {right}"
    )


def _describe_map(kind: str, heat_map: HeatMap) -> str:
    unit = " %" if is_share(heat_map.metric) else ""

    def write(pair: tuple) -> str:
        return f"{write_number(heat_map.metric, heat_map.values[pair])}{unit}"

    worst = heat_map.worst
    if worst is None:
        words = f"Everywhere {write(next(iter(heat_map.values)))}."
    else:
        where = f"phase ({worst[0]:g}, {worst[1]:g})" if kind == "phase" else write_shift(worst)
        extreme = "Lowest" if unit else "Highest"
        words = f"{extreme}: {write(worst)} at {where} (bold frame)."
    if kind == "sensitivity":
        words += (
            " Mean distance to the output for the unshifted image, as a share of the distance to "
            "the output for another image."
        )
    if kind == "phase" and (0, 0) in heat_map.values:
        words += f" At multiples of the stride: {write((0, 0))}."
    return words
