"""A number along one axis of shifts, one line with its band for each model."""

from collections.abc import Sequence
from dataclasses import dataclass

from teka.audit.page.model_style import ModelStyle
from teka.audit.page.notation import write_size, write_step
from teka.audit.page.number import CURVE_NAMES, SHARES, write_number
from teka.audit.page.scale import Scale, share_scale, size_scale
from teka.audit.page.style import GRID
from teka.audit.page.svg import drawing, element, label, rule, title
from teka.audit.statistics.metrics import Metrics

WIDTH, HEIGHT = 360.0, 222.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 350.0, 8.0, 176.0
MOST_TICKS = 9
AXES = {"dx": (1, "to the right, dx (pixels)"), "dy": (0, "downwards, dy (pixels)")}
"""For each axis, its place in a shift and what its direction is called."""


@dataclass(frozen=True)
class CurvePoint:
    """One shift of a curve.

    Args:
        step: The shift along the axis, in pixels.
        value: The number.
        interval: Its interval.
        band: The band there, which holds at all shifts together.
    """

    step: int | float
    value: float
    interval: tuple[float, float]
    band: tuple[float, float]


@dataclass(frozen=True)
class CurveLine:
    """One model's curve along an axis.

    Args:
        name: The model.
        style: How it is drawn.
        points: From the lowest shift to the highest.
    """

    name: str
    style: ModelStyle
    points: tuple[CurvePoint, ...]


def curve_along(metrics: Metrics, curve: str, axis: str) -> tuple[CurvePoint, ...]:
    """The points of a curve at which only one axis is moved; none if there is no such curve.

    Args:
        metrics: The numbers of a mode.
        curve: Name of the curve.
        axis: "dx" or "dy".
    """
    found, (at, _) = metrics.curves.get(curve), AXES[axis]
    if found is None or any(len(shift) != len(AXES) for shift in metrics.shifts):
        return ()
    places = [index for index, shift in enumerate(metrics.shifts) if shift[1 - at] == 0]
    points = [
        CurvePoint(
            metrics.shifts[index][at],
            found.values[index],
            (found.lower[index], found.upper[index]),
            (found.band_lower[index], found.band_upper[index]),
        )
        for index in places
    ]
    return tuple(sorted(points, key=lambda point: point.step))


def curve_chart(curve: str, axis: str, lines: Sequence[CurveLine], all_lines: Sequence[CurveLine]) -> str:
    """Draw a number against shifts along one axis.

    Args:
        curve: Name of the curve.
        axis: "dx" or "dy".
        lines: What to draw.
        all_lines: The lines of all axes, which share one scale.
    """
    steps = sorted({point.step for line in lines for point in line.points})
    across = Scale(steps[0], steps[-1], LEFT + 6, RIGHT - 6)
    up = _upwards(curve, all_lines)
    parts = []
    for tick in up.ticks(5):
        y = up.place(tick)
        parts += [rule(LEFT, y, RIGHT, y), label(_tick(curve, tick), LEFT - 6, y + 4, anchor="end")]
    for step in _chosen(steps):
        x = across.place(step)
        parts += [rule(x, BOTTOM, x, BOTTOM + 4), label(write_step(step), x, BOTTOM + 18)]
    if steps[0] <= 0 <= steps[-1]:
        parts.append(rule(across.place(0), TOP, across.place(0), BOTTOM, GRID, "2 3"))
    parts.append(label(AXES[axis][1], (LEFT + RIGHT) / 2, HEIGHT - 6))
    drawn = [_draw_line(curve, axis, line, across, up, len(lines) - 1 - index) for index, line in enumerate(lines)]
    # Bands first, so that none hides a line.
    parts += [bands for bands, _ in drawn] + [points for _, points in drawn]
    return drawing(WIDTH, HEIGHT, _describe(curve, axis, lines), *parts)


def _upwards(curve: str, lines: Sequence[CurveLine]) -> Scale:
    points = [point for line in lines for point in line.points]
    if curve in SHARES:
        return share_scale([min(point.value, point.band[0]) for point in points], BOTTOM, TOP)
    return size_scale([number for point in points for number in (point.value, point.band[1])], BOTTOM, TOP)


def _tick(curve: str, tick: float) -> str:
    return f"{100 * tick:g}" if curve in SHARES else write_size(tick)


def _chosen(steps: Sequence[int | float]) -> Sequence[int | float]:
    every = -(-len(steps) // MOST_TICKS)
    if every == 1:
        return steps
    # Counted from the zero shift, so that it has a tick.
    zero = steps.index(0) if 0 in steps else 0
    return [step for index, step in enumerate(steps) if (index - zero) % every == 0]


def _draw_line(curve: str, axis: str, line: CurveLine, across: Scale, up: Scale, above: int) -> tuple[str, str]:
    def area(ends: Sequence[tuple[float, float]], opacity: float) -> str:
        there = [(across.place(point.step), up.place(high)) for point, (_, high) in zip(line.points, ends, strict=True)]
        back = [(across.place(point.step), up.place(low)) for point, (low, _) in zip(line.points, ends, strict=True)]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in [*there, *back[::-1]]) + "z"
        return element("path", {"d": path, "fill": line.style.colour, "fill-opacity": opacity})

    bands = area([point.band for point in line.points], 0.13) + area([point.interval for point in line.points], 0.15)
    places = [(across.place(point.step), up.place(point.value)) for point in line.points]
    size = min(1.0, max(0.45, 17 / len(places)))
    # Earlier lines are wider, so that curves that lie on one another are all seen.
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    parts = [line.style.line(path, 1.8 + 0.7 * min(above, 3))]
    for point, (x, y) in zip(line.points, places, strict=True):
        parts.append(line.style.point(x, y, size * (4 + 0.8 * min(above, 3)), title(_name(curve, axis, line, point))))
    return bands, "".join(parts)


def _name(curve: str, axis: str, line: CurveLine, point: CurvePoint) -> str:
    low, high = (write_number(curve, end) for end in point.interval)
    return f"{line.name}, {axis} {write_step(point.step)}: {write_number(curve, point.value)} ({low}–{high})"


def _describe(curve: str, axis: str, lines: Sequence[CurveLine]) -> str:
    words = []
    for line in lines:
        ends = sorted(line.points, key=lambda point: point.value)
        words.append(
            f"{line.name} lies between {write_number(curve, ends[0].value)} at {write_step(ends[0].step)} and "
            f"{write_number(curve, ends[-1].value)} at {write_step(ends[-1].step)}"
        )
    return f"Line chart of {CURVE_NAMES[curve]} against {axis} in pixels: {'; '.join(words)}."
