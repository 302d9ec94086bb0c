"""Write the pictures and the page of a network's heads."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from teka import __version__
from teka.audit.page.shift_curve import encode_png
from teka.audit.page.template import data_uri, render_page
from teka.files import make_directory, write_bytes
from teka.training.heads.animation import choose_moments, draw_frames, encode_frame, encode_gif
from teka.training.heads.centers import draw_head_centers, epochs_in_words
from teka.training.heads.maps import draw_attention_maps
from teka.training.heads.progress import draw_head_accuracy, draw_head_progress
from teka.training.heads.record import HeadRecord
from teka.training.heads.text import PROGRESS_NOTE, TABLE_NOTE, centers_note, head_finding, head_table, maps_note

ACCURACY_TEXT = "Accuracy against epochs, on held-out images and on the training images as they were augmented."


class HeadFiles(NamedTuple):
    """The files written: the page, the pictures, and the moving picture; and the table for a terminal."""

    page: Path
    pictures: tuple[Path, ...]
    animation: Path
    terminal: str

    @property
    def files(self) -> tuple[Path, ...]:
        """All files."""
        return (self.page, *self.pictures, self.animation)


def write_heads(
    record: HeadRecord,
    maps: Sequence[NDArray[np.floating]],
    folder: str | Path,
    *,
    query: tuple[int, int],
    num_images: int,
    name: str,
    settings: Sequence[tuple[str, str]] = (),
) -> HeadFiles:
    """Write `heads.html`, `head_centers.png`, `attention_maps.png`, `head_grid.png`, `accuracy.png` and `heads.gif`.

    Every file is written whole or not at all, and none before all are made. There is no `accuracy.png` where no
    accuracy was measured.

    Args:
        record: The heads over training.
        maps: For each layer the weights of one token at the end, (heads, rows, columns).
        folder: Where to write; made if it is missing.
        query: Row and column of that token, from 0.
        num_images: Images over which the weights are a mean.
        name: What to call the network.
        settings: What else the page says of it, by name.

    Raises:
        ImportError: matplotlib, Pillow or jinja2 is not installed.
        ValueError: The folder is a file.
        OSError: The folder cannot be written.
    """
    moments = choose_moments(record)
    frames = draw_frames(record, moments)
    accuracy = draw_head_accuracy(record)
    pictures = {
        "head_centers.png": encode_png(draw_head_centers(record, sorted({0, len(record.epoch) - 1}))),
        "attention_maps.png": encode_png(draw_attention_maps(maps, query)),
        "head_grid.png": encode_png(draw_head_progress(record)),
        **({} if accuracy is None else {"accuracy.png": encode_png(accuracy)}),
    }
    table = head_table(record)
    page = render_page(
        "teka.training.heads",
        "heads.html.j2",
        {
            "title": f"Where the heads look: {name}",
            "version": __version__,
            "finding": head_finding(record),
            "centers": data_uri(pictures["head_centers.png"]),
            "centers_note": centers_note(record),
            "frames": [
                (epochs_in_words(record, moment), data_uri(encode_frame(frame)))
                for moment, frame in zip(moments, frames, strict=True)
            ],
            "maps": data_uri(pictures["attention_maps.png"]),
            "maps_note": maps_note(record, query, num_images),
            "query": query,
            "progress": data_uri(pictures["head_grid.png"]),
            "progress_note": PROGRESS_NOTE,
            "columns": table.heads,
            "rows": table.rows,
            "table_note": TABLE_NOTE,
            "accuracy": data_uri(pictures["accuracy.png"]) if "accuracy.png" in pictures else None,
            "accuracy_text": ACCURACY_TEXT,
            "settings": settings,
        },
    )
    animation = encode_gif(frames)
    folder = make_directory("out", folder)
    for file_name, content in {**pictures, "heads.gif": animation, "heads.html": page.encode()}.items():
        write_bytes(folder / file_name, content)
    return HeadFiles(
        folder / "heads.html", tuple(folder / one for one in pictures), folder / "heads.gif", table.plain()
    )
