"""A number along both axes of shifts: a chart for each axis, with a line and its bands for each model."""

import itertools
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from teka.audit.page import svg
from teka.audit.page.notation import is_share, write_number, write_size, write_step
from teka.audit.page.style import GRID, LineStyle, chosen_ticks, line_style
from teka.audit.statistics.metrics import CURVES, Metrics

WIDTH, HEIGHT = 360.0, 222.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 350.0, 8.0, 176.0
AXES = {"dx": (1, "to the right, dx (pixels)"), "dy": (0, "downwards, dy (pixels)")}
"""For each axis, its place in a shift and what its direction is called."""


class CurvePoint(NamedTuple):
    """One shift of a curve in pixels: the number, its own interval, and the band that holds at all shifts together."""

    step: int | float
    value: float
    interval: tuple[float, float]
    band: tuple[float, float]


class CurveLine(NamedTuple):
    """One model's curve along an axis, from the lowest shift to the highest."""

    name: str
    style: LineStyle
    points: tuple[CurvePoint, ...]


def curve_figure(names: Sequence[str], metrics: Mapping[int, Metrics], curve: str, title: str) -> dict[str, Any]:
    """A drawing of a curve for each axis, and the places of the models that are drawn; empty if there is none."""
    lines: dict[str, dict[int, CurveLine]] = {axis: {} for axis in AXES}
    for axis, of_axis in lines.items():
        for at, one in metrics.items():
            if len(points := curve_along(one, curve, axis)) > 1:
                of_axis[at] = CurveLine(names[at], line_style(at), points)
    every = [line for of_axis in lines.values() for line in of_axis.values()]
    charts = tuple(curve_chart(curve, axis, list(found.values()), every) for axis, found in lines.items() if found)
    models = tuple(at for at in metrics if any(at in of_axis for of_axis in lines.values()))
    return {"name": title, "charts": charts, "models": models} if charts else {}


def curve_along(metrics: Metrics, curve: str, axis: str) -> tuple[CurvePoint, ...]:
    """The points of a curve at which only one axis is moved; none if there is no such curve."""
    found, (at, _) = metrics.curves.get(curve), AXES[axis]
    if found is None or any(len(shift) != len(AXES) for shift in metrics.shifts):
        return ()
    intervals = zip(found.lower, found.upper, strict=True)
    bands = zip(found.band_lower, found.band_upper, strict=True)
    points = zip(metrics.shifts, found.values, intervals, bands, strict=True)
    chosen = [CurvePoint(shift[at], value, one, band) for shift, value, one, band in points if shift[1 - at] == 0]
    return tuple(sorted(chosen))


def curve_chart(curve: str, axis: str, lines: Sequence[CurveLine], all_lines: Sequence[CurveLine]) -> str:
    """Draw a number against shifts along one axis, on the scale of the lines of all axes."""
    steps = sorted({point.step for line in lines for point in line.points})
    across = svg.Scale(steps[0], steps[-1], LEFT + 6, RIGHT - 6)
    points = [point for line in all_lines for point in line.points]
    scale, end = (svg.share_scale, 0) if is_share(curve) else (svg.size_scale, 1)
    up = scale([number for point in points for number in (point.value, point.band[end])], BOTTOM, TOP)
    parts = []
    for tick in up.ticks(5):
        y = up.place(tick)
        words = f"{100 * tick:g}" if is_share(curve) else write_size(tick)
        parts += [svg.rule(LEFT, y, RIGHT, y), svg.label(words, LEFT - 6, y + 4, anchor="end")]
    for at in chosen_ticks(steps):
        x = across.place(steps[at])
        parts += [svg.rule(x, BOTTOM, x, BOTTOM + 4), svg.label(write_step(steps[at]), x, BOTTOM + 18)]
    if steps[0] <= 0 <= steps[-1]:
        parts.append(svg.rule(across.place(0), TOP, across.place(0), BOTTOM, GRID, "2 3"))
    parts.append(svg.label(AXES[axis][1], (LEFT + RIGHT) / 2, HEIGHT - 6))
    # Bands first, so that none hides a line.
    for line, (read, opacity) in itertools.product(lines, ((attrgetter("band"), 0.13), (attrgetter("interval"), 0.15))):
        low, high = ([(across.place(one.step), up.place(read(one)[at])) for one in line.points] for at in (0, 1))
        path = f"{svg.polygon([*high, *low[::-1]])}z"
        parts.append(svg.element("path", {"d": path, "fill": line.style.colour, "fill-opacity": opacity}))
    for at, line in enumerate(lines):
        places = [(across.place(point.step), up.place(point.value)) for point in line.points]
        # Earlier lines are wider, so that curves that lie on one another are all seen.
        size, above = min(1.0, max(0.45, 17 / len(places))), min(len(lines) - 1 - at, 3)
        parts.append(svg.styled_line(line.style, svg.polygon(places), 1.8 + 0.7 * above))
        for point, (x, y) in zip(line.points, places, strict=True):
            value, low, high = (write_number(curve, number) for number in (point.value, *point.interval))
            words = f"{line.name}, {axis} {write_step(point.step)}: {value} ({low}–{high})"
            parts.append(svg.styled_point(line.style, x, y, size * (4 + 0.8 * above), svg.title(words)))
    said = []
    for line in lines:
        ends = sorted(line.points, key=lambda point: point.value)
        low, high = (f"{write_number(curve, end.value)} at {write_step(end.step)}" for end in (ends[0], ends[-1]))
        said.append(f"{line.name} lies between {low} and {high}")
    description = f"Line chart of {CURVES[curve].label} against {axis} in pixels: {'; '.join(said)}."
    return svg.drawing(WIDTH, HEIGHT, description, *parts)
