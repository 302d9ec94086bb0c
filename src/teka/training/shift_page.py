"""The page and the curve of a saved `report.json`, with the example images of `examples.npz`."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from numpy.typing import NDArray

from teka.audit.page.charts import ShareCurve, draw_curves, encode_png
from teka.audit.page.notation import listed, write_shift, write_step
from teka.audit.page.pages import data_uri, render_page
from teka.errors import require
from teka.files import write_bytes
from teka.training.arrays import Layout, read_arrays
from teka.training.shift_report import WILSON, SeedGroup, ShiftReport, load_report
from teka.training.shift_text import finding, table_note, table_rows

if TYPE_CHECKING:
    import matplotlib.figure

DIRECTIONS = {"dx": "shift to the right, dx (pixels)", "dy": "shift downwards, dy (pixels)"}
EXAMPLES: Layout = {
    "images": ("u", ("shifts", "examples", "height", "width")),
    "shifts": ("iu", ("shifts", 2)),
    "labels": ("iu", ("examples",)),
    "model_names": ("U", ("models",)),
    "predictions": ("iu", ("models", "shifts", "examples")),
}
"""Grey values as the models saw them, each shift (dy, dx) in pixels, the correct classes, and those answered."""


class Written(NamedTuple):
    """The files written: the shift curve and the page."""

    shift_curve: Path
    page: Path


def write_report(directory: str | Path) -> Written:
    """Write `shift_curve.png` and `report.html` from a folder's `report.json` and, if there, `examples.npz`.

    Both files are written whole or not at all; nothing is written if the results cannot be read.

    Raises:
        ImportError: matplotlib, Pillow or jinja2 is not installed; the message names the extra that brings them.
        ValueError: The results are missing or not what they should be; the message names the file and the key.
        OSError: The folder cannot be written.
    """
    directory = Path(directory)
    report = load_report(directory / "report.json")
    path = directory / "examples.npz"
    page = render_html(report, load_examples(path) if path.exists() else None)
    written = Written(directory / "shift_curve.png", directory / "report.html")
    write_bytes(written.shift_curve, encode_png(draw_shift_curve(report)))
    write_bytes(written.page, page.encode("utf-8"))
    return written


def load_examples(path: str | Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of `EXAMPLES`; nothing in the file is unpickled.

    Raises:
        ValueError: The file is missing or not such an archive, or an array is missing, of the wrong kind or shape; it
            names the file and the array.
    """
    return read_arrays(Path(path), EXAMPLES, "the examples.npz of a finished run")


def draw_shift_curve(
    report: ShiftReport, *, layout: Literal["beside", "stacked"] = "beside"
) -> "matplotlib.figure.Figure":
    """Draw accuracy against shift, the mean over seeds of each model, with its interval as a band where it has one.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: The layout is unknown.
    """
    panels = {DIRECTIONS[axis]: [_curve(group, axis) for group in report.groups] for axis in report.axes}
    return draw_curves(panels, layout=layout)


def _curve(group: SeedGroup, axis: str) -> ShareCurve:
    found = group.accuracy(axis)
    band = {
        shift: (max(one.lower, 0.0), min(one.upper, 1.0)) for shift, one in found.items() if one.half_width is not None
    }
    return ShareCurve(group.name, {shift: one.value for shift, one in found.items()}, band)


def render_html(report: ShiftReport, examples: dict[str, NDArray[Any]] | None = None) -> str:
    """One page that needs no other file and no network: finding, curve, table, example images, settings.

    Raises:
        ImportError: jinja2, matplotlib or Pillow is not installed.
    """
    content = {
        "report": report,
        "finding": report.finding or finding(report),
        "averaged": report.averaged,
        "bands": _bands_in_words(report),
        "curve_beside": data_uri(encode_png(draw_shift_curve(report))),
        "curve_stacked": data_uri(encode_png(draw_shift_curve(report, layout="stacked"))),
        "shifts": [write_step(shift) for shift in report.shifts],
        "rows": table_rows(report),
        "note": table_note(report),
        "example_shifts": [write_shift(shift) for shift in examples["shifts"].tolist()] if examples else [],
        "examples": _rows_of_examples(examples) if examples else [],
        "settings": _settings(report),
        "listed": listed,
    }
    return render_page("teka.training", "shift.html.j2", content)


def _rows_of_examples(examples: dict[str, NDArray[Any]]) -> list[dict[str, Any]]:
    require("PIL", "reports need", "teka[report]")
    from PIL import Image

    rows = []
    for index, label in enumerate(examples["labels"].tolist()):
        pictures = []
        for image, shift in zip(examples["images"][:, index], examples["shifts"].tolist(), strict=True):
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, format="PNG")
            text = f"Example {index + 1}, class {label}, {write_shift(shift)}"
            pictures.append((data_uri(buffer.getvalue()), text))
        named = zip(examples["model_names"].tolist(), examples["predictions"][:, :, index].tolist(), strict=True)
        predictions = [
            {"model": name, "answers": [(answer, answer == label) for answer in answers]} for name, answers in named
        ]
        rows.append({"label": label, "images": pictures, "predictions": predictions})
    return rows


def _bands_in_words(report: ShiftReport) -> str:
    methods = {
        one.method
        for group in report.groups
        for axis in report.axes
        for one in group.accuracy(axis).values()
        if one.half_width is not None
    }
    words = ["95 % interval over seeds, by Student's t"] if methods - {WILSON} else []
    if WILSON in methods:
        words.append("95 % Wilson interval" + (" (models with one seed)" if words else ""))
    return f"Bands: {listed(words)}." if words else ""


def _settings(report: ShiftReport) -> list[tuple[str, str]]:
    images = sorted({model.test_images for model in report.models if model.test_images is not None})
    pairs = [
        ("Command", report.command),
        ("Data", report.dataset),
        ("Test images", listed([f"{count:,}" for count in images]) if images else None),
        ("Shifts", report.mode),
        ("Hardware", report.hardware),
        ("Date", report.date),
        ("Versions", f"teka {report.teka}, PyTorch {report.torch}"),
    ]
    return [(name, value) for name, value in pairs if value]
