"""A number along both axes of shifts: a chart for each axis, with a line and its bands for each model."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from teka.audit.changes import CHANGES
from teka.audit.page.metric_formatting import is_share, write_difference, write_number
from teka.audit.shifts import CheckedShifts
from teka.audit.statistics.estimate import Curve, has_interval
from teka.audit.statistics.metrics import CURVES
from teka.reporting import svg
from teka.reporting.formatting import write_size, write_step
from teka.reporting.style import GRID, SOFT, LineStyle, chosen_ticks, line_style
from teka.reporting.tables import csv_text

WIDTH, HEIGHT = 360.0, 222.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 350.0, 8.0, 176.0
MOST_BANDS = 3  # lines whose bands can be told apart
SHIFT_AXES = {"dx": 1, "dy": 0}  # the place of each in a shift
AXES = {"dx": ("to the right, dx (pixels)", "pixels"), "dy": ("downwards, dy (pixels)", "pixels")}
AXES |= {name: (f"{name} ({one.unit.strip()})", one.unit.strip()) for name, one in CHANGES.items()}
"""For each axis of a chart, what stands below it, and its unit."""
Ends = tuple[float, float]


class CurvePoint(NamedTuple):
    """One shift of a curve in pixels: the number, its own interval, and the band that holds at all shifts together."""

    step: int | float
    value: float
    interval: Ends | None  # as is the band, None where there is none
    band: Ends | None


class CurveLine(NamedTuple):
    """One model's curve along an axis, from the lowest shift to the highest."""

    name: str
    style: LineStyle
    points: tuple[CurvePoint, ...]


class Quantity(NamedTuple):
    """What a chart shows: what it is called, its scale, and how a tick and a number of it are written."""

    label: str
    scale: Callable[[Sequence[float], float, float], svg.Scale]
    ends: tuple[int, ...]  # of bands, 0 the lower, that the scale has room for beside the values
    tick: Callable[[float], str]
    write: Callable[[float], str]
    factor: float = 1.0  # from the number to the unit of the label


def quantity_of(curve: str) -> Quantity:
    """A curve of `metrics.CURVES` as it is drawn."""
    shares = is_share(curve)
    scale, ends, tick = (
        (svg.share_scale, (0,), _percent) if shares else (svg.size_scale, (1,), write_size)
    )
    factor = 100.0 if shares else 1.0
    return Quantity(
        CURVES[curve].label, scale, ends, tick, lambda value: write_number(curve, value), factor
    )


def difference_of(curve: str, reference: str) -> Quantity:
    """The difference of a share of `metrics.CURVES` from that of a reference, in points."""
    label = f"{CURVES[curve].label.removesuffix(' (%)')}, less {reference} (points)"
    return Quantity(
        label,
        svg.signed_scale,
        (0, 1),
        _percent,
        lambda value: write_difference(curve, value),
        100.0,
    )


def _percent(share: float) -> str:
    return f"{100 * share:g}".replace("-", "−")


def curve_figure(
    names: Sequence[str],
    curves: Mapping[int, tuple[CheckedShifts, Curve | None]],
    quantity: Quantity,
    title: str,
) -> dict[str, Any]:
    """A drawing of a curve for each axis, the models that are drawn by their places, the numbers; empty without any."""
    lines: dict[str, dict[int, CurveLine]] = {axis: {} for axis in SHIFT_AXES}
    for axis, of_axis in lines.items():
        for at, (shifts, curve) in curves.items():
            if len(points := curve_along(shifts, curve, axis)) > 1:
                of_axis[at] = CurveLine(names[at], line_style(at), points)
    every = [line for of_axis in lines.values() for line in of_axis.values()]
    charts = tuple(
        curve_chart(quantity, axis, list(found.values()), every)
        for axis, found in lines.items()
        if found
    )
    models = tuple(at for at in curves if any(at in of_axis for of_axis in lines.values()))
    numbers = line_numbers(
        quantity, {axis: list(of_axis.values()) for axis, of_axis in lines.items()}
    )
    return {"name": title, "charts": charts, "models": models, "numbers": numbers} if charts else {}


def line_numbers(quantity: Quantity, lines: Mapping[str, Sequence[CurveLine]]) -> str:
    """Every point of the lines of each axis, as comma-separated values."""
    units = dict.fromkeys(AXES[axis][1] for axis in lines)
    return csv_text(
        (
            "model",
            "axis",
            "/".join(units),
            quantity.label,
            "lower",
            "upper",
            "lower of band",
            "upper of band",
        ),
        (
            (line.name, axis, *_numbers(point, quantity.factor))
            for axis, of_axis in lines.items()
            for line in of_axis
            for point in line.points
        ),
    )


def _numbers(point: CurvePoint, factor: float) -> list[float | int | None]:
    ends = [end for pair in (point.interval, point.band) for end in pair or (None, None)]
    return [point.step, *(None if one is None else factor * one for one in (point.value, *ends))]


