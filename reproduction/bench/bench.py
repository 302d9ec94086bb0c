"""The benchmark: every layer at every size in one process, and its files."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from reproduction.bench.cases import Budget, Case, make_case, measure_size, try_out
from reproduction.bench.layers import BASELINE, Settings
from reproduction.bench.measure import estimate_peak_memory
from reproduction.bench.report import draw_bench, scaling
from teka.codec import encode
from teka.errors import require, wrong_value
from teka.files import make_directory, write_bytes, write_json
from teka.provenance import provenance
from teka.reporting.charts import encode_png

BENCH_FILE = "bench.json"
PLOT_FILE = "bench.png"
PARTIAL_FILE = "bench.partial.json"
LENGTHS = (64, 256, 1024, 4096, 16384, 65536, 262144)
TRIAL_LENGTHS = (256, 1024)
"""Sizes that are tried before the smallest one asked for, if they are smaller, to estimate what that costs."""


def bench(
    lengths: Sequence[int] = LENGTHS,
    *,
    direction: str = "forward_backward",
    precision: str = "float32",
    dim: int = 256,
    heads: int = 8,
    batch: int = 2,
    repeats: int = 7,
    warmup: int = 2,
    threads: int = 1,
    layers: Sequence[str] | None = None,
    device: str = "cpu",
    max_bytes: float = 12e9,
    max_seconds: float = 20.0,
    budget_seconds: float = 900.0,
    out: str | Path = "runs/bench",
    command: str = "",
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, object]:
    """Time layers on square grids, and write `bench.json`, whose content this gives, and `bench.png`.

    A step is a forward and a backward pass to the tokens and all parameters, with random numbers as the output's
    gradient. The layers take turns, A B C A B C …, so that drift hits all alike. A row of the result holds

    - "seconds", the median over the rounds, "iqr", the distance of their quartiles, and "rounds", their number: wall
      time of one step, which a GPU has begun and finished, so that short steps take as long as Python needs to ask;
    - "ratio_to_gemms", the median over the rounds of the time over that of four matrix products (`FourGemms`), and
      "ratio_to_sdpa" over that of `scaled_dot_product_attention`, None where that is not timed;
    - "peak_bytes", the most memory that tensors take at once beyond tokens and parameters;
    - "flops" of the matrix products alone, "flops_ratio_to_gemms" of them, and "gflops_per_second"; those within
      FlexAttention, which some dense layers are computed by on a GPU, are not seen.

    "scaling" holds for every layer the powers of the number of tokens by which time and memory grow, and the number of
    tokens from which on it is faster than `scaled_dot_product_attention`.

    "left_out" holds the layers that are not timed at a size, as they would need more than `max_bytes` or a step more
    than `max_seconds` (extrapolated), as a GPU's memory ran out, as there is no time left, or as their fast path
    differs from the dense one by more than 1e-3 in the output or in a gradient. They are compared in float32, whatever
    the precision, as that band is for its rounding.

    `budget_seconds` is for everything; a size gets of what is left by the root of its tokens. Where not all rounds fit,
    the warm-up is cut first, then the timed rounds down to three.

    Args:
        lengths: Numbers of tokens, each the square of a whole number: the cells of a square grid.
        direction: "forward_backward", or "forward" for the output alone, without gradients.
        precision: "float32", or "bfloat16" or "float16" for every layer's output, the four matrix products' too, under
            autocast with tokens and weights in float32; gradients are computed outside of it, as in training.
        dim: Size of a token.
        heads: Number of heads, a divisor of dim, at least 2.
        batch: Sequences a step.
        repeats: Timed rounds at most.
        warmup: Rounds before them at most.
        threads: Threads that torch uses; what was set before is restored.
        layers: Names of the layers out of `layer_names()`, or None for all; "four_gemms" is always timed.
        device: "cpu" or "cuda".
        max_bytes: Most memory in bytes that a layer may need.
        max_seconds: Longest step in seconds.
        budget_seconds: Seconds that the whole benchmark may take.
        out: Folder for the files, made if it is missing.
        command: What the files are to name as the command.
        progress: Called with a line before each layer's check and each round.

    Raises:
        ValueError: A value out of range, an unknown name, a device that is not there, `max_bytes` too small for the
            four matrix products, nothing was timed at any size, or `out` is a file.
        ImportError: matplotlib is missing, or performer-pytorch is and its layer is not left out.
    """
    budget, sizes = Budget(budget_seconds), (dim, heads, batch, repeats, warmup, threads)
    settings = Settings(
        lengths,
        direction,
        precision,
        *sizes,
        layers,
        device,
        max_bytes,
        max_seconds,
        budget_seconds,
    )
    folder = make_directory("out", out)
    require("matplotlib", "reports need", "teka[report]")
    result: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.enter_context(
            torch.random.fork_rng(range(torch.cuda.device_count()) if device == "cuda" else ())
        )
        torch.set_num_threads(threads)
        torch.manual_seed(settings.seed)
        for result in _measure(settings, budget, command, progress):
            # After every size, so that an interrupted run leaves what it has measured, and the old files.
            write_json(folder / PARTIAL_FILE, result)
    if not result["rows"]:
        raise ValueError(f"nothing was timed; of {BASELINE}: {result['left_out'][0]['reason']}")
    picture = encode_png(draw_bench(result))
    write_json(folder / BENCH_FILE, result)
    write_bytes(folder / PLOT_FILE, picture)
    (folder / PARTIAL_FILE).unlink()
    return result


def _measure(
    settings: Settings, budget: Budget, command: str, progress: Callable[[str], None]
) -> Iterator[dict[str, object]]:
    """What is known after every size."""
    result = {**provenance(command), "settings": encode(settings)}
    cases = []
    for layer in settings.chosen_layers():
        progress(f"{layer.name} ({layer.backend}): checking")
        cases.append(make_case(layer, settings))
        if len(cases) == 1:
            _check_max_bytes(cases[0], settings)
    for length in TRIAL_LENGTHS:
        if length < settings.lengths[0]:
            progress(f"{length:,} tokens: trial")
            try_out(cases, length, settings)
    all_rows, all_left_out = [], []
    for index, length in enumerate(settings.lengths):

        def announce(line: str, length: int = length) -> None:
            progress(f"{length:,} tokens: {line}")

        rows, left_out = measure_size(cases, settings.lengths[index:], settings, budget, announce)
        all_rows += rows
        all_left_out += left_out
        yield {**result, "rows": all_rows, "scaling": scaling(all_rows), "left_out": all_left_out}


def _check_max_bytes(baseline: Case, settings: Settings) -> None:
    """Check that the four matrix products fit at every size, before anything is timed."""
    length = settings.lengths[-1]
    unset = torch.empty(
        settings.batch, length, settings.dim, device=settings.device, requires_grad=True
    )
    peak_bytes = estimate_peak_memory(baseline.step(unset, settings))
    if peak_bytes is not None and peak_bytes > settings.max_bytes:
        expected = f"at least the {peak_bytes} bytes of the four matrix products at {length} tokens"
        raise wrong_value("max_bytes", settings.max_bytes, expected)
