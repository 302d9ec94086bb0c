"""`teka evaluate`: accuracy of a trained run on its test images."""

import argparse

from teka.cli.parser import Parser
from teka.training import evaluate, restore
from teka.training.trained_run import EVALUATION_FILE

EXAMPLES = """\
  teka evaluate runs/digits-rotation-squared_relu-0
  teka evaluate runs/long --data-dir data
"""


def make_parser() -> Parser:
    """Options of the command."""
    parser = Parser("teka evaluate", "Measure a trained run on every test image.", EXAMPLES)
    parser.add_argument("run", type=str, help="Folder of a finished run.")
    parser.add_argument("--data_dir", type=str | None, help="Folder with the data set's files, if it has moved.")
    parser.add_argument("--batch_size", type=int, default=256, help="Images at a time.")
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Measure, print and write `evaluation.json`."""
    trained = restore(options.run, data_dir=options.data_dir)
    evaluation = evaluate(trained, batch_size=options.batch_size, command=command)
    low, high = evaluation.interval
    print(f"{trained.name} on {evaluation.test_images:,} test images of {evaluation.dataset}")
    print(f"accuracy  {evaluation.accuracy:.2%}   (95 % interval {low:.2%} to {high:.2%})")
    for label, accuracy in enumerate(evaluation.accuracy_by_class):
        print(f"class {label:>3}  {accuracy:.2%}")
    print(f"written: {trained.folder / EVALUATION_FILE}")
