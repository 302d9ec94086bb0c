"""The page of a network's heads, with its pictures, and what is said of the heads in words and tables."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reproduction.heads import pictures as draw
from reproduction.heads.record import HeadRecord
from teka import __version__
from teka.files import make_directory
from teka.reporting.charts import encode_png
from teka.reporting.formatting import listed
from teka.reporting.html import data_uri, render_page
from teka.reporting.tables import Table, Written, write_files

COLUMNS = {
    **dict.fromkeys(("layer", "heads")),
    "different offsets": ("distinct", 0),
    "of 3 × 3 taken": ("window_3", 0),
    "by chance": "window_3",
    "of 5 × 5 taken": ("window_5", 0),
    "by chance ": "window_5",
    "at one place": ("local", 0),
    "spread": ("spread", 2),
    "distance": ("distance", 2),
}
"""Heads of the table: a number with its digits, at the first and at the last moment, or one by chance."""
GAUSSIAN_NOTE = "the centers of the heads' Gaussians", "hold 50 % (solid) and 90 % (dotted) of each"
MEAN_NOTE = (
    "the means of the heads' attention from a query in the middle",
    "would hold 50 % (solid) and 90 % (dotted) of a Gaussian with its mean and covariance; the shape of a head that "
    "looks at several places is in its map",
)


def head_table(record: HeadRecord) -> list[tuple[str, ...]]:
    """How near the heads of each layer are to a grid, with a text for each of `COLUMNS`."""
    rows = []
    for layer in range(record.num_layers):
        cells = [str(layer + 1), f"{record.numbers['heads'][-1, layer]:.0f}"]
        for what in COLUMNS.values():
            if isinstance(what, str):
                cells.append(f"{record.chance[what][layer]:.1f}")
            elif what is not None:
                name, digits = what
                first, last = record.numbers[name][[0, -1], layer].tolist()
                cells.append(f"{first:.{digits}f} → {last:.{digits}f}")
        rows.append(tuple(cells))
    return rows


def head_finding(record: HeadRecord) -> str:
    """In a few sentences, how many offsets of the window the heads take and how many look at one place."""
    taken, local = record.numbers["window_3"], record.numbers["local"]
    total, at_one_place = int(record.numbers["heads"][-1].sum()), int(local[-1].sum())
    first, last = (listed([f"{count:.0f}" for count in taken[moment]]) for moment in (0, -1))
    by_layer = f"in layers 1 to {record.num_layers}" if record.num_layers > 1 else "in the layer"
    return (
        f"Of the 9 offsets of the 3 × 3 window, heads take {first} at the {record.when(0)} {by_layer}, and {last} at "
        f"{record.when(-1)}; random initial parameters take {record.chance['window_3'].mean():.1f} in the mean. "
        f"{at_one_place or 'None'} of the {total} heads {'have' if at_one_place > 1 else 'has'} half of the attention "
        "or more on one token."
    )


def write_heads(
    record: HeadRecord,
    maps: Sequence[NDArray[np.floating]],
    folder: str | Path,
    *,
    query: tuple[int, int],
    num_images: int,
    name: str,
    settings: Sequence[tuple[str, str]] = (),
    before: HeadRecord | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Written:
    """Write `heads.html`, `head_centers.png`, `attention_maps.png`, `head_grid.png`, `accuracy.png` and `heads.gif`.

    None is written before all are made, and no `accuracy.png` where no accuracy was measured.

    Args:
        record: The heads over training.
        maps: For each layer the weights of one token at the end, (heads, rows, columns).
        folder: Made if it is missing.
        query: Row and column of that token, from 0.
        num_images: Images over which the weights are a mean.
        name: What to call the network.
        settings: What else the page says of it, by name.
        before: The heads over the training before some were pruned, whose accuracy is drawn before theirs.
        progress: Called after each picture of the moving one, with the number so far and of all.

    Raises:
        ImportError: matplotlib, Pillow or jinja2 is not installed.
        ValueError: The folder is a file.
        OSError: The folder cannot be written.
    """
    moments = draw.choose_moments(record)
    frames = draw.draw_frames(record, moments, progress)
    stills = [draw.encode_frames([frame], "PNG") for frame in frames]
    drawn = {
        "head_centers.png": draw.draw_head_centers(record, sorted({0, len(record.epoch) - 1})),
        "attention_maps.png": draw.draw_attention_maps(maps, query),
        "head_grid.png": draw.draw_head_progress(record),
        "accuracy.png": draw.draw_head_accuracy(record, before),
    }
    pictures = {file: encode_png(figure) for file, figure in drawn.items() if figure is not None}
    rows = head_table(record)
    which, ellipses = GAUSSIAN_NOTE if record.is_gaussian else MEAN_NOTE
    content = {
        "title": f"Where the heads look: {name}",
        "version": __version__,
        "finding": head_finding(record),
        "record": record,
        "which": which,
        "ellipses": ellipses,
        "by": f"with content, mean of {num_images:,} test images"
        if record.content
        else "by position alone",
        "frames": list(zip(map(record.when, moments), map(data_uri, stills), strict=True)),
        "pictures": {file: data_uri(picture) for file, picture in pictures.items()},
        "query": query,
        "columns": [column.rstrip() for column in COLUMNS],
        "rows": rows,
        "settings": settings,
    }
    page = render_page("reproduction.heads", "heads.html.j2", content)
    files = {
        "heads.html": page.encode(),
        **pictures,
        "heads.gif": draw.encode_frames(frames, "GIF"),
    }
    return write_files(
        make_directory("out", folder), files, [Table("", tuple(COLUMNS), tuple(rows))]
    )