def curve_along(shifts: CheckedShifts, curve: Curve | None, axis: str) -> tuple[CurvePoint, ...]:
    """The points of a curve at which only one axis is moved; none if there is no such curve."""
    at = SHIFT_AXES[axis]
    if curve is None or any(len(shift) != len(SHIFT_AXES) for shift in shifts):
        return ()
    return curve_points(shifts, curve, at)


def curve_points(shifts: CheckedShifts, curve: Curve, at: int = 0) -> tuple[CurvePoint, ...]:
    """The points of a curve by the step at one place of the shifts, where every other step is zero."""
    rows = [row for row, shift in enumerate(shifts) if not any(shift[:at] + shift[at + 1 :])]
    points = [CurvePoint(shifts[row][at], curve.values[row], None, None) for row in rows]
    if has_interval(curve.method):
        ends = [(curve.lower[row], curve.upper[row]) for row in rows]
        bands = [(curve.band_lower[row], curve.band_upper[row]) for row in rows]
        points = [
            one._replace(interval=own, band=all_)
            for one, own, all_ in zip(points, ends, bands, strict=True)
        ]
    return tuple(sorted(points))


def curve_chart(
    quantity: Quantity, axis: str, lines: Sequence[CurveLine], all_lines: Sequence[CurveLine]
) -> str:
    """Draw a number against shifts along one axis, on the scale of the lines of all axes; bands of few lines alone."""
    steps = sorted({point.step for line in lines for point in line.points})
    across = svg.Scale(steps[0], steps[-1], LEFT + 6, RIGHT - 6)
    banded = len(lines) <= MOST_BANDS
    numbers = [point.value for line in all_lines for point in line.points]
    if banded:
        bands = (
            point.band for line in all_lines for point in line.points if point.band is not None
        )
        numbers += [band[end] for band in bands for end in quantity.ends]
    up = quantity.scale(numbers, BOTTOM, TOP)
    parts, ticks = [], [(tick, up.place(tick)) for tick in up.ticks(5)]
    for tick, y in ticks:
        parts.append(svg.rule(LEFT, y, RIGHT, y, SOFT if tick == 0 and up.low < 0 else GRID))
    named = [(step, across.place(step)) for step in (steps[at] for at in chosen_ticks(steps))]
    parts += [svg.rule(x, BOTTOM, x, BOTTOM + 4) for _, x in named]
    if steps[0] <= 0 <= steps[-1]:
        parts.append(svg.rule(across.place(0), TOP, across.place(0), BOTTOM, GRID, "2 3"))
    parts.append(svg.label(AXES[axis][0], (LEFT + RIGHT) / 2, HEIGHT - 6))
    # Bands first, so that none hides a line.
    for line in lines if banded else ():
        bands = []
        for read, opacity in ((attrgetter("band"), 0.13), (attrgetter("interval"), 0.15)):
            found = [
                (across.place(one.step), read(one)) for one in line.points if read(one) is not None
            ]
            low, high = ([(x, up.place(ends[at])) for x, ends in found] for at in (0, 1))
            if found:
                path = f"{svg.polygon([*high, *low[::-1]])}z"
                bands.append(
                    svg.element(
                        "path", {"d": path, "fill": line.style.colour, "fill-opacity": opacity}
                    )
                )
        parts.append(svg.line(line.name, *bands))
    for at, line in enumerate(lines):
        # Earlier lines are wider, so that curves that lie on one another are all seen; less so where there are many.
        above = min(len(lines) - 1 - at, 3) * min(1.0, 4 / len(lines))
        size = min(1.0, max(0.45, 17 / len(line.points))) * (4 + 0.8 * above)
        points = []
        for one in line.points:
            ends = (
                ""
                if one.interval is None
                else f" ({' to '.join(map(quantity.write, one.interval))})"
            )
            words = f"{line.name}, {axis} {write_step(one.step)}: {quantity.write(one.value)}{ends}"
            points.append((across.place(one.step), up.place(one.value), words))
        path = svg.styled_line(
            line.style, svg.polygon([point[:2] for point in points]), 1.8 + 0.7 * above
        )
        parts.append(svg.line(line.name, path, svg.styled_points(line.style, points, size)))
    left = (svg.label(quantity.tick(tick), LEFT - 6, y + 4, anchor="end") for tick, y in ticks)
    below = (svg.label(write_step(step), x, BOTTOM + 18) for step, x in named)
    parts += [svg.ticks("left", *left), svg.ticks("below", *below)]
    said = []
    for line in lines:
        ends = sorted(line.points, key=lambda point: point.value)
        low, high = (
            f"{quantity.write(end.value)} at {write_step(end.step)}" for end in (ends[0], ends[-1])
        )
        said.append(f"{line.name} lies between {low} and {high}")
    description = (
        f"Line chart of {quantity.label} against {axis} in {AXES[axis][1]}: {'; '.join(said)}."
    )
    return svg.drawing(WIDTH, HEIGHT, description, *parts)
