"""What the errors of random features tell: tables, a picture and a page."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.approximation.approximate import FILE
from teka.codec import encode
from teka.functional import PROJECTIONS
from teka.functional.kernels import RANDOM_KERNELS
from teka.reporting.charts import (
    add_legend,
    draw_line,
    dress_panel,
    encode_png,
    make_figure,
    tick_decades,
)
from teka.reporting.html import data_uri, render_page
from teka.reporting.style import INK, SOFT, level_styles
from teka.reporting.tables import Table, Written, write_files

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

TITLE = "How near random features come to softmax"
PICTURE, PAGE = "approximation.png", "approximation.html"
STYLES = level_styles([*RANDOM_KERNELS, *PROJECTIONS])
KINDS = {"output": "Output, tokens of size {:g}", "ball": "Worst query of a ball of radius {:g}"}
Row = Mapping[str, Any]
Result = Mapping[str, Any]


def write_approximation(result: Result, folder: str | Path) -> Written:
    """Write the numbers, the picture and a page of both, all or none of them."""
    tables, notes = [*error_tables(result), drawing_table(result)], notes_of(result)
    picture = encode_png(draw_approximation(result))
    said = {
        "title": TITLE,
        "version": result["teka"],
        "description": "Softmax attention estimated with random features, against the exact one in float64.",
        "tables": tables,
        "figures": [
            (
                TITLE,
                data_uri(picture),
                "Errors against the number of features. The tables have the numbers.",
            )
        ],
        "figure_note": notes[0],
        "notes": notes,
        "commands": [result["command"]] if result["command"] else [],
    }
    page = render_page("reproduction", "report.html.j2", said)
    contents: dict[str, str | bytes] = {
        FILE: json.dumps(encode(result), indent=1) + "\n",
        PICTURE: picture,
        PAGE: page,
    }
    return write_files(Path(folder), contents, tables, notes)


def chosen(rows: Sequence[Row], **levels: object) -> list[Row]:
    """The rows at some levels, the fewest features first."""
    found = [row for row in rows if all(row[name] == level for name, level in levels.items())]
    return sorted(found, key=lambda row: row["num_features"])


def error_tables(result: Result) -> list[Table]:
    """For both errors, every kernel and way of drawing at the largest number of features, and how fast it falls."""
    settings, tables = result["settings"], []
    most = max(settings["num_features"])
    for kind, sizes in (("output", settings["sizes"]), ("ball", settings["radii"])):
        rows = []
        for kernel in settings["kernels"]:
            for projection in settings["projections"]:
                lines = [
                    chosen(result[kind], kernel=kernel, projection=projection, size=size)
                    for size in sizes
                ]
                ends = [(line[-1]["error"], line[-1]["upper"]) for line in lines]
                cells = [
                    f"{error:.3g} ± {float(f'{upper - error:.1g}'):g}" for error, upper in ends
                ]
                slopes = [slope_of(line) for line in lines]
                rows.append(
                    (
                        f"{kernel}, {projection}",
                        *cells,
                        *("–" if one is None else f"{one:.2f}" for one in slopes),
                    )
                )
        if kind == "output":
            means = [f"{row['error']:.3g}" for row in result["of_mean"]]
            rows.append(("the mean of the values", *means, *[""] * len(sizes)))
        what = (
            "Error of the output, ‖ÂV − AV‖ / ‖AV‖,"
            if kind == "output"
            else "Largest total variation in a ball,"
        )
        name = "size" if kind == "output" else "radius"
        heads = (
            *(f"{name} {size:g}" for size in sizes),
            *(f"m^, {name} {size:g}" for size in sizes),
        )
        tables.append(
            Table(f"{what} with {most:,} features", ("kernel, draws", *heads), tuple(rows))
        )
    return tables


def slope_of(line: Sequence[Row]) -> float | None:
    """The power of m by which the error falls, over the upper half of six numbers or more; None for fewer than 3."""
    upper = line[len(line) // 2 :] if len(line) >= 6 else line
    if len(upper) < 3 or any(row["error"] <= 0 for row in upper):
        return None
    points = np.log([[row["num_features"], row["error"]] for row in upper])
    return float(np.polyfit(points[:, 0], points[:, 1], deg=1)[0])


def drawing_table(result: Result) -> Table:
    """The mean square of the output's error over that with independent draws, at the number nearest to d ln d."""
    settings = result["settings"]
    default = settings["dim"] * math.log(settings["dim"])
    number = min(settings["num_features"], key=lambda one: abs(math.log(one / default)))
    rows = []
    for kernel in settings["kernels"]:
        for projection in settings["projections"]:
            cells = []
            for size in settings["sizes"]:
                mine, independent = (
                    chosen(
                        result["output"],
                        kernel=kernel,
                        projection=one,
                        size=size,
                        num_features=number,
                    )
                    for one in (projection, "independent")
                )
                cells.append(
                    f"{mine[0]['mean_square'] / independent[0]['mean_square']:.2f}"
                    if independent
                    else "–"
                )
            rows.append((f"{kernel}, {projection}", *cells))
    title = f"Mean square of the output's error over that of independent draws, {number:,} features"
    return Table(
        title, ("kernel, draws", *(f"size {size:g}" for size in settings["sizes"])), tuple(rows)
    )


