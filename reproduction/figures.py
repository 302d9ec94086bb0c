"""Saving of Matplotlib figures."""

from pathlib import Path

from matplotlib.figure import Figure


def save_png(figure: Figure, path: Path) -> None:
    """Save a Matplotlib figure as a PNG file, without the version of Matplotlib."""
    figure.savefig(path, format="png", metadata={"Software": "teka"})
