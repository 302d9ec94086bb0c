"""The benchmark: every layer at every size in one process, and its files."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from teka.bench.entrant import make_entrant
from teka.bench.one_size import measure_size
from teka.bench.plot import draw_bench
from teka.bench.settings import Settings
from teka.files import make_directory, write_bytes, write_json
from teka.provenance import provenance
from teka.report.require import require

BENCH_FILE = "bench.json"
PLOT_FILE = "bench.png"


def bench(
    sides: Sequence[int] = (16, 32, 64),
    *,
    dim: int = 256,
    heads: int = 8,
    batch: int = 2,
    repeats: int = 7,
    warmup: int = 2,
    threads: int = 1,
    layers: Sequence[str] | None = None,
    device: str = "cpu",
    max_bytes: float = 8e9,
    out: str | Path = "runs/bench",
    command: str = "",
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, object]:
    """Time layers forward and backward on square grids, and write `bench.json` and `bench.png`.

    One step is a forward pass and a backward pass to the tokens and all parameters, in float32, with random numbers as
    the output's gradient. The layers take turns, A B C A B C …, so that drift hits all alike. A row of the result holds

    - "seconds", the median over the rounds, and "iqr", the distance of their quartiles;
    - "ratio_to_gemms", the median over the rounds of the time in terms of that of four matrix products (`FourGemms`);
    - "peak_bytes", the most memory that tensors take at once beyond tokens and parameters;
    - "flops" of the matrix products alone, "flops_ratio_to_gemms", which the ratio of times would be if all of them ran
      at the speed of the four and nothing else took time, and "gflops_per_second".

    A layer that would need more than `max_bytes`, or whose fast path differs from its dense twin by more than 1e-3 in
    the output or in a gradient, is not timed and stands in "left_out" with the reason.

    Args:
        sides: Sides of the grids; side² tokens each.
        dim: Size of a token.
        heads: Number of heads, a divisor of dim, at least 2.
        batch: Sequences a step.
        repeats: Timed rounds.
        warmup: Rounds before them.
        threads: Threads that torch uses; what was set before is restored.
        layers: Names of the layers out of `layer_names()`, or None for all; "four_gemms" is always timed.
        device: "cpu" or "cuda".
        max_bytes: Most memory in bytes that a layer may need.
        out: Folder for the files, made if it is missing.
        command: What the files are to name as the command.
        progress: Called with a line of text before each layer's check and each round.

    Returns:
        What `bench.json` holds: provenance, "settings", "rows" and "left_out".

    Raises:
        ValueError: A value out of range, an unknown name, a device that is not there, `max_bytes` too small for the
            four matrix products, or `out` is a file.
        ImportError: matplotlib is missing, or performer-pytorch is and its layer is not left out.
    """
    settings = Settings(sides, dim, heads, batch, repeats, warmup, threads, layers, device, max_bytes)
    folder = make_directory("out", out)
    require("matplotlib")
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[] if device == "cpu" else None):
            torch.manual_seed(settings.seed)
            result = _measure(settings, command, progress)
    finally:
        torch.set_num_threads(threads_before)
    picture = io.BytesIO()
    draw_bench(result).savefig(picture, format="png", metadata={"Software": "teka"})
    write_json(folder / BENCH_FILE, result)
    write_bytes(folder / PLOT_FILE, picture.getvalue())
    return result


def _measure(settings: Settings, command: str, progress: Callable[[str], None]) -> dict[str, object]:
    result = {**provenance(command), "settings": settings.to_dict()}
    entrants = []
    for layer in settings.chosen_layers():
        progress(f"{layer.name} ({layer.backend}): checking")
        entrants.append(make_entrant(layer, settings))
    all_rows, all_left_out = [], []
    for side in settings.sides:

        def announce(line: str, side: int = side) -> None:
            progress(f"{side}×{side} tokens: {line}")

        rows, left_out = measure_size(entrants, side, settings, announce)
        all_rows += rows
        all_left_out += left_out
    return {**result, "rows": all_rows, "left_out": all_left_out}
