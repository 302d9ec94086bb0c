"""`teka export`: a finished run's model as a model file."""

import argparse

from teka.cli.parser import Parser
from teka.models.model_file import WEIGHTS_FILE
from teka.training import export, restore

EXAMPLES = """\
  teka export runs/digits-rotary-squared_relu-0 --out models/digits
  teka export runs/mnist --data-dir data --out models/mnist --dtype float16
"""


def make_parser() -> Parser:
    """Options of the command."""
    description = (
        "Write the best weights of a finished run as a model file: a folder with config.json and model.safetensors, "
        "for teka predict --model and teka.models.load."
    )
    parser = Parser("teka export", description, EXAMPLES)
    parser.add_argument("run", type=str, help="Folder of a finished run.")
    parser.add_argument(
        "--out", type=str, required=True, help="Folder to write; a model file that stood there is replaced."
    )
    parser.add_argument(
        "--dtype", type=str, default="float32", help="How weights are stored: float32, or float16, which rounds them."
    )
    parser.add_argument("--data_dir", type=str | None, help="Folder with the data set's files, if it has moved.")
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Write, and say what was written."""
    trained = restore(options.run, data_dir=options.data_dir)
    folder = export(trained, options.out, dtype=options.dtype)
    size = (folder / WEIGHTS_FILE).stat().st_size
    print(f"written: {folder}, the weights in {size / 1e6:.2f} MB of {options.dtype}")
