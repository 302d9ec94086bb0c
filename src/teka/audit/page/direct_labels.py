"""Label lines at their right ends, without overlaps."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import matplotlib.axes

CHARACTERS = 24
"""Longest line of a label; longer names are wrapped."""

LINE_HEIGHT, GAP = 0.062, 0.012
"""Height of a line of a label and the gap between labels, as shares of the height of a panel of usual size."""
TOP = 1.03
"""Highest place for a label's upper edge, as a share of a panel's height."""


def spread(heights: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """Move labels apart, as little as their order needs, so that none overlaps.

    Args:
        heights: Where the middle of each label would like to be.
        sizes: Height of each label.
        low: Lowest place for a label's lower edge.
        high: Highest place for a label's upper edge; overrun at the bottom if the labels do not fit.

    Returns:
        Where the middle of each label goes.
    """
    order = sorted(range(len(heights)), key=lambda index: -heights[index])
    placed = list(heights)
    floor = low + sum(sizes)
    ceiling = high
    for index in order:
        # Not above what is left, and high enough that those below still fit.
        upper_edge = min(heights[index] + sizes[index] / 2, ceiling)
        upper_edge = min(max(upper_edge, floor), ceiling)
        placed[index] = upper_edge - sizes[index] / 2
        ceiling = upper_edge - sizes[index]
        floor -= sizes[index]
    return placed


class LineLabel(NamedTuple):
    """A line's name and colour, and where the line ends, in the panel's units."""

    name: str
    colour: str
    x: float
    y: float


def stretch_for(names: Sequence[str]) -> float:
    """How many times as high as usual a panel has to be for the names of all its lines, at least 1.

    Args:
        names: The names of the lines that are labelled.
    """
    return max(1.0, sum(_size(_wrap(name)) for name in names) / TOP)


def label_lines(panel: "matplotlib.axes.Axes", labels: Sequence[LineLabel], ink: str, stretch: float = 1.0) -> None:
    """Write the name of each line of a panel to the right of its end, tied to it by a thin line of its colour.

    Args:
        panel: A panel whose limits are set.
        labels: The lines.
        ink: Colour of the text.
        stretch: How many times as high as usual the panel is.
    """
    texts = [_wrap(label.name) for label in labels]
    sizes = [_size(text) / stretch for text in texts]
    to_fraction = panel.transData + panel.transAxes.inverted()
    heights = spread([float(to_fraction.transform((label.x, label.y))[1]) for label in labels], sizes, 0.0, TOP)
    for label, text, height in zip(labels, texts, heights, strict=True):
        panel.annotate(
            text,
            xy=(label.x, label.y),
            xycoords="data",
            xytext=(1.06, height),
            textcoords="axes fraction",
            va="center",
            ha="left",
            fontsize=9,
            color=ink,
            annotation_clip=False,
            parse_math=False,  # A name is not a formula, even with a dollar sign.
            arrowprops={
                "arrowstyle": "-",
                "color": label.colour,
                "linewidth": 1.2,
                "relpos": (0, 0.5),
                "patchA": None,  # not cut off at the text's frame, where a steep line would end beside another name
                "shrinkB": 5,
            },
        )


def _wrap(name: str) -> str:
    return textwrap.fill(name, CHARACTERS)


def _size(text: str) -> float:
    return LINE_HEIGHT * (1 + text.count("\n")) + GAP
