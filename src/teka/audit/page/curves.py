"""A number along both axes of shifts: a chart for each axis, with a line and its bands for each model."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from teka.audit.page.notation import is_share, write_number, write_size, write_step
from teka.audit.page.style import GRID, LineStyle, chosen_ticks, line_style
from teka.audit.page.svg import (
    Scale,
    drawing,
    element,
    label,
    polygon,
    rule,
    share_scale,
    size_scale,
    styled_line,
    styled_point,
    title,
)
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


class CurveFigure(NamedTuple):
    """What a number is, a drawing for each axis, and the places of the models that are drawn, for the legend."""

    name: str
    charts: tuple[str, ...]
    models: tuple[int, ...]


def curve_figure(names: Sequence[str], metrics: Mapping[int, Metrics], curve: str, title: str) -> CurveFigure | None:
    """The charts of a curve of some of the named models, by their places; None if there is no such curve."""
    along = {
        axis: {at: points for at, one in metrics.items() if len(points := curve_along(one, curve, axis)) > 1}
        for axis in AXES
    }
    lines = {
        axis: [CurveLine(names[at], line_style(at), points) for at, points in found.items()]
        for axis, found in along.items()
        if found
    }
    every = [line for of_axis in lines.values() for line in of_axis]
    charts = tuple(curve_chart(curve, axis, of_axis, every) for axis, of_axis in lines.items())
    models = tuple(at for at in metrics if any(at in found for found in along.values()))
    return CurveFigure(title, charts, models) if charts else None


def curve_along(metrics: Metrics, curve: str, axis: str) -> tuple[CurvePoint, ...]:
    """The points of a curve at which only one axis is moved; none if there is no such curve."""
    found, (at, _) = metrics.curves.get(curve), AXES[axis]
    if found is None or any(len(shift) != len(AXES) for shift in metrics.shifts):
        return ()
    numbers = zip(found.values, found.lower, found.upper, found.band_lower, found.band_upper, strict=True)
    points = [
        CurvePoint(shift[at], value, (lower, upper), (band_lower, band_upper))
        for shift, (value, lower, upper, band_lower, band_upper) in zip(metrics.shifts, numbers, strict=True)
        if shift[1 - at] == 0
    ]
    return tuple(sorted(points))


def curve_chart(curve: str, axis: str, lines: Sequence[CurveLine], all_lines: Sequence[CurveLine]) -> str:
    """Draw a number against shifts along one axis, on the scale of the lines of all axes."""
    steps = sorted({point.step for line in lines for point in line.points})
    across = Scale(steps[0], steps[-1], LEFT + 6, RIGHT - 6)
    points = [point for line in all_lines for point in line.points]
    scale, end = (share_scale, 0) if is_share(curve) else (size_scale, 1)
    up = scale([number for point in points for number in (point.value, point.band[end])], BOTTOM, TOP)
    parts = []
    for tick in up.ticks(5):
        y = up.place(tick)
        words = f"{100 * tick:g}" if is_share(curve) else write_size(tick)
        parts += [rule(LEFT, y, RIGHT, y), label(words, LEFT - 6, y + 4, anchor="end")]
    for at in chosen_ticks(steps):
        x = across.place(steps[at])
        parts += [rule(x, BOTTOM, x, BOTTOM + 4), label(write_step(steps[at]), x, BOTTOM + 18)]
    if steps[0] <= 0 <= steps[-1]:
        parts.append(rule(across.place(0), TOP, across.place(0), BOTTOM, GRID, "2 3"))
    parts.append(label(AXES[axis][1], (LEFT + RIGHT) / 2, HEIGHT - 6))
    # Bands first, so that none hides a line.
    parts += [_bands(line, across, up) for line in lines]
    parts += [_line(curve, axis, line, across, up, len(lines) - 1 - at) for at, line in enumerate(lines)]
    return drawing(WIDTH, HEIGHT, _describe(curve, axis, lines), *parts)


def _bands(line: CurveLine, across: Scale, up: Scale) -> str:
    areas = []
    for ends, opacity in (([point.band for point in line.points], 0.13), ([p.interval for p in line.points], 0.15)):
        places = [across.place(point.step) for point in line.points]
        there = [(x, up.place(high)) for x, (_, high) in zip(places, ends, strict=True)]
        back = [(x, up.place(low)) for x, (low, _) in zip(places, ends, strict=True)]
        path = f"{polygon([*there, *back[::-1]])}z"
        areas.append(element("path", {"d": path, "fill": line.style.colour, "fill-opacity": opacity}))
    return "".join(areas)


def _line(curve: str, axis: str, line: CurveLine, across: Scale, up: Scale, above: int) -> str:
    places = [(across.place(point.step), up.place(point.value)) for point in line.points]
    size = min(1.0, max(0.45, 17 / len(places)))
    # Earlier lines are wider, so that curves that lie on one another are all seen.
    parts = [styled_line(line.style, polygon(places), 1.8 + 0.7 * min(above, 3))]
    for point, (x, y) in zip(line.points, places, strict=True):
        value, low, high = (write_number(curve, number) for number in (point.value, *point.interval))
        words = f"{line.name}, {axis} {write_step(point.step)}: {value} ({low}–{high})"
        parts.append(styled_point(line.style, x, y, size * (4 + 0.8 * min(above, 3)), title(words)))
    return "".join(parts)


def _describe(curve: str, axis: str, lines: Sequence[CurveLine]) -> str:
    words = []
    for line in lines:
        ends = sorted(line.points, key=lambda point: point.value)
        low, high = (f"{write_number(curve, end.value)} at {write_step(end.step)}" for end in (ends[0], ends[-1]))
        words.append(f"{line.name} lies between {low} and {high}")
    return f"Line chart of {CURVES[curve].label} against {axis} in pixels: {'; '.join(words)}."
