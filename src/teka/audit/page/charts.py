"""Charts of an audit: curves and heat maps of metrics over shifts, and errors of layers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from teka.audit.layers.localize import LayerFindings
from teka.audit.page.metric_formatting import format_metric_with_unit, is_percentage
from teka.audit.report import AuditReport
from teka.audit.shifts import CheckedShift
from teka.audit.statistics.comparison import Comparison
from teka.audit.statistics.intervals import Curve, has_interval
from teka.audit.statistics.metrics import Metrics
from teka.errors import escape_unprintable
from teka.reporting import plots
from teka.reporting.formatting import format_step, join_words

# Confidence bands are drawn for at most this number of lines, because more would overlap.
MOST_BANDS = 3
GRAY = "#8a8f98"
# Values that span more powers of ten than this are drawn on a logarithmic scale.
_DECADES_FOR_LOGARITHM = 2.5
# Colors from good to bad.
_HEAT = ("#fff8ec", "#fddba6", "#fca55d", "#e8602c", "#b32413", "#5f0a07")
_LOWEST_ERROR = 1e-9
# Labels of the steps of a shift (dy, dx) by their index, in the order of the charts.
AXES = {1: "horizontal shift dx (pixels)", 0: "vertical shift dy (pixels)"}
# Errors of layers: their label, field, color and marker.
LAYER_ERRORS = {
    "interior_error": ("inside the image", "#D55E00", "o"),
    "border_error": ("at the edge of the image", "#0072B2", "s"),
    "aliasing_error": ("at shifts that are not a multiple of the stride", "#009E73", "^"),
}


def model_color(index: int, report: AuditReport) -> str:
    """Return the color of a model by its index, or gray if its results are invalid."""
    return GRAY if report.invalid else plots.line_color(index)


def draw_curves(
    reports: Sequence[AuditReport],
    results: Mapping[int, Metrics | Comparison],
    curve: str,
    label: str,
    *,
    difference: bool = False,
) -> dict[str, Any]:
    """Plot a metric of several models against horizontal shifts and against vertical shifts.

    Args:
        reports: Reports of all models.
        results: Results of the models to plot, by their index in `reports`.
        curve: Name of the metric in `teka.audit.statistics.metrics.CURVES`.
        label: Label of the metric.
        difference: True if the values are differences, which have both signs.

    Returns:
        The label ("name") and the SVG charts ("charts"), or an empty dictionary if no shift is
        along a single axis.
    """
    charts = []
    factor = 100 if is_percentage(curve) else 1
    for axis, axis_label in AXES.items():
        lines = []
        for model, result in results.items():
            along = sorted(
                (shift[axis], row) for row, shift in enumerate(result.shifts) if not shift[1 - axis]
            )
            if curve in result.curves and len(along) > 1:
                steps, rows = zip(*along, strict=True)
                values = result.curves[curve]
                lines.append(CurveLine(model, reports[model], steps, rows, values, factor))
        if lines:
            figure, axes = plots.create_chart(
                380, 240, legend_rows=len(lines) if len(lines) > 1 else 0
            )
            description = _draw_lines(axes, lines)
            vertical_label = label
            if difference:
                # The whole label is longer than the axis.
                vertical_label = "difference (points)"
                axes.axhline(0, color=GRAY, linewidth=1)
            else:
                _scale_value_axis(axes, lines, is_percentage(curve))
            plots.label_axes(axes, axis_label, vertical_label)
            charts.append(plots.to_svg(figure, f"{label} against {axis_label}: {description}."))
    return {"name": label, "charts": charts} if charts else {}


class CurveLine(NamedTuple):
    """Line of a chart: a metric of one model at the shifts along one axis.

    Args:
        model: Index of the model.
        report: Report of the model.
        steps: Steps along the axis, in ascending order.
        rows: Index of each step in the curve.
        curve: Metric at every shift.
        factor: Factor that converts the metric to the unit of the chart.
    """

    model: int
    report: AuditReport
    steps: tuple[int | float, ...]
    rows: tuple[int, ...]
    curve: Curve
    factor: int

    def chart_values(self, field: str = "values") -> np.ndarray:
        """Return the values of the line in the unit of the chart, such as percent.

        Args:
            field: Field of `Curve`, such as "values" or "lower", the lower end of the interval.
        """
        return self.factor * np.array(getattr(self.curve, field))[list(self.rows)]


def _draw_lines(axes: Any, lines: Sequence[CurveLine]) -> str:
    """Draw the lines and the legend of a chart, and describe the lines in words.

    Confidence intervals are drawn only for at most `MOST_BANDS` lines, because more would overlap.
    """
    descriptions = []
    for line in lines:
        color = model_color(line.model, line.report)
        name = line.report.name
        values = line.chart_values()
        if len(lines) <= MOST_BANDS and has_interval(line.curve.method):
            band = line.chart_values("band_lower"), line.chart_values("band_upper")
            interval = line.chart_values("lower"), line.chart_values("upper")
            axes.fill_between(line.steps, *band, color=color, alpha=0.12, linewidth=0)
            axes.fill_between(line.steps, *interval, color=color, alpha=0.18, linewidth=0)
        size = max(2.0, min(5.0, 60 / len(line.steps)))
        marker = plots.MARKERS[line.model % len(plots.MARKERS)]
        axes.plot(line.steps, values, color=color, marker=marker, markersize=size, label=name)
        descriptions.append(f"{name} from {values.min():.3g} to {values.max():.3g}")
    every_step = sorted({step for line in lines for step in line.steps})
    ticks = [every_step[index] for index in plots.choose_ticks(every_step)]
    axes.set_xticks(ticks, [format_step(step) for step in ticks])
    if len(lines) > 1:
        plots.add_legend(axes)
    return "; ".join(descriptions)


def _scale_value_axis(axes: Any, lines: Sequence[CurveLine], is_percent: bool) -> None:
    values = np.concatenate([line.chart_values() for line in lines])
    if is_percent:
        lowest = axes.dataLim.ymin
        axes.set_ylim(0 if lowest < 50 else min(90, 5 * math.floor(lowest / 5 - 0.5)), 101)
        return
    positive = values[values > 0]
    if len(positive) and math.log10(positive.max() / positive.min()) > _DECADES_FOR_LOGARITHM:
        axes.set_yscale("symlog", linthresh=positive.min())
    axes.set_ylim(bottom=0)


class HeatMap(NamedTuple):
    """Values of a metric at all shifts (dy, dx), for a chart with one colored cell per shift.

    Args:
        metric: Name of the metric.
        values: Value of the metric at each shift.
    """

    metric: str
    values: Mapping[Any, float]

    @property
    def worst_shift(self) -> CheckedShift | None:
        """Shift with the worst value of the metric, or None if all values are equal."""
        if len(set(self.values.values())) == 1:
            return None
        worst = min if is_percentage(self.metric) else max
        return worst(self.values, key=self.values.__getitem__)


def draw_heat_map(
    heat_map: HeatMap, limits: tuple[float | int, float | int], description: str
) -> str:
    """Draw a heat map of a metric as SVG, in which dark colors stand for bad values.

    A thin frame marks the zero shift, and a bold frame marks the worst shift.

    Args:
        heat_map: The values of the metric.
        limits: Best and worst value on the color scale, which get the lightest and darkest color.
        description: Description of the chart for readers who cannot see it.
    """
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    rows = sorted({down for down, _ in heat_map.values})
    columns = sorted({right for _, right in heat_map.values})
    figure, axes = plots.create_chart(
        380, 380 * min(1.4, max(0.4, len(rows) / len(columns))), layout="constrained"
    )
    colors = LinearSegmentedColormap.from_list("heat", _HEAT)
    best, worst = limits
    spread = worst - best or 1.0
    cells = [[heat_map.values.get((down, right), math.nan) for right in columns] for down in rows]
    mesh = axes.pcolormesh((np.array(cells) - best) / spread, cmap=colors, vmin=0, vmax=1)
    axes.set(aspect="equal")
    axes.invert_yaxis()
    axes.grid(visible=False)
    for steps, set_ticks in ((columns, axes.set_xticks), (rows, axes.set_yticks)):
        chosen = plots.choose_ticks(steps)
        set_ticks([at + 0.5 for at in chosen], [format_step(steps[at]) for at in chosen])
    for pair, width in (((0, 0), 1.0), (heat_map.worst_shift, 2.5)):
        if pair is not None and pair in heat_map.values:
            corner = columns.index(pair[1]), rows.index(pair[0])
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=width))
    bar = figure.colorbar(mesh, ax=axes, location="bottom", shrink=0.6, aspect=25)
    bar.set_ticks([0, 1], labels=[format_metric_with_unit(heat_map.metric, end) for end in limits])
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors="#1c2430", labelsize=11, length=0)
    plots.label_axes(axes, AXES[1], AXES[0])
    return plots.to_svg(figure, description)


def draw_layer_errors(layers: LayerFindings) -> str:
    """Plot the equivariance errors of all layers as SVG, in the order of execution.

    Vertical lines mark the first layers that break equivariance.
    """
    findings = layers.findings
    figure, axes = plots.create_chart(860, 280, legend_rows=1)
    indices = range(1, len(findings) + 1)
    noise = np.maximum([layer.noise for layer in findings], _LOWEST_ERROR)
    axes.fill_between(
        indices, _LOWEST_ERROR, noise, color=GRAY, alpha=0.3, linewidth=0, label="noise"
    )
    axes.axhline(layers.threshold, color=GRAY, linestyle="--", linewidth=1, label="limit")
    for field, (label, color, marker) in LAYER_ERRORS.items():
        errors = np.array(
            [
                # If the edge affects all cells of a layer, draw the error of all cells.
                layer.error
                if field == "interior_error" and layer.interior_error is None
                else getattr(layer, field)
                for layer in findings
            ],
            dtype=float,
        )
        if not np.isnan(errors).all():
            errors = np.maximum(errors, _LOWEST_ERROR)
            axes.plot(
                indices, errors, color=color, marker=marker, markersize=4, linewidth=1, label=label
            )
    broken = {layer.name for layer in layers.breaks.values()}
    for index, layer in zip(indices, findings, strict=True):
        if layer.name in broken:
            axes.axvline(index, color="#b32413", linestyle=":", linewidth=1)
            axes.text(
                index,
                0.97,
                f" {escape_unprintable(layer.name)} ",
                transform=axes.get_xaxis_transform(),
                ha="right" if index > len(findings) / 2 else "left",
                va="top",
                color="#b32413",
                fontsize=11,
                parse_math=False,
            )
    axes.set_yscale("log")
    axes.set_xlim(0.5, len(findings) + 0.5)
    axes.locator_params(axis="x", integer=True)
    plots.label_axes(axes, "layers in the order of execution", "relative error")
    plots.add_legend(axes, num_columns=5)
    names = join_words(sorted(broken)) or "no layer"
    return plots.to_svg(
        figure, f"Relative errors of {len(findings)} layers. Equivariance breaks first in {names}."
    )
