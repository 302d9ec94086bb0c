"""Conversion of Matplotlib figures to PNG files."""

import io

from matplotlib.figure import Figure


def to_png(figure: Figure) -> bytes:
    """Render a Matplotlib figure as the bytes of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": "teka"})
    return file.getvalue()
