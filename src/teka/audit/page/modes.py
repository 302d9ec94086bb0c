"""Sections of the audit page about the modes of shifting, such as "circular" and "crop"."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from teka.audit.movement import MODES, Movement, parse_background
from teka.audit.page.charts import MOST_BANDS, HeatMap, draw_curves, draw_heat_map
from teka.audit.page.metric_formatting import (
    explain_missing_intervals,
    format_metric_with_unit,
    is_percentage,
)
from teka.audit.report import AuditReport
from teka.audit.statistics.intervals import has_interval
from teka.audit.statistics.metrics import CURVES, Metrics
from teka.reporting.formatting import format_shift, format_size, join_words

# Curves that are visible at once. The others are collapsed, unless there is none of these.
FIRST_CURVES = ("accuracy", "agreement", "overlap", "retrieval")
# The first of these that is defined is drawn as a heat map.
MAP_METRICS = (*FIRST_CURVES, "error")
# Smallest end of the color scale of errors, so that rounding does not look like an effect.
LEAST_WORST_ERROR = 0.01


def mode_sections(reports: Sequence[AuditReport]) -> list[dict[str, Any]]:
    """Return one section of the audit page per mode of shifting, with curves and heat maps."""
    modes = {}
    for model, report in enumerate(reports):
        for metrics in report.metrics:
            modes.setdefault(metrics.movement.mode, {})[model] = metrics
    sections = []
    for mode, by_model in modes.items():
        figures = {}
        for name, metric in CURVES.items():
            if figure := draw_curves(reports, by_model, name, metric.label):
                figures[name] = figure
        first = [name for name in FIRST_CURVES if name in figures] or list(figures)[:1]
        sections.append(
            {
                "mode": mode,
                "words": list(
                    dict.fromkeys(
                        describe_movement(metrics.movement) for metrics in by_model.values()
                    )
                ),
                "curves": [figures[name] for name in first],
                "more_curves": [figures[name] for name in figures if name not in first],
                "bands": _describe_bands(list(by_model.values())),
                "maps": _draw_heat_maps(reports, by_model, mode),
            }
        )
    return sections


def _describe_bands(results: Sequence[Metrics]) -> str:
    if len(results) > MOST_BANDS:
        sentence = f"Intervals of more than {MOST_BANDS} models would hide each other."
    else:
        sentence = (
            f"The dark band is the {format_confidence_levels(results)} interval at each shift. "
            "The pale band contains the whole curve with the same confidence, so it is wider."
        )
    methods = sorted({curve.method for metrics in results for curve in metrics.curves.values()})
    names = [method.replace("wilson", "Wilson score") for method in methods if has_interval(method)]
    note = f"Interval methods: {join_words(names) or 'none'}."
    return f"{sentence} {note} {explain_missing_intervals(methods)}".strip()


def format_confidence_levels(metrics: Iterable[Metrics]) -> str:
    """Format the confidence levels of the intervals of metrics, such as "95 %"."""
    levels = sorted({result.confidence for result in metrics})
    return join_words([f"{100 * level:g} %" for level in levels])


def describe_movement(movement: Movement) -> str:
    """Describe a mode of shifting for the reader of a page, including what happens at the edges.

    If the mode has a background, a canvas or a window, the text also says its value or size.
    """
    mode = MODES[movement.mode]
    words = mode.description
    if mode.has_background:
        values = parse_background(movement.background)
        words += f" Background: {', '.join(f'{value:g}' for value in values)}."
    for name, size in (("Canvas", movement.canvas_size), ("Window", movement.crop_size)):
        if size is not None:
            sides = (size, size) if isinstance(size, int) else size
            words += f" {name}: {format_size(sides)} pixels."
    return words


def _draw_heat_maps(
    reports: Sequence[AuditReport], by_model: Mapping[int, Metrics], mode: str
) -> list[dict[str, Any]]:
    """Draw one heat map for each model, with the same color scale for the same metric."""
    maps = {}
    for model, metrics in by_model.items():
        metric = next((name for name in MAP_METRICS if name in metrics.curves), None)
        # If no shift moves both axes, the curves show the same.
        if metric is not None and any(map(all, metrics.shifts)):
            values = dict(zip(metrics.shifts, metrics.curves[metric].values, strict=True))
            maps[model] = HeatMap(metric, values)
    figures = []
    for model, heat_map in maps.items():
        title = f"At each shift: {CURVES[heat_map.metric].label}"
        words = _describe_map(heat_map)
        limits = _color_limits([each for each in maps.values() if each.metric == heat_map.metric])
        description = f"{reports[model].name}, mode {mode}: {title}. {words}"
        figures.append(
            {
                "model": model,
                "name": title,
                "chart": draw_heat_map(heat_map, limits, description),
                "words": words,
            }
        )
    return figures


def _color_limits(maps: Sequence[HeatMap]) -> tuple[float, float]:
    """Return the values at the best and the worst end of the color scale of heat maps."""
    values = [value for heat_map in maps for value in heat_map.values.values()]
    if is_percentage(maps[0].metric):
        return 1.0, min(*values, 0.9)
    return 0.0, max(*values, LEAST_WORST_ERROR)


def _describe_map(heat_map: HeatMap) -> str:
    metric = heat_map.metric
    worst = heat_map.worst_shift
    if worst is None:
        value = next(iter(heat_map.values.values()))
        return f"{format_metric_with_unit(metric, value)} at every shift."
    extreme = "Lowest" if is_percentage(metric) else "Highest"
    value = format_metric_with_unit(metric, heat_map.values[worst])
    return f"{extreme}: {value} at {format_shift(worst)} (bold frame)."
