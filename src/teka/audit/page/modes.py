"""What the page shows of one mode: words, curves along both axes, and maps of the shifts and phases of each model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from teka.audit.movement import MODES, Movement
from teka.audit.page.curves import MOST_BANDS, curve_figure, quantity_of
from teka.audit.page.metric_formatting import is_share, missing_intervals, write_number
from teka.audit.report import AuditReport
from teka.audit.statistics.estimate import has_interval
from teka.audit.statistics.metrics import CURVES, Metrics
from teka.audit.statistics.phase import PhaseTable
from teka.reporting.formatting import listed, write_shift, write_step
from teka.reporting.style import HEAT_LEVELS, INK, chosen_ticks, heat_colour, ink_on
from teka.reporting.svg import Scale, drawing, element, label, share_scale, ticks
from teka.reporting.tables import csv_text

Pair = tuple[int | float, ...]
WIDTH, LEFT, TOP, SIDE = 360.0, 46.0, 10.0, 306.0
MOST_WRITTEN = 8  # up to so many cells along an axis have their number written in them
LEAST_HIGH = {
    "sensitivity": 1.0,
    "error": 0.01,
}  # at least the end of a scale: rounding does not look like much
NOT_EVALUATED = "#e3e7ec"


@dataclass(frozen=True)
class HeatMap:
    """A curve or other number at those pairs (dy, dx) that were measured."""

    number: str
    values: Mapping[Pair, float]
    down: str = "downwards, dy (pixels)"
    across: str = "to the right, dx (pixels)"
    write_place: Callable[[int | float], str] = write_step

    @cached_property
    def rows(self) -> list[int | float]:
        """The steps dy, from the top of the map to its bottom."""
        return sorted({down for down, _ in self.values})

    @cached_property
    def columns(self) -> list[int | float]:
        """The steps dx, from left to right."""
        return sorted({right for _, right in self.values})

    @property
    def worst(self) -> Pair | None:
        """The pair at which the number is worst, the first of equals; None where it is the same everywhere."""
        if len(set(self.values.values())) == 1:
            return None
        return (min if is_share(self.number) else max)(self.values, key=self.values.__getitem__)

    def write(self, pair: Pair) -> str:
        """The number at a pair, "–" where it was not measured."""
        return write_number(self.number, self.values[pair]) if pair in self.values else "–"

    def table(self) -> list[tuple[str, list[str]]]:
        """For each dy, how it is written and the number at each dx."""
        return [
            (self.write_place(down), [self.write((down, right)) for right in self.columns])
            for down in self.rows
        ]

    def numbers(self, label: str) -> str:
        """Every pair and its number, as comma-separated values."""
        factor = 100.0 if is_share(self.number) else 1.0
        rows = ([down, right, factor * value] for (down, right), value in self.values.items())
        return csv_text((self.down, self.across, label), rows)


def heat_scale(maps: Sequence[HeatMap]) -> Scale:
    """The scale of maps of one number that are to be compared, from 0 for good to 1 for bad."""
    values = [value for one in maps for value in one.values.values()]
    if is_share(maps[0].number):
        return share_scale(values, 1.0, 0.0)
    return Scale(0.0, max(*values, LEAST_HIGH.get(maps[0].number, 0.0)), 0.0, 1.0)


def heat_map_chart(heat_map: HeatMap, scale: Scale, description: str) -> str:
    """Draw a map on a scale that `heat_scale` gave; the darker, the worse."""
    rows, columns = heat_map.rows, heat_map.columns
    side = min(SIDE / len(columns), SIDE / len(rows), 60.0)
    width, height = side * len(columns), side * len(rows)
    left = LEFT + (SIDE - width) / 2
    places = {
        one: (left + columns.index(one[1]) * side, TOP + rows.index(one[0]) * side)
        for one in heat_map.values
    }
    parts = [_cells(heat_map, scale, left, side)]
    if max(len(rows), len(columns)) <= MOST_WRITTEN:
        longest = max(len(heat_map.write(pair)) for pair in places)
        size = min(12.0, side / 2.9, 1.5 * side / longest)  # so that it stays within its cell
        for pair, (x, y) in places.items():
            colour = ink_on(heat_colour(scale.place(heat_map.values[pair])))
            parts.append(
                label(
                    heat_map.write(pair),
                    x + side / 2,
                    y + side / 2 + size / 3,
                    size=size,
                    colour=colour,
                )
            )
    # A frame around the unshifted image and a bold one around the worst.
    for pair, strokes in {(0, 0): (2.6, 1.0), heat_map.worst: (4.4, 2.2)}.items():
        for colour, stroke in zip(("#fff", INK), strokes, strict=True) if pair in places else ():
            box = {
                "x": places[pair][0],
                "y": places[pair][1],
                "width": side,
                "height": side,
                "fill": "none",
            }
            parts.append(element("rect", {**box, "stroke": colour, "stroke-width": stroke}))
    beside = (
        (heat_map.write_place(rows[at]), left - 6, TOP + (at + 0.5) * side + 4)
        for at in chosen_ticks(rows)
    )
    below = (
        (heat_map.write_place(columns[at]), left + (at + 0.5) * side)
        for at in chosen_ticks(columns)
    )
    parts.append(ticks("left", *(label(*one, anchor="end") for one in beside)))
    parts.append(ticks("below", *(label(*one, TOP + height + 15) for one in below)))
    parts.append(label(heat_map.across, left + width / 2, TOP + height + 32))
    x, y = left - 36, TOP + height / 2
    parts.append(
        element("g", {"transform": f"rotate(-90 {x:.1f} {y:.1f})"}, label(heat_map.down, x, y + 4))
    )
    parts.append(_legend(heat_map, scale, TOP + height + 44))
    return drawing(WIDTH, TOP + height + 78, description, *parts)


def _cells(heat_map: HeatMap, scale: Scale, left: float, side: float) -> str:
    # Cells of one colour are one path, so that a map of thousands of shifts stays small.
    paths: dict[str, str] = {}
    for row, down in enumerate(heat_map.rows):
        for column, right in enumerate(heat_map.columns):
            value = heat_map.values.get((down, right))
            colour = NOT_EVALUATED if value is None else heat_colour(scale.place(value))
            paths[colour] = paths.get(colour, "") + f"M{column} {row}h1v1h-1z"
    place = {
        "transform": f"translate({left:.2f} {TOP}) scale({side:.4f})",
        "shape-rendering": "crispEdges",
    }
    drawn = [element("path", {"d": path, "fill": colour}) for colour, path in paths.items()]
    ground = {
        "class": "cells",
        "width": len(heat_map.columns),
        "height": len(heat_map.rows),
        "fill": "#fff",
    }
    return element("g", place, element("rect", ground), *drawn)


def _legend(heat_map: HeatMap, scale: Scale, top: float) -> str:
    left, width = LEFT + 38, 150.0
    levels = enumerate(heat_colour(at / (HEAT_LEVELS - 1)) for at in range(HEAT_LEVELS))
    move = f"translate({left} {top:.2f}) scale({width / HEAT_LEVELS} 9)"
    place = {"transform": move, "shape-rendering": "crispEdges"}
    parts = [
        element(
            "g",
            place,
            *(element("path", {"d": f"M{at} 0h1.1v1h-1.1z", "fill": one}) for at, one in levels),
        )
    ]
    shares = is_share(heat_map.number)
    good, bad = (scale.high, scale.low) if shares else (scale.low, scale.high)
    for at, value, anchor in ((left - 6, good, "end"), (left + width + 6, bad, "start")):
        parts.append(
            label(write_number(heat_map.number, value) + " %" * shares, at, top + 9, anchor=anchor)
        )
    if len(heat_map.rows) * len(heat_map.columns) > len(heat_map.values):
        parts.append(
            element("rect", {"x": 264, "y": top, "width": 9, "height": 9, "fill": NOT_EVALUATED})
        )
        parts.append(label("not evaluated", 277.0, top + 9, anchor="start"))
    return "".join(parts)


# Shown at once; the others are folded away, unless there is none of these.
FIRST_CURVES = ("accuracy", "agreement", "overlap", "retrieval")
MAP_NUMBERS = (*FIRST_CURVES, "error")  # of these the first that is defined is drawn as a map
MAP_KINDS = {
    "shifts": "At every shift: {}",
    "sensitivity": "Translation sensitivity",
    "phase": "By phase: {}",
}
"""The maps, and what each is called; braces stand for the number."""


def mode_sections(reports: Sequence[AuditReport]) -> list[dict[str, Any]]:
    """A section for each mode that any report has, in the order of the reports."""
    modes: dict[str, dict[int, Metrics]] = {}
    for model, report in enumerate(reports):
        for metrics in report.metrics:
            modes.setdefault(metrics.movement.mode, {})[model] = metrics
    names, sections = [report.name for report in reports], []
    for mode, chosen in modes.items():
        figures = {
            curve: curve_figure(
                names,
                {at: (one.shifts, one.curves.get(curve)) for at, one in chosen.items()},
                quantity_of(curve),
                metric.label,
            )
            for curve, metric in CURVES.items()
        }
        drawn = {curve: figure for curve, figure in figures.items() if figure}
        first = [curve for curve in FIRST_CURVES if curve in drawn] or list(drawn)[:1]
        darker = (
            f"The darker band is the {confidences(chosen.values())} interval of each shift alone"
        )
        paler = f"{darker}, the paler one holds at all shifts together."
        # What follows a semicolon says how wide the band is.
        found = {curve.method for metrics in chosen.values() for curve in metrics.curves.values()}
        methods = sorted(
            {one.split(";")[0].replace("wilson", "Wilson") for one in found if has_interval(one)}
        )
        if len(chosen) > MOST_BANDS:
            paler = f"Bands of more than {MOST_BANDS} models would hide each other: point at a mark for its interval."
        section = {
            "mode": mode,
            "words": list(
                dict.fromkeys(mode_words(metrics.movement) for metrics in chosen.values())
            ),
            "curves": [drawn[curve] for curve in first],
            "more_curves": [figure for curve, figure in drawn.items() if curve not in first],
            "bands": f"{paler} Intervals: {listed(methods) or 'none'}. {missing_intervals(found)}".strip(),
            **_map_figures(reports, chosen, mode),
        }
        sections.append(section)
    return sections


def confidences(metrics: Iterable[Metrics]) -> str:
    """Every confidence that intervals have, as written."""
    return listed(
        [f"{100 * confidence:g} %" for confidence in sorted({one.confidence for one in metrics})]
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


def _map_figures(
    reports: Sequence[AuditReport], chosen: Mapping[int, Metrics], mode: str
) -> dict[str, list[dict[str, Any]]]:
    """Maps of every model: a drawing, what stands out in it, the same as a table; those of no curve are more."""
    found = [
        (model, kind, heat_map)
        for model, metrics in chosen.items()
        if all(len(shift) == 2 for shift in metrics.shifts)
        for kind, heat_map in _maps(reports[model], metrics, mode).items()
    ]
    figures: dict[str, list[dict[str, Any]]] = {"maps": [], "more_maps": []}
    for model, kind, one in found:
        metric = CURVES.get(one.number)
        head = MAP_KINDS[kind].format(metric.label if metric else "")
        unit = " %" if is_share(one.number) else ""
        words = _map_words(kind, one, unit)
        # Maps of one kind and number are compared, so they share a scale.
        scale = heat_scale(
            [map_ for _, other, map_ in found if (other, map_.number) == (kind, one.number)]
        )
        chart = heat_map_chart(
            one, scale, f"{reports[model].name}, mode {mode}. {head}, a heat map. {words}"
        )
        figure = {
            "key": f"{kind}-{model}-{mode}",
            "model": model,
            "name": head,
            "chart": chart,
            "words": words,
        }
        columns = list(map(one.write_place, one.columns))
        table = {"corner": f"{one.down} \\ {one.across}", "columns": columns, "rows": one.table()}
        place = figures["maps" if kind == "shifts" else "more_maps"]
        place.append({**figure, **table, "unit": unit, "numbers": one.numbers(head)})
    return figures


def _maps(report: AuditReport, metrics: Metrics, mode: str) -> dict[str, HeatMap]:
    """The maps of one model by their kinds, in the order of `MAP_KINDS`."""
    maps: dict[str, HeatMap] = {}
    number = next((name for name in MAP_NUMBERS if name in metrics.curves), None)
    if number is not None:
        maps["shifts"] = HeatMap(
            number, dict(zip(metrics.shifts, metrics.curves[number].values, strict=True))
        )
    if sensitivity := report.sensitivity.get(mode):
        maps["sensitivity"] = HeatMap(
            "sensitivity", dict(zip(sensitivity.shifts, sensitivity.values, strict=True))
        )
    # Where no shift moves both axes at once, two curves show as much.
    maps = {
        kind: one for kind, one in maps.items() if any(down and right for down, right in one.values)
    }
    phases = phase_map(report.phases[mode]) if mode in report.phases else None
    return maps if phases is None else {**maps, "phase": phases}


def phase_map(table: PhaseTable) -> HeatMap | None:
    """The mean of a number over the shifts of each phase, (dy mod stride, dx mod stride); None for a single phase."""
    number = next((name for name in MAP_NUMBERS if name in table.values), None)
    if number is None or len(table.phases) < 2 or len(table.stride) != 2:
        return None
    down, across = table.stride
    values = dict(zip(table.phases, (one.value for one in table.values[number]), strict=True))
    return HeatMap(number, values, f"dy mod {down}", f"dx mod {across}", lambda phase: f"{phase:g}")


def _map_words(kind: str, heat_map: HeatMap, unit: str) -> str:
    worst = heat_map.worst
    if worst is None:
        words = f"Everywhere {heat_map.write(next(iter(heat_map.values)))}{unit}."
    else:
        at = f"phase ({worst[0]:g}, {worst[1]:g})" if kind == "phase" else write_shift(worst)
        extreme = "Lowest" if unit else "Highest"
        words = f"{extreme}: {heat_map.write(worst)}{unit} at {at} (bold frame)."
    if kind == "sensitivity":
        return (
            f"{words} How far the answers move on the mean; 1 is as far as those to another image."
        )
    if kind == "phase" and (0, 0) in heat_map.values:
        return f"{words} At multiples of the stride: {heat_map.write((0, 0))}{unit}."
    return words
