"""`teka bench`: time and memory of layers on this machine."""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from teka.bench import bench, bench_table
from teka.bench.bench import BENCH_FILE, PLOT_FILE
from teka.cli.parser import Parser

EXAMPLES = """\
  teka bench
  teka bench --sides '[16, 32, 64]' --threads 1 --out runs/bench
"""


def make_parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "teka bench",
        "Time layers forward and backward against their own four matrix products, scaled_dot_product_attention and "
        "performer-pytorch, in one process.",
        EXAMPLES,
    )
    parser.add_function_arguments(bench, skip={"command", "progress"})
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Measure, print the table and write the results."""
    with tqdm(bar_format="{desc}", leave=False, file=sys.stdout) as line:
        result = bench(**vars(options), command=command, progress=line.set_description_str)
    print(bench_table(result))
    print(f"written: {Path(options.out) / BENCH_FILE}, {Path(options.out) / PLOT_FILE}")
