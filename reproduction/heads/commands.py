"""The commands `heads` and `prune`."""

from pathlib import Path
from typing import Any

from reproduction.heads import figures
from reproduction.heads.measure import attention_maps
from reproduction.heads.prune import CONDITION_NUMBER, require_self_attention
from reproduction.heads.prune import prune as prune_run
from reproduction.heads.record import HEADS_FILE, load_head_record
from teka.cli.app import CommandLine
from teka.files import make_directory, write_bytes
from teka.reporting.plots import to_png
from teka.training import restore
from teka.training.checkpoint import CHECKPOINTS, LAST, load_weights

NUM_IMAGES = 100


def prune(
    run: Path,
    /,
    *,
    out: Path,
    condition_number: float = CONDITION_NUMBER,
    data_dir: str | None = None,
    command: CommandLine = "",
) -> None:
    """Remove the degenerate heads of a self_attention network, and continue its training.

    The training takes a third of the epochs of the run. The result is the folder of a finished run.

    Args:
        run: Folder of a finished run with position quadratic or generalized_quadratic.
        out: Folder to write, new or empty.
        condition_number: Also remove heads that attend to a thin stripe: the largest eigenvalue
            of their precision matrix is more than this multiple of the smallest eigenvalue.
        data_dir: Folder with the files of the data set.
        command: The command line.
    """
    heads, models = prune_run(
        restore(run, data_dir=data_dir), out, condition_number=condition_number, command=command
    )
    degenerate: Any = heads[["everywhere", "thin", "pruned"]]
    counts = degenerate.groupby("layer").sum()
    counts.loc["all"] = counts.sum()
    print(counts.to_string(), models.to_string(), f"written: {out}", sep="\n\n")


def heads(run: Path, /, *, out: Path | None = None, data_dir: str | None = None) -> None:
    """Show where the attention heads of a self_attention network attend.

    One figure shows how the centers of the attention move during training, another one shows
    attention maps. A table shows how close the heads are to a convolution: how many offsets of a
    3 × 3 window they attend to.

    Args:
        run: Folder of a finished run.
        out: Folder for the figures, by default heads/ in the folder of the run.
        data_dir: Folder with the files of the data set.
    """
    trained = restore(run, data_dir=data_dir)
    model = require_self_attention(trained)
    record = load_head_record(run / HEADS_FILE)
    # The record ends with the last epoch, which need not be the best one.
    load_weights(model, run / CHECKPOINTS / LAST)
    maps = attention_maps(model, trained.dataset.test.images[:NUM_IMAGES])
    folder = make_directory("out", out or run / "heads")
    write_bytes(folder / "head_centers.png", to_png(figures.draw_centers_of_heads(record)))
    write_bytes(folder / "attention_maps.png", to_png(figures.draw_attention_maps(maps)))
    print("Before training → after training (mean over random initial parameters):")
    print(figures.compare_layers(record).to_string(), f"written: {folder}", sep="\n\n")
