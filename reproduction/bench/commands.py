"""The command `bench`."""

from argparse import Namespace
from pathlib import Path

from reproduction.bench import bench as measure_layers
from reproduction.bench.bench import BENCH_FILE, LENGTHS, PLOT_FILE
from reproduction.bench.layers import layer_names
from reproduction.bench.report import bench_table
from teka.cli.parser import Option, command, fields_of, progress_bar

LAYERS_HELP = f"The layers, all by default: {', '.join(layer_names())}; four_gemms is always timed."


@command(
    # Written out here, so that they take words after one another and not a list in brackets.
    Option(
        "--lengths",
        int,
        "Numbers of tokens, cells of a square grid each.",
        list(LENGTHS),
        nargs="+",
        metavar="L",
    ),
    Option("--layers", str, LAYERS_HELP, nargs="+", metavar="NAME"),
    fields_of(measure_layers, skip=("lengths", "layers", "command", "progress")),
    examples=(
        "teka bench",
        "teka bench --lengths 256 1024 4096 --threads 1 --out runs/bench",
        "teka bench --direction forward --layers squared_relu scaled_dot_product_attention",
    ),
)
def bench(options: Namespace, command: str) -> None:
    """Time layers in one process, from 64 to 262,144 tokens.

    They are held against their own four matrix products, scaled_dot_product_attention, MultiheadAttention and
    performer-pytorch; on a GPU also against flash-linear-attention and flash-bidirectional-linear-attention, where
    these are installed.
    """
    with progress_bar() as show:
        result = measure_layers(
            **vars(options), command=command, progress=lambda line: show(line, 0, None, "")
        )
    print(bench_table(result))
    print(f"written: {Path(options.out) / BENCH_FILE}, {Path(options.out) / PLOT_FILE}")
