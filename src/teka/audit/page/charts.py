"""Charts of an audit: metrics against shifts, heat maps over shifts, and errors of layers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from teka.audit.layers.localize import LayerFinding, LayerFindings
from teka.audit.page.metric_formatting import is_share, write_number
from teka.audit.shifts import CheckedShift, CheckedShifts
from teka.audit.statistics.estimate import Curve, has_interval
from teka.errors import printable
from teka.reporting import plots
from teka.reporting.formatting import write_step

# Bands of more lines would hide each other.
MOST_BANDS = 3
# Heat maps of at most this number of cells along an axis contain their values.
MOST_WRITTEN = 8
# Numbers that span more powers of ten are drawn on a logarithmic scale.
_DECADES_FOR_LOGARITHM = 2.5
# Colors from good to bad.
_HEAT = ("#fff8ec", "#fddba6", "#fca55d", "#e8602c", "#b32413", "#5f0a07")
_LOWEST_ERROR = 1e-9
AXES = {"dx": ("horizontal shift dx (pixels)", 1), "dy": ("vertical shift dy (pixels)", 0)}
# Errors of layers: their label, field, color and marker.
LAYER_ERRORS = {
    "interior_error": ("inside the image", "#D55E00", "o"),
    "border_error": ("at the edge of the image", "#0072B2", "s"),
    "aliasing_error": ("at shifts that are not a multiple of the stride", "#009E73", "^"),
}


class CurvePoint(NamedTuple):
    """A metric at one step along an axis, with its interval and simultaneous band, or None."""

    step: int | float
    value: float
    interval: tuple[float, float] | None = None
    band: tuple[float, float] | None = None


@dataclass(frozen=True)
class CurveLine:
    """The metric of one model along an axis.

    Args:
        name: Name of the model.
        index: Index of the model, which determines color and marker.
        points: Points in ascending order of the steps.
    """

    name: str
    index: int
    points: tuple[CurvePoint, ...]


def curve_points(shifts: CheckedShifts, curve: Curve, axis: int = 0) -> tuple[CurvePoint, ...]:
    """Return the points of a curve at shifts along one axis alone."""
    points = []
    for row, shift in enumerate(shifts):
        if any(shift[:axis] + shift[axis + 1 :]):
            continue
        point = CurvePoint(shift[axis], curve.values[row])
        if has_interval(curve.method):
            point = point._replace(
                interval=(curve.lower[row], curve.upper[row]),
                band=(curve.band_lower[row], curve.band_upper[row]),
            )
        points.append(point)
    return tuple(sorted(points))


def curve_chart(
    lines: Sequence[CurveLine], axis: str, label: str, *, is_percent: bool, difference: bool = False
) -> str:
    """Draw a metric against the steps along one axis.

    Args:
        lines: A line for each model. Bands are drawn if there are at most `MOST_BANDS`.
        axis: "dx" or "dy".
        label: Label of the metric.
        is_percent: True if the metric is a share, drawn in percent.
        difference: True if the values are differences, which have both signs.
    """
    figure, axes = plots.make_axes(380, 240, legend_rows=len(lines) if len(lines) > 1 else 0)
    factor = 100 if is_percent else 1
    described = []
    for line in lines:
        color = plots.line_color(line.index)
        steps = [point.step for point in line.points]
        values = [factor * point.value for point in line.points]
        if len(lines) <= MOST_BANDS:
            for field, opacity in (("band", 0.12), ("interval", 0.18)):
                ends = [getattr(point, field) for point in line.points]
                known = [(step, *end) for step, end in zip(steps, ends, strict=True) if end]
                if known:
                    places, lower, upper = zip(*known, strict=True)
                    axes.fill_between(
                        places,
                        [factor * end for end in lower],
                        [factor * end for end in upper],
                        color=color,
                        alpha=opacity,
                        linewidth=0,
                    )
        size = max(2.0, min(5.0, 60 / len(steps)))
        marker = plots.line_marker(line.index)
        axes.plot(steps, values, color=color, marker=marker, markersize=size, label=line.name)
        described.append(f"{line.name} from {min(values):.3g} to {max(values):.3g}")
    every_step = sorted({point.step for line in lines for point in line.points})
    ticks = [every_step[index] for index in plots.choose_ticks(every_step)]
    axes.set_xticks(ticks, [write_step(step) for step in ticks])
    _scale_values(
        axes, [point.value for line in lines for point in line.points], is_percent, difference
    )
    horizontal = AXES[axis][0]
    plots.label_axes(axes, horizontal, label)
    if len(lines) > 1:
        plots.add_legend(axes)
    return plots.to_svg(figure, f"{label} against {horizontal}: {'; '.join(described)}.")


def curve_figure(
    names: Sequence[str],
    curves: Mapping[int, tuple[CheckedShifts, Curve | None]],
    label: str,
    *,
    is_percent: bool,
    difference: bool = False,
) -> dict[str, Any]:
    """Draw a metric of several models along both axes.

    Args:
        names: Names of all models.
        curves: Shifts and metric of the models by index.
        label: Label of the metric.
        is_percent: True if the metric is a share.
        difference: True if the values are differences.

    Returns:
        Label and charts, or an empty dictionary if no shift is along one axis.
    """
    charts = []
    for axis, (_, at) in AXES.items():
        lines = []
        for model, (shifts, curve) in curves.items():
            if curve is not None and all(len(shift) == len(AXES) for shift in shifts):
                points = curve_points(shifts, curve, at)
                if len(points) > 1:
                    lines.append(CurveLine(names[model], model, points))
        if lines:
            chart = curve_chart(lines, axis, label, is_percent=is_percent, difference=difference)
            charts.append(chart)
    return {"name": label, "charts": charts} if charts else {}


def _scale_values(
    axes: Any, values: Sequence[float | int], is_percent: bool, difference: bool
) -> None:
    if difference:
        axes.axhline(0, color="#8a8f98", linewidth=1)
        return
    if is_percent:
        lowest = min(values)
        bottom = 0 if lowest < 0.5 else min(90, 5 * math.floor(20 * lowest - 0.5))
        axes.set_ylim(bottom, 101)
        return
    positive = [value for value in values if value > 0]
    if positive and math.log10(max(positive) / min(positive)) > _DECADES_FOR_LOGARITHM:
        axes.set_yscale("symlog", linthresh=min(positive))
    axes.set_ylim(bottom=0)


@dataclass(frozen=True)
class HeatMap:
    """A metric at every shift.

    Args:
        metric: Name of the metric.
        values: Value at each shift (dy, dx).
    """

    metric: str
    values: Mapping[Any, float]

    @property
    def worst(self) -> CheckedShift | None:
        """The shift with the worst value, or None if all values are equal."""
        if len(set(self.values.values())) == 1:
            return None
        worst = min if is_share(self.metric) else max
        return worst(self.values, key=self.values.__getitem__)


def heat_map_chart(
    heat_map: HeatMap, limits: tuple[float | int, float | int], description: str
) -> str:
    """Draw a heat map in which darker is worse, with frames at (0, 0) (thin) and the worst (bold).

    Args:
        heat_map: The heat map.
        limits: Values of the lightest and the darkest color, best and worst.
        description: Text alternative.
    """
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    rows = sorted({down for down, _ in heat_map.values})
    columns = sorted({right for _, right in heat_map.values})
    figure, axes = plots.make_axes(
        380, 380 * min(1.4, max(0.4, len(rows) / len(columns))), layout="constrained"
    )
    colors = LinearSegmentedColormap.from_list("heat", _HEAT)
    best, worst = limits
    spread = worst - best or 1.0
    cells = [
        [(heat_map.values.get((down, right), math.nan) - best) / spread for right in columns]
        for down in rows
    ]
    mesh = axes.pcolormesh(cells, cmap=colors, vmin=0, vmax=1)
    axes.set(aspect="equal")
    axes.invert_yaxis()
    axes.grid(visible=False)
    for positions, steps, set_ticks in (
        (columns, columns, axes.set_xticks),
        (rows, rows, axes.set_yticks),
    ):
        chosen = plots.choose_ticks(steps)
        set_ticks([at + 0.5 for at in chosen], [write_step(positions[at]) for at in chosen])
    if max(len(rows), len(columns)) <= MOST_WRITTEN:
        for (down, right), value in heat_map.values.items():
            place = columns.index(right) + 0.5, rows.index(down) + 0.5
            is_dark = (value - best) / spread > 0.6
            axes.text(
                *place,
                write_number(heat_map.metric, value),
                color="white" if is_dark else "black",
                ha="center",
                va="center",
                fontsize=9,
            )
    for pair, width in (((0, 0), 1.0), (heat_map.worst, 2.5)):
        if pair is not None and pair in heat_map.values:
            corner = columns.index(pair[1]), rows.index(pair[0])
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=width))
    bar = figure.colorbar(mesh, ax=axes, location="bottom", shrink=0.6, aspect=25)
    unit = " %" if is_share(heat_map.metric) else ""
    bar.set_ticks([0, 1], labels=[f"{write_number(heat_map.metric, end)}{unit}" for end in limits])
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors="#1c2430", labelsize=11, length=0)
    plots.label_axes(axes, AXES["dx"][0], AXES["dy"][0])
    return plots.to_svg(figure, description)


def layer_chart(layers: LayerFindings) -> str:
    """Draw the errors of the layers in order of execution, and name those that break first."""
    findings = layers.findings
    figure, axes = plots.make_axes(860, 280, legend_rows=1)
    indices = range(1, len(findings) + 1)
    noise = [max(layer.noise, _LOWEST_ERROR) for layer in findings]
    axes.fill_between(
        indices, _LOWEST_ERROR, noise, color="#8a8f98", alpha=0.3, linewidth=0, label="noise"
    )
    axes.axhline(layers.threshold, color="#8a8f98", linestyle="--", linewidth=1, label="limit")
    for field, (label, color, marker) in LAYER_ERRORS.items():
        errors = [_layer_error(layer, field) for layer in findings]
        if any(error is not None for error in errors):
            values = [math.nan if error is None else max(error, _LOWEST_ERROR) for error in errors]
            axes.plot(
                indices, values, color=color, marker=marker, markersize=4, linewidth=1, label=label
            )
    names = [layer.name for layer in findings]
    for layer in {broken.name: broken for broken in layers.breaks.values()}.values():
        if layer.name in names:
            place = names.index(layer.name) + 1
            axes.axvline(place, color="#b32413", linestyle=":", linewidth=1)
            side = "right" if place > len(findings) / 2 else "left"
            axes.annotate(
                printable(layer.name),
                (place, 1),
                xycoords=("data", "axes fraction"),
                xytext=(4 if side == "left" else -4, -12),
                textcoords="offset points",
                ha=side,
                color="#b32413",
                fontsize=11,
                parse_math=False,
            )
    axes.set_yscale("log")
    axes.set_xlim(0.5, len(findings) + 0.5)
    plots.label_axes(axes, "layers in the order of execution", "relative error")
    plots.add_legend(axes, num_columns=5)
    first = layers.first_break
    sentence = f"{first} breaks first." if first else "No layer breaks inside the image."
    if layers.undecided and not first:
        sentence = f"Whether {layers.undecided[0].name} breaks cannot be decided."
    return plots.to_svg(figure, f"Relative errors of {len(findings)} layers. {sentence}")


def _layer_error(layer: LayerFinding, field: str) -> float | None:
    """Return an error of a layer. The error of a layer without an interior counts as interior."""
    error = getattr(layer, field)
    return layer.error if field == "interior_error" and error is None else error
