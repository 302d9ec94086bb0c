"""The page: everything about a run in one self-contained HTML file."""

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from teka.audit.page.charts import encode_png
from teka.audit.page.notation import averaged, listed, write_step
from teka.audit.page.template import data_uri, render_page, require
from teka.training.report.examples import Examples
from teka.training.report.finding import finding
from teka.training.report.results import Report
from teka.training.report.shift_curve import draw_shift_curve
from teka.training.report.table import table_note, table_rows, table_shifts


@dataclass(frozen=True)
class _Prediction:
    model: str
    answers: tuple[tuple[int, bool], ...]  # The class predicted at each shift, and whether it is right.


@dataclass(frozen=True)
class _Example:
    label: int
    images: tuple[tuple[str, str], ...]  # Data URI and alternative text at each shift.
    predictions: tuple[_Prediction, ...]


def _picture(image: NDArray[np.uint8]) -> str:
    require("matplotlib")
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    # As three equal channels, which are kept as they are; a colour map would move some values by one.
    imsave(buffer, np.repeat(image[..., None], 3, axis=-1), format="png", metadata={"Software": "teka"})
    return data_uri(buffer.getvalue())


def _shift_in_words(shift: NDArray[np.integer]) -> str:
    down, right = int(shift[0]), int(shift[1])
    moves = [f"d{axis} {write_step(step)}" for axis, step in (("x", right), ("y", down)) if step]
    return ", ".join(moves) or "not moved"


def _rows_of_examples(examples: Examples) -> list[_Example]:
    rows = []
    for index, label in enumerate(examples.labels.tolist()):
        pictures = tuple(
            (_picture(examples.images[at, index]), f"Example {index + 1}, class {label}, {_shift_in_words(shift)}")
            for at, shift in enumerate(examples.shifts)
        )
        predictions = tuple(
            _Prediction(
                name, tuple((answer, answer == label) for answer in examples.predictions[model, :, index].tolist())
            )
            for model, name in enumerate(examples.model_names)
        )
        rows.append(_Example(label, pictures, predictions))
    return rows


def _bands_in_words(report: Report) -> str:
    words = []
    if any(len(group.results) > 1 for group in report.groups):
        words.append("from the lowest to the highest seed")
    if any(len(group.results) == 1 and group.results[0].interval_by_shift for group in report.groups):
        words.append("95 % Wilson interval" + (" (models with one seed)" if words else ""))
    return f"Bands: {listed(words)}." if words else ""


def _settings(report: Report) -> list[tuple[str, str]]:
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


def render_html(report: Report, examples: Examples | None = None) -> str:
    """One page that needs no other file and no network: finding, curve, table, example images, settings.

    Args:
        report: The results.
        examples: Images as the models saw them shifted, with their predictions; left out if None.

    Returns:
        The page's HTML.

    Raises:
        ImportError: jinja2 or matplotlib is not installed.
    """
    content = {
        "report": report,
        "finding": report.finding or finding(report),
        "averaged": averaged([len(group.results) for group in report.groups]),
        "bands": _bands_in_words(report),
        "curve_beside": data_uri(encode_png(draw_shift_curve(report))),
        "curve_stacked": data_uri(encode_png(draw_shift_curve(report, layout="stacked"))),
        "shifts": [write_step(shift) for shift in table_shifts(report)],
        "rows": table_rows(report),
        "note": table_note(report),
        "example_shifts": [_shift_in_words(shift) for shift in examples.shifts] if examples else [],
        "examples": _rows_of_examples(examples) if examples else [],
        "settings": _settings(report),
        "listed": listed,
    }
    return render_page("teka.training.report", "report.html.j2", content)
