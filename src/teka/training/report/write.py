"""Write the pictures and the page of a run folder from its saved results."""

from pathlib import Path
from typing import NamedTuple

from teka.files import write_bytes
from teka.training.report.examples import load_examples
from teka.training.report.html import render_html
from teka.training.report.load import load_report
from teka.training.report.shift_curve import write_shift_curve


class Written(NamedTuple):
    """The files written: the shift curve and the page."""

    shift_curve: Path
    page: Path


def write(directory: str | Path) -> Written:
    """Write `shift_curve.png` and `report.html` from a run folder's `report.json` and, if there, `examples.npz`.

    Both files are written whole or not at all; nothing is written if the results cannot be read.

    Args:
        directory: The run folder.

    Returns:
        Paths of the files written.

    Raises:
        ImportError: matplotlib or jinja2 is not installed; the message names the extra that brings them.
        ValueError: The results are missing or not what they should be; the message names the file and the key.
        OSError: The folder cannot be written.
    """
    directory = Path(directory)
    report = load_report(directory / "report.json")
    examples_path = directory / "examples.npz"
    examples = load_examples(examples_path) if examples_path.exists() else None
    page = render_html(report, examples)
    written = Written(directory / "shift_curve.png", directory / "report.html")
    write_shift_curve(report, written.shift_curve)
    write_bytes(written.page, page.encode("utf-8"))
    return written
