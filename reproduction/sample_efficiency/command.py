"""The command `sample-efficiency`."""

from pathlib import Path

import torch

from reproduction.commands import parse_only
from reproduction.sample_efficiency.report import write_report
from reproduction.sample_efficiency.train import train_cells
from reproduction.study import read_study
from teka.cli.app import CommandLine

HERE = Path(__file__).parent


def sample_efficiency(
    *,
    out: Path | None = None,
    only: tuple[str, ...] = (),
    data_dir: str | None = None,
    threads: int = 1,
    summary: bool = False,
    command: CommandLine = "",
) -> None:
    """Train models on few images, and write a table and a figure of their accuracies.

    The same command resumes an interrupted study. Several processes can share the folder.

    Args:
        out: Folder of the results, by default that of the study.
        only: Train only the cells with these levels, as in --only "images=100,300". The seed is a
            factor too. The option can be repeated.
        data_dir: Folder with the files of the data sets.
        threads: Number of threads.
        summary: Train nothing, and write the table and the figure of the finished cells.
        command: The command line.
    """
    torch.set_num_threads(threads)
    folder = HERE if out is None else out
    study = read_study(HERE / "study.yaml")
    if not summary:
        train_cells(study, folder, data_dir=data_dir, only=parse_only(only), command=command)
    print(write_report(study, folder))
