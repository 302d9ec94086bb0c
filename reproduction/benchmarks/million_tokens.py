"""Benchmark of the time and peak memory of an attention layer with 1,048,576 tokens.

    python -m reproduction.benchmarks.million_tokens
    python -m reproduction.benchmarks.million_tokens --tokens 65536 --out /tmp/tokens.json

Each forward pass, with or without a backward pass, is measured in its own process. The peak memory
includes the interpreter, the weights, the tokens and their gradients.
"""

import multiprocessing
import resource
import time
from itertools import product
from pathlib import Path

import torch

from reproduction.benchmarks.layers import DIM, HEADS, make_layer, run_layer
from reproduction.benchmarks.measurement import run_script, save_results

OUT = Path(__file__).with_suffix(".json")
LAYERS = ("squared_relu × rotary", "teka, causal")


def measure_layer_pass(name: str, num_tokens: int, backward: bool) -> dict[str, object]:
    """Measure the time and peak memory of one forward pass, or of a forward and a backward pass."""
    torch.set_num_threads(1)
    layer = make_layer(name)
    tokens = torch.randn(1, num_tokens, DIM)
    start, cpu_start = time.perf_counter(), time.process_time()
    run_layer(layer, tokens, backward)
    return {
        "layer": name,
        "direction": "forward_backward" if backward else "forward",
        "seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(time.process_time() - cpu_start, 1),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main(*, tokens: int = 1024**2, out: Path = OUT) -> None:
    """Measure the time and peak memory of two attention layers for a million tokens.

    The results are saved after each measurement.

    Args:
        tokens: Number of tokens, a square number.
        out: Result file.
    """
    rows = []
    settings = {"tokens": tokens, "batch": 1, "dim": DIM, "heads": HEADS}
    for arguments in product(LAYERS, [tokens], [False, True]):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(measure_layer_pass, arguments))
        print(rows[-1], flush=True)
        save_results(out, settings=settings, rows=rows)


if __name__ == "__main__":
    run_script(main)
