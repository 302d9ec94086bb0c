"""Charts that matplotlib draws, as inline SVG for HTML pages."""

import io
import math
import re
import zlib
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from teka.errors import escape_unprintable, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colors of Okabe and Ito, which color-blind readers can distinguish, and four others.
COLORS = (
    "#D55E00",
    "#0072B2",
    "#009E73",
    "#CC79A7",
    "#7A6A00",
    "#9944FF",
    "#56B4E9",
    "#882255",
    "#553311",
    "#E69F00",
)
MARKERS = "os^DvPXh*>"
# In an SVG these two colors become the text color and the line color of the page.
_INK, _RULE = "#1c2430", "#dfe3e8"
_PIXELS_PER_INCH = 72
# Changes that make an SVG file of matplotlib an element of a page.
_SVG_CHANGES = {
    r"<metadata>.*?</metadata>|<style.*?</style>": "",
    r' xmlns(:xlink)?="[^"]*"| (width|height)="[^"]*pt"| font-family: [^;"]*;': "",
    r'<g id="[^"]*"': "<g",  # every chart has the same names, and names must be unique on a page
    "xlink:href": "href",
    r"\s+": " ",
    _INK: "currentColor",
    _RULE: "var(--line)",
}


def line_color(index: int) -> str:
    """Return the color of a model in charts and tables, given its index."""
    return COLORS[index % len(COLORS)]


def create_chart(
    width: float | int,
    height: float | int,
    *,
    legend_rows: int = 0,
    layout: Literal["constrained"] | None = None,
) -> "tuple[Figure, Axes]":
    """Create an empty chart in the style of the report pages: a figure and its axes.

    Args:
        width: Width in pixels.
        height: Height in pixels, without the legend.
        legend_rows: Number of rows of a legend above the chart.
        layout: Layout engine of matplotlib. By default the margins are fixed, which is faster.

    Raises:
        ImportError: matplotlib is not installed.
    """
    require("matplotlib", "pages need", "teka[report]")
    from matplotlib.figure import Figure

    legend_height = 17 * legend_rows
    height += legend_height
    size = width / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH
    figure = Figure(figsize=size, dpi=_PIXELS_PER_INCH, layout=layout)
    axes = figure.subplots()
    if layout is None:
        figure.subplots_adjust(
            left=50 / width,
            right=1 - 8 / width,
            bottom=36 / height,
            top=1 - (8 + legend_height) / height,
        )
    axes.grid(axis="y", color=_RULE, linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=11, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_RULE)
    return figure, axes


def label_axes(axes: "Axes", horizontal: str, vertical: str) -> None:
    """Label both axes of a chart."""
    for set_label, text in ((axes.set_xlabel, horizontal), (axes.set_ylabel, vertical)):
        set_label(escape_unprintable(text), color=_INK, fontsize=11, parse_math=False)


def add_legend(axes: "Axes", num_columns: int = 1) -> None:
    """Add a legend with the names of the lines above the chart."""
    legend = axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=num_columns,
        frameon=False,
        fontsize=11,
        labelcolor=_INK,
    )
    for text in legend.get_texts():
        text.set_text(escape_unprintable(text.get_text()))
        text.set_parse_math(False)  # a name is not a formula, even with a dollar sign


def to_svg(figure: "Figure", description: str) -> str:
    """Convert a figure to an SVG element for a page.

    Args:
        figure: The figure.
        description: Text alternative for readers who do not see the chart.
    """
    import matplotlib

    file = io.StringIO()
    # The salt makes the identifiers depend on the content only, so that pages are reproducible.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "teka", "font.family": "sans-serif"}
    with matplotlib.rc_context(settings):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = re.sub(r"^.*?<svg ", "<svg ", file.getvalue(), flags=re.DOTALL)
    for pattern, replacement in _SVG_CHANGES.items():
        svg = re.sub(pattern, replacement, svg, flags=re.DOTALL)
    # Names must be unique on a page with several charts.
    prefix = f"chart-{zlib.crc32(svg.encode()):08x}-"
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\1{prefix}", svg)
    label = escape(escape_unprintable(description))
    return svg.replace("<svg ", f'<svg class="chart" role="img" aria-label="{label}" ', 1).strip()


def choose_ticks(steps: Sequence[float | int]) -> list[int]:
    """Return the indices of about nine evenly spaced steps, for the ticks of an axis.

    If 0 is one of the steps, it gets a tick.
    """
    every = math.ceil(len(steps) / 9)
    zero = list(steps).index(0) if 0 in steps else 0
    return [index for index in range(len(steps)) if (index - zero) % every == 0]
