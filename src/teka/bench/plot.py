"""The picture of a benchmark: time against tokens, and the ratio to the four matrix products."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from teka.bench.layers import YARDSTICK
from teka.bench.table import place_name
from teka.report.direct_labels import spread
from teka.report.require import require

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

INK, GRID = "#1c2430", "#dfe3e8"
BLACK = "#000000"
# Three of Okabe and Ito's colours, which colour-blind readers tell apart, one for each kind of position.
COLOURS = {"": "#0072B2", "rotation": "#D55E00", "rotation_joint": "#D55E00"}
COLOURS |= {"clipped": "#009E73", "clipped_features": "#009E73"}
MARKERS = {"squared_relu": "o", "softmax": "s", "positive": "^", "scaled_dot_product_attention": "D"}
MARKERS |= {"performer_pytorch": "v", YARDSTICK: "X"}
NOT_TEKA = (YARDSTICK, "scaled_dot_product_attention", "performer_pytorch")
QUADRATIC = ("softmax", "scaled_dot_product_attention")
LABEL_HEIGHT = 0.062
"""Height of a label as a share of the panel's."""


def draw_bench(result: Mapping[str, Any]) -> "matplotlib.figure.Figure":
    """Draw what `bench` returned: seconds a step, and times the four matrix products, both against tokens.

    The colour tells the position, the marker the content kernel, and dashes that all pairs of tokens are computed.

    Args:
        result: What `bench` returned or `bench.json` holds.

    Returns:
        A figure that belongs to no window and no global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    require("matplotlib")
    from matplotlib.figure import Figure

    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        lines.setdefault((row["layer"], row["backend"]), []).append(row)
    figure = Figure(figsize=(12, 5.6), dpi=150, layout="constrained", facecolor="white")
    times, ratios = figure.subplots(1, 2)
    sizes = sorted({row["tokens"] for row in result["rows"]})
    _draw_panel(times, lines, sizes, "seconds")
    _draw_panel(ratios, lines, sizes, "ratio_to_gemms")
    times.set_title("Milliseconds, forward and backward", **_title())
    ratios.set_title("The same, in terms of four matrix products", **_title())
    _label(ratios, lines)
    settings = result["settings"]
    threads = f"{settings['threads']} thread{'' if settings['threads'] == 1 else 's'}"
    figure.supxlabel(
        "blue: without position; orange: rotation; green: clipped; black: not teka; dashed: every pair of tokens\n"
        f"batch {settings['batch']}, dim {settings['dim']}, {settings['heads']} heads, float32, {settings['device']}, "
        f"{threads}; medians of {settings['repeats']}",
        color=INK,
        fontsize=9,
    )
    return figure


def _title() -> dict[str, Any]:
    return {"loc": "left", "fontsize": 10.5, "color": INK}


def _draw_panel(
    panel: "matplotlib.axes.Axes",
    lines: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]],
    sizes: Sequence[int],
    quantity: str,
) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    factor = 1e3 if quantity == "seconds" else 1.0
    for (layer, backend), rows in lines.items():
        is_yardstick = layer == YARDSTICK
        style = line_style(layer, backend)
        panel.plot(
            [row["tokens"] for row in rows],
            [factor * row[quantity] for row in rows],
            color=style.colour,
            marker=style.marker,
            linestyle=style.dashes,
            linewidth=3.0 if is_yardstick else 1.6,
            markersize=6.5,
            markeredgecolor="white",
            markeredgewidth=0.6,
            zorder=1.5 if is_yardstick else 2,
        )
    panel.set_xlabel("tokens", color=INK, fontsize=9)
    panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.tick_params(which="both", colors=INK, labelsize=9, length=0)
    panel.grid(axis="y", color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(GRID)


class LineStyle(NamedTuple):
    """How a line looks."""

    colour: str
    marker: str
    dashes: str | tuple[int, tuple[float, ...]]


def line_style(layer: str, backend: str) -> LineStyle:
    """Colour by position, marker by content kernel, dashes where all pairs of tokens are computed."""
    kernel, _, relative = layer.partition("-")
    colour = BLACK if kernel in NOT_TEKA else COLOURS.get(relative, BLACK)
    all_pairs = backend == "dense" or kernel in QUADRATIC
    return LineStyle(colour, MARKERS.get(kernel, "x"), (0, (4, 2)) if all_pairs else "-")


def _ratio(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"


def _label(panel: "matplotlib.axes.Axes", lines: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> None:
    """Write each line's name and its last ratio to the right of its end."""
    ends = [(layer, backend, rows[-1]) for (layer, backend), rows in lines.items()]
    to_fraction = panel.transData + panel.transAxes.inverted()
    heights = [float(to_fraction.transform((row["tokens"], row["ratio_to_gemms"]))[1]) for _, _, row in ends]
    placed = spread(heights, [LABEL_HEIGHT] * len(ends), 0.0, 1.03)
    for (layer, backend, row), height in zip(ends, placed, strict=True):
        panel.annotate(
            f"{_ratio(row['ratio_to_gemms'])}×  {place_name(layer, backend)}",
            xy=(row["tokens"], row["ratio_to_gemms"]),
            xytext=(1.06, height),
            textcoords="axes fraction",
            va="center",
            ha="left",
            fontsize=9,
            color=INK,
            annotation_clip=False,
            parse_math=False,
            arrowprops={
                "arrowstyle": "-",
                "color": line_style(layer, backend).colour,
                "linewidth": 1.0,
                "relpos": (0, 0.5),
                "shrinkB": 5,
            },
        )
