"""`teka reproduce`: the table and the figure of Horn et al. (2021)."""

import argparse
from pathlib import Path

from teka.cli.parser import Parser
from teka.cli.study import add_grid_options, parse_only, progress_bar
from teka.experiments.reproduce import read_reproduction, reproduce
from teka.experiments.reproduce.reproduction import SCALES, TARGETS, write_reproduction
from teka.experiments.study import pack_study

EXAMPLES = """\
  teka reproduce table1 --data-dir data --processes 2
  teka reproduce figure1 --data-dir data --only seed=0
  teka reproduce table1 --scale full --data-dir data --only "model=Performer (absolute)" --only data=mnist
  teka reproduce table1 --summary
"""


def make_parser() -> Parser:
    """Options of the command."""
    description = (
        "Train what a table or figure of Horn et al. (2021) still lacks, and write both from all that is there. Killed "
        "at any moment, the same command goes on where it was."
    )
    parser = Parser("teka reproduce", description, EXAMPLES)
    parser.add_argument("target", type=str, help=f"What to reproduce: {' or '.join(TARGETS)}.")
    parser.add_argument(
        "--scale", type=str, default="small", help=f"{SCALES[0]}, for a processor, or {SCALES[1]}, the paper's size."
    )
    parser.add_argument("--out", type=str | None, help="Folder of the results, runs/reproduce-SCALE by default.")
    add_grid_options(parser)
    parser.add_argument("--list", action="store_true", help="Train nothing, and list the data sets, models and seeds.")
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Train what is missing, and write the table and the figure."""
    study = read_reproduction(options.scale)
    if options.list:
        for factor, levels in {**study.factors, "seed": list(map(str, study.seeds))}.items():
            print(f"{factor}: {'; '.join(levels)}")
        return
    folder = Path(f"runs/reproduce-{options.scale}" if options.out is None else options.out)
    if not options.summary:
        with progress_bar("model") as show:
            reproduce(
                options.target,
                folder,
                scale=options.scale,
                data_dir=options.data_dir,
                processes=options.processes,
                parallel=options.parallel,
                only=parse_only(options.only),
                command=command,
                progress=show,
            )
    written = write_reproduction(folder, description=study.description, planned=len(study.places({})))
    print(written.terminal)
    print(f"written: {', '.join(map(str, written.files))}")
    if options.pack:
        print(f"packed: {', '.join(map(str, pack_study(folder)))}")
