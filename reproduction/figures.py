"""Conversion of Matplotlib figures to files."""

import io

from matplotlib.figure import Figure


def to_png(figure: Figure) -> bytes:
    """Return the content of a PNG file of a Matplotlib figure."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": "teka"})
    return file.getvalue()
