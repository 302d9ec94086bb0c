"""The shift curve: accuracy against shift, one panel for each axis, one line for each model."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from teka.audit.page.charts import ShareCurve, draw_curves, encode_png
from teka.files import write_bytes
from teka.training.report.model_result import AXES
from teka.training.report.results import Report

if TYPE_CHECKING:
    import matplotlib.figure

DIRECTIONS = {"dx": "shift to the right, dx (pixels)", "dy": "shift downwards, dy (pixels)"}


def draw_shift_curve(report: Report, *, layout: Literal["beside", "stacked"] = "beside") -> "matplotlib.figure.Figure":
    """Draw accuracy against shift, the mean over seeds of each model, with its band.

    The band spans the lowest and highest accuracy over seeds; for a single seed it is the Wilson interval, if known.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: The layout is unknown.
    """
    axes = [axis for axis in AXES if report.shifts(axis)]
    panels = {
        DIRECTIONS[axis]: [ShareCurve(group.name, group.accuracy(axis), group.band(axis)) for group in report.groups]
        for axis in axes
    }
    return draw_curves(panels, layout=layout)


def write_shift_curve(report: Report, path: str | Path) -> Path:
    """Draw the shift curve and write it as a PNG, whole or not at all.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: The folder does not exist or cannot be written.
    """
    write_bytes(Path(path), encode_png(draw_shift_curve(report)))
    return Path(path)
