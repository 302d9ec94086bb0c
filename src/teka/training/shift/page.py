"""The page of a shift report: finding, curves, table, example images and settings; and the curves as a picture."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxtyping import UInt8
from torch import Tensor

from teka.audit import Estimate
from teka.audit.page.charts import CurveLine, CurvePoint, curve_chart
from teka.codec import encode
from teka.errors import require
from teka.files import write_json
from teka.reporting import svg
from teka.reporting.charts import ShareCurve, draw_curves, encode_png
from teka.reporting.formatting import write_shift, write_step
from teka.reporting.html import data_uri, render_page
from teka.reporting.style import line_style
from teka.reporting.tables import write_files
from teka.training.shift.report import SeedGroup, ShiftReport, finding, table_note, table_rows

if TYPE_CHECKING:
    import matplotlib.figure

DIRECTIONS = {"dx": "shift to the right, dx (pixels)", "dy": "shift downwards, dy (pixels)"}


class Examples(NamedTuple):
    """Test images as the models saw them at some shifts (dy, dx) in pixels, and the answers of one seed's models."""

    images: UInt8[Tensor, "shifts examples height width"]
    shifts: list[tuple[int, ...]]
    labels: list[int]
    predictions: dict[str, list[list[int]]]  # by model: at each shift those of all examples


def write_report(report: ShiftReport, examples: Examples, folder: Path) -> tuple[Path, ...]:
    """Write `report.json`, `shift_curve.png` and `report.html`, whose paths it gives, once all are made."""
    drawn = {
        "shift_curve.png": encode_png(draw_shift_curve(report)),
        "report.html": render_html(report, examples),
    }
    return write_json(folder / "report.json", encode(report)), *write_files(folder, drawn).files


def draw_shift_curve(report: ShiftReport) -> "matplotlib.figure.Figure":
    """Draw accuracy against shift along each axis, the mean over seeds of each model, with its interval as a band."""
    panels = {}
    for axis in report.axes:
        panels[DIRECTIONS[axis]] = curves = []
        for group in report.groups:
            found = group.accuracy(axis)
            bands = {shift: _limits(one) for shift, one in found.items()}
            curves.append(
                ShareCurve(
                    group.first.name, {shift: one.value for shift, one in found.items()}, bands
                )
            )
    return draw_curves(panels)


def render_html(report: ShiftReport, examples: Examples) -> str:
    """One page that needs no other file and no network."""
    lines = {
        axis: [_line(at, group, axis) for at, group in enumerate(report.groups)]
        for axis in report.axes
    }
    settings = {
        "Command": report.command,
        "Data": report.dataset,
        "Test images": f"{report.models[0].test_images:,}",
        "Shifts": report.mode,
        "Hardware": report.hardware,
        "Date": report.date,
        "Versions": f"teka {report.teka}, PyTorch {report.torch}",
    }
    content = {
        "report": report,
        "finding": finding(report),
        "legend": [
            (svg.swatch(line_style(at)), group.first.name) for at, group in enumerate(report.groups)
        ],
        "charts": [
            curve_chart(along, axis, "correct (%)", is_percent=True)
            for axis, along in lines.items()
        ],
        "shifts": [write_step(shift) for shift in report.shifts],
        "rows": table_rows(report),
        "note": table_note(report),
        "example_shifts": [write_shift(shift) for shift in examples.shifts],
        "examples": _rows_of_examples(examples),
        "settings": settings,
    }
    return render_page("teka.training.shift", "shift.html.j2", content)


def _line(at: int, group: SeedGroup, axis: str) -> CurveLine:
    found = group.accuracy(axis).items()
    points = (CurvePoint(shift, one.value, _limits(one), _limits(one)) for shift, one in found)
    return CurveLine(group.first.name, at, tuple(points))


def _limits(found: Estimate) -> tuple[float, float]:
    """The ends of an interval, held to shares."""
    return max(found.lower, 0.0), min(found.upper, 1.0)


def _rows_of_examples(examples: Examples) -> list[dict[str, Any]]:
    require("PIL", "reports need", "teka[report]")
    from PIL import Image

    rows = []
    for index, label in enumerate(examples.labels):
        pictures = []
        for image, shift in zip(examples.images[:, index], examples.shifts, strict=True):
            buffer = io.BytesIO()
            Image.fromarray(image.numpy()).save(buffer, format="PNG")
            text = f"Example {index + 1}, class {label}, {write_shift(shift)}"
            pictures.append((data_uri(buffer.getvalue()), text))
        answers = {
            name: [(at_shift[index], at_shift[index] == label) for at_shift in predictions]
            for name, predictions in examples.predictions.items()
        }
        rows.append({"label": label, "images": pictures, "predictions": answers})
    return rows
