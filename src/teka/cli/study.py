"""`teka study`: a grid of runs from one YAML file, trained side by side and compared."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from teka.cli.parser import Parser
from teka.errors import wrong_value
from teka.experiments.study import Study, measure_step_seconds, pack_study, read_study, repeat_cell, run_study
from teka.experiments.study.cells import CELLS, list_cells
from teka.experiments.study.report.write import write_study
from teka.experiments.study.run_study import Progress

DIFFERENT = "the numbers differ from those of the file"
EXAMPLES = """\
  teka study studies/kernels.yaml --data-dir data --processes 2
  teka study studies/kernels.yaml --data-dir data --only data=digits --only "kernel=squared relu,softmax"
  teka study studies/kernels.yaml --summary --pack
  teka study studies/kernels.yaml --data-dir data --processes 2 --step-seconds
  teka study studies/kernels.yaml --data-dir data --repeat digits--squared-relu--rotation--seed-0
"""


def make_parser() -> Parser:
    """Options of the command."""
    description = (
        "Train every cell of a study that has no result yet, then write tables and plots of all that have one. "
        "Killed at any moment, the same command goes on where it was."
    )
    parser = Parser("teka study", description, EXAMPLES)
    parser.add_argument("study", type=str, help="YAML file of the study.")
    parser.add_argument(
        "--out", type=str | None, help="Folder of the results, beside the file and named after it by default."
    )
    add_grid_options(parser)
    parser.add_argument(
        "--repeat",
        type=str | None,
        metavar="CELL",
        help="Train one finished cell again elsewhere and compare the numbers.",
    )
    parser.add_argument(
        "--step_seconds",
        action="store_true",
        help="Train nothing, and time a training step of every model in turn: seconds that can be compared.",
    )
    return parser


def add_grid_options(parser: Parser) -> None:
    """Add what every command that trains a grid of runs takes.

    Args:
        parser: The command's parser.
    """
    parser.add_argument("--data_dir", type=str | None, help="Folder with the data sets' files; see teka download.")
    parser.add_argument(
        "--processes", type=int, default=1, help="Runs trained side by side on a machine, each on its share of cores."
    )
    parser.add_argument(
        "--parallel",
        type=str,
        default="loky",
        help="What runs them: loky, processes of this machine; dask or ray, a cluster, at dask:ADDRESS or ray:ADDRESS.",
    )
    parser.add_argument(
        "--only",
        action="append",
        type=str,
        default=[],
        metavar="FACTOR=LEVEL,...",
        help="Train only the runs at these levels; 'seed' is a factor too. May be given several times.",
    )
    parser.add_argument("--summary", action="store_true", help="Train nothing, and write the tables and plots.")
    parser.add_argument(
        "--pack",
        action="store_true",
        help="Then pack the cells' files into one, cells.jsonl.gz, which is read as well.",
    )


def main(options: argparse.Namespace, command: str) -> None:
    """Train what is missing, and write what came of it."""
    study = read_study(options.study)
    folder = Path(options.out) if options.out is not None else Path(options.study).with_suffix("")
    if options.repeat is not None:
        repeat(study, folder, options.repeat, data_dir=options.data_dir)
        return
    if options.step_seconds:
        if options.only:
            raise wrong_value("only", options.only, "nothing with --step-seconds, which times every model of the study")
        with progress_bar("model") as show:
            timed = measure_step_seconds(
                study,
                folder,
                data_dir=options.data_dir,
                processes=options.processes,
                command=command,
                progress=show,
            )
        print(f"written: {timed}")
        if not any(list_cells(folder / CELLS)):
            return
    elif not options.summary:
        with progress_bar("cell") as show:
            run_study(
                study,
                folder,
                data_dir=options.data_dir,
                processes=options.processes,
                parallel=options.parallel,
                only=parse_only(options.only),
                command=command,
                progress=show,
            )
    planned = len(study.places({}))
    written = write_study(folder, reference=study.reference, planned=planned)
    print(written.terminal)
    print(f"written: {', '.join(map(str, written.files))}")
    if options.pack:
        print(f"packed: {', '.join(map(str, pack_study(folder)))}")


@contextlib.contextmanager
def progress_bar(unit: str) -> Iterator[Callable[[Progress], None]]:
    """A bar on the terminal for as long as the block runs; it gives what `run_study` takes as `progress`.

    Args:
        unit: What is counted.
    """
    with contextlib.ExitStack() as stack:
        bars: list[tqdm[NoReturn]] = []

        def show(progress: Progress) -> None:
            if not bars:  # only now, so that none stands above an error of what was asked for
                bars.append(stack.enter_context(tqdm(unit=unit, file=sys.stdout, dynamic_ncols=True)))
            (bar,) = bars
            if progress.cell is None:
                bar.initial = 0
                bar.reset(progress.total)
                bar.initial = bar.n = progress.done
                bar.set_description_str(progress.stage)
            bar.set_postfix_str("" if progress.cell is None else progress.cell.name)
            bar.update(progress.done - bar.n)

        yield show


def repeat(study: Study, folder: Path, cell: str, *, data_dir: str | None) -> None:
    """Train one cell again and say how the numbers compare.

    Args:
        study: The study.
        folder: Its folder.
        cell: The cell's name.
        data_dir: Folder with the data sets' files.

    Raises:
        ValueError: They are not the same.
    """
    repetition = repeat_cell(study, folder, cell, data_dir=data_dir)
    for key, stored in repetition.stored.items():
        print(f"{key:<22} {stored!s:<22} again {repetition.repeated[key]}")
    if not repetition.is_same:
        raise ValueError(f"{repetition.name}: {DIFFERENT}; other hardware, versions or threads may round otherwise")
    print("the same numbers")


def parse_only(given: list[str]) -> dict[str, list[str]]:
    """Levels by factor from "factor=level,level".

    Args:
        given: What stood after --only.

    Raises:
        ValueError: Not of that form.
    """
    only: dict[str, list[str]] = {}
    for entry in given:
        factor, equals, levels = entry.partition("=")
        if not (factor and equals and levels):
            raise wrong_value("only", entry, "FACTOR=LEVEL or FACTOR=LEVEL,LEVEL")
        only.setdefault(factor, []).extend(level.strip() for level in levels.split(","))
    return only
