"""A number along both axes: a chart for each axis along which there is more than one shift."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from teka.audit.page.curve_chart import AXES, CurveLine, curve_along, curve_chart
from teka.audit.page.model_style import model_style
from teka.audit.statistics.metrics import Metrics


@dataclass(frozen=True)
class CurveFigure:
    """A number along both axes.

    Args:
        name: What it is.
        charts: A drawing for each axis.
        models: Places of the models that are drawn, for the legend.
    """

    name: str
    charts: tuple[str, ...]
    models: tuple[int, ...]


def curve_figure(names: Sequence[str], metrics: Mapping[int, Metrics], curve: str, title: str) -> CurveFigure | None:
    """The charts of a curve, one line for each model; None if there is no such curve.

    Args:
        names: Names of all models.
        metrics: The numbers, by the model's place in the list.
        curve: Name of the curve.
        title: What it is.
    """
    along = {
        axis: [
            CurveLine(names[at], model_style(at), points)
            for at, one in metrics.items()
            if len(points := curve_along(one, curve, axis)) > 1
        ]
        for axis in AXES
    }
    every = [line for lines in along.values() for line in lines]
    charts = tuple(curve_chart(curve, axis, lines, every) for axis, lines in along.items() if lines)
    models = tuple(at for at in metrics if any(line.style == model_style(at) for line in every))
    return CurveFigure(title, charts, models) if charts else None
