"""`teka bench`: time and memory of layers on this machine."""

import argparse

from teka.cli.parser import Parser

EXAMPLES = """\
  teka bench
  teka bench --sides 16 32 64 --threads 1 --out runs/bench
"""


def make_parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "teka bench",
        "Time layers forward and backward against their own four matrix products, scaled_dot_product_attention and "
        "performer-pytorch, in one process.",
        EXAMPLES,
    )
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Measure, print the table and write the results."""
