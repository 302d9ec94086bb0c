"""`teka bench`: time and memory of layers on this machine."""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from teka.cli.parser import Parser
from teka.experiments.bench import bench
from teka.experiments.bench.bench import BENCH_FILE, LENGTHS, PLOT_FILE
from teka.experiments.bench.layers import layer_names
from teka.experiments.bench.report import bench_table

EXAMPLES = """\
  teka bench
  teka bench --lengths 256 1024 4096 --threads 1 --out runs/bench
  teka bench --direction forward --layers squared_relu scaled_dot_product_attention
"""


def make_parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "teka bench",
        "Time layers against their own four matrix products, scaled_dot_product_attention and performer-pytorch, "
        "in one process, from 256 to 262,144 tokens.",
        EXAMPLES,
    )
    # Written out here, so that they take words after one another and not a list in brackets.
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=int,
        default=list(LENGTHS),
        metavar="L",
        help="Numbers of tokens, each the square of a whole number: the cells of a square grid.",
    )
    parser.add_argument(
        "--layers",
        nargs="+",
        type=str,
        default=None,
        metavar="NAME",
        help=f"The layers, all by default: {', '.join(layer_names())}; four_gemms is always timed.",
    )
    parser.add_function_arguments(bench, skip={"lengths", "layers", "command", "progress"})
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Measure, print the tables and write the results."""
    with tqdm(bar_format="{desc}", leave=False, file=sys.stdout, disable=None) as line:
        result = bench(**vars(options), command=command, progress=line.set_description_str)
    print(bench_table(result))
    print(f"written: {Path(options.out) / BENCH_FILE}, {Path(options.out) / PLOT_FILE}")
