"""`teka download`: the files of published data sets, checked."""

import argparse

from teka.cli.parser import Parser
from teka.data import Fetcher, download
from teka.data.catalogue import PUBLISHED_DATASETS
from teka.data.load import published_dataset

EXAMPLES = """\
  teka download mnist
  teka download mnist fashion-mnist cifar10 --data-dir data
  teka download cifar10 --timeout 120 --attempts 20
"""


def make_parser() -> Parser:
    """Options of the command."""
    description = (
        "Fetch published data sets, check them and put them where the other commands find them with --data-dir. "
        "Whole files that are there are left alone; a call that was cut off is gone on with by the next one."
    )
    parser = Parser("teka download", description, EXAMPLES)
    parser.add_argument(
        "names", nargs="+", type=str, metavar="NAME", help=f"Data sets: {', '.join(PUBLISHED_DATASETS)}."
    )
    parser.add_argument("--data_dir", type=str, default="data", help="Folder for the files, made if it is missing.")
    parser.add_class_arguments(Fetcher)
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Fetch what is missing, and say where it is."""
    fetcher = Fetcher(options.timeout, options.attempts, options.wait)
    for name in options.names:
        published_dataset(name)  # a wrong name, before the first is fetched
    for name in options.names:
        print(f"{name}: {download(name, options.data_dir, fetcher=fetcher)}")