def notes_of(result: Result) -> list[str]:
    """What the numbers are, and what they were measured on."""
    settings = result["settings"]
    return [
        f"Means over {settings['draws']} draws with 95 % intervals, of {settings['tokens']:,} queries and keys of "
        f"size {settings['dim']}, the same for all. m counts features, of which hyperbolic and trigonometric ones have "
        "two a draw. An error of the output near that of the mean of the values says that nothing is left of "
        "attention. A total variation is the share of a query's weight that is at the wrong keys; with weights of both "
        "signs it may pass 1. m^ is the slope against m on logarithmic scales over the larger numbers, −0.5 in the "
        "limit.",
        f"Measured {result['date']} on {result['hardware']} with torch {result['torch']} and teka {result['teka']}.",
    ]


def draw_approximation(result: Result) -> "matplotlib.figure.Figure":
    """Panels of both errors by kernel with orthogonal draws, and below by way of drawing of the first kernel."""
    settings = result["settings"]
    first, usual = settings["kernels"][0], settings["projections"][0]
    columns = max(len(settings["sizes"]), len(settings["radii"]))
    figure = make_figure(3.6 * columns + 2.2, 9.6, dpi=150)
    grid = figure.subplots(3, columns, squeeze=False, sharey="row")
    by_kernel = [
        (kernel, {"kernel": kernel, "projection": usual}) for kernel in settings["kernels"]
    ]
    by_draws = [(name, {"kernel": first, "projection": name}) for name in settings["projections"]]
    parts = (
        ("output", "sizes", by_kernel),
        ("output", "sizes", by_draws),
        ("ball", "radii", by_kernel),
    )
    for panels, (kind, names, lines) in zip(grid, parts, strict=True):
        for panel, size in zip_longest(panels, settings[names]):
            if size is None:
                panel.set_visible(False)
                continue
            title = KINDS[kind].format(size) + (f", {first}" if lines is by_draws else "")
            _draw_panel(
                panel,
                title,
                [(name, chosen(result[kind], size=size, **levels)) for name, levels in lines],
            )
            if kind == "output":
                of_mean = next(row["error"] for row in result["of_mean"] if row["size"] == size)
                panel.axhline(of_mean, color=SOFT, linewidth=1.0, linestyle=(0, (1, 1.2)))
        panels[0].set_ylabel("error" if kind == "output" else "total variation", color=INK)
    shown = {
        name: panel
        for panel, lines in ((grid[0][0], by_kernel), (grid[1][0], by_draws))
        for name, _ in lines
    }
    handles = [
        next(line for line in panel.get_lines() if line.get_label() == name)
        for name, panel in shown.items()
    ]
    names = [
        f"{name}, {usual} draws" if name in RANDOM_KERNELS else f"{first}, {name} draws"
        for name in shown
    ]
    add_legend(figure, handles, names, place="outside right upper", handle_length=3.0)
    for panel in grid[-1]:
        panel.set_xlabel(
            "features m; dotted above: the mean of the values", color=INK, fontsize=8.5
        )
    return figure


def _draw_panel(
    panel: "matplotlib.axes.Axes", title: str, lines: Sequence[tuple[str, Sequence[Row]]]
) -> None:
    for name, rows in lines:
        places, errors, lower, upper = (
            [row[column] for row in rows] for column in ("num_features", "error", "lower", "upper")
        )
        least = [max(low, error / 10) for low, error in zip(lower, errors, strict=True)]
        draw_line(panel, STYLES[name], places, errors, band=(least, upper), label=name)
    dress_panel(panel, title, "both")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    numbers = sorted({row["num_features"] for _, rows in lines for row in rows})
    panel.set_xticks(numbers, [f"{number:,}" for number in numbers])
    panel.set_xticks([], minor=True)
    tick_decades(panel.yaxis)
