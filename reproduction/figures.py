"""Figures as files."""

import io

from matplotlib.figure import Figure


def to_png(figure: Figure) -> bytes:
    """Convert a figure to a PNG file in its own resolution."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": "teka"})
    return file.getvalue()
