"""`teka shift`: accuracy of trained runs at every shift."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from teka.cli.parser import Parser
from teka.errors import wrong_value
from teka.files import make_directory
from teka.training import ShiftSettings, TrainedRun, measure, restore, write_shift_report
from teka.training.shift import check_same_data
from teka.training.shift_page import write_report
from teka.training.shift_report import finding, load_report, plain_table

EXAMPLES = """\
  teka shift runs/digits-absolute-squared_relu-0 runs/digits-rotation-squared_relu-0
  teka shift runs/mnist-* --max-shift 8 --selection figure1 --out runs/figure1
  teka shift runs/mnist-* --mode canvas --max-shift 6
"""


def make_parser() -> Parser:
    """Options of the command."""
    parser = Parser("teka shift", "Compare trained runs on their test images, shifted along both axes.", EXAMPLES)
    parser.add_argument("runs", nargs="+", type=str, help="Folders of finished runs on the same data.")
    parser.add_class_arguments(ShiftSettings)
    parser.add_argument("--data_dir", type=str | None, help="Folder with the data set's files, if it has moved.")
    parser.add_argument("--out", type=str, default="runs/shift", help="Folder for the report.")
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Measure, print the table and write the report."""
    settings = ShiftSettings(options.max_shift, options.mode, options.selection, options.batch_size)
    folders = [Path(run) for run in options.runs]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise wrong_value("runs", options.runs, "each folder once")
    trained = [restore(folder, data_dir=options.data_dir) for folder in folders]
    compare(trained, settings, make_directory("out", options.out), command=command)


def compare(trained: Sequence[TrainedRun], settings: ShiftSettings, folder: Path, *, command: str) -> None:
    """Measure runs at every shift, write report.json, the curve and the page, and print the table.

    Args:
        trained: The runs.
        settings: What is shifted, how far and how.
        folder: Where to write.
        command: The command to keep with the numbers.
    """
    check_same_data(trained)
    accuracies = []
    for run in trained:
        with tqdm(desc=f"shift {run.name}", unit="batch", leave=False, file=sys.stdout, disable=None) as bar:

            def show(done: int, total: int, bar: tqdm = bar) -> None:
                bar.total = total
                bar.update(done - bar.n)

            accuracies.append(measure(run, settings, show))
    write_shift_report(trained, accuracies, settings, folder, command=command)
    written = write_report(folder)
    results = load_report(folder / "report.json")
    print(plain_table(results))
    print()
    print(finding(results))
    print(f"written: {folder / 'report.json'}, {written.shift_curve}, {written.page}")
