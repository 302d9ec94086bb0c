"""Time linear attention on a GPU: Triton kernels, torch.compile of the plain form, and fused softmax attention.

    python reproduction/benchmarks/gpu.py [--seconds 600] [--out reproduction/benchmarks/gpu.json]    # measures
    python reproduction/benchmarks/gpu.py --table                                       # prints the saved times

All variants of one attention run interleaved in one process. A time is a median over rounds, forward, and forward and
backward. In a round the calls follow each other without waiting, so that the GPU and not Python decides the time;
"alone" is the wall time of one call until the GPU has finished it. The floor is the time in which the GPU copies as
many bytes as queries, keys, values, outputs and their gradients have, each read or written once.

Triton's interpreter runs the script without a GPU, to test it:

    TRITON_INTERPRET=1 python reproduction/benchmarks/gpu.py --device cpu --rounds 1 --tokens 16 --lengths 16 --out /tmp/gpu.json
"""

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from teka import Grid
from teka.functional import Rotary, attention
from teka.functional.backends import triton as triton_backend
from teka.provenance import provenance

OUT = Path(__file__).with_suffix(".json")
HEADS = 8
DIM = 64
TOKENS = 2**18  # of all samples together
LENGTHS = (1024, 4096, 16384, 65536)
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
ROUND_SECONDS = 0.02
# For each form: is it rotary, and is it causal?
FORMS = {
    "squared_relu": (False, False),
    "squared_relu × rotary": (True, False),
    "causal squared_relu": (False, True),
    "causal squared_relu × rotary": (True, True),
}
# Suffix of the name: whether the Triton kernels run, and whether torch.compile does.
VARIANTS = {"": (True, False), ", compiled": (False, True), ", without Triton": (False, False)}
SOFTMAX = "scaled_dot_product_attention"
# The largest number of tokens for which softmax attention is timed.
MAX_SOFTMAX_TOKENS = {"bfloat16": 16384, "float32": 4096}

Call = Callable[[], object]


def draw_inputs(num_samples: int, length: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    """Return queries, keys and values in the memory layout that a linear projection gives them."""
    generator = torch.Generator(device).manual_seed(0)
    shape = num_samples, length, HEADS, DIM
    return [
        torch.randn(shape, generator=generator, device=device)
        .to(dtype)
        .transpose(1, 2)
        .requires_grad_()
        for _ in range(3)
    ]


@contextlib.contextmanager
def triton_enabled(enabled: bool) -> Iterator[None]:
    """Let teka use its Triton kernels, or not."""
    before = triton_backend.HAS_TRITON
    triton_backend.HAS_TRITON = before and enabled
    try:
        yield
    finally:
        triton_backend.HAS_TRITON = before


def teka_attention(
    query: Tensor, key: Tensor, value: Tensor, frequency: Tensor | None, *, is_causal: bool
) -> Tensor:
    """Return attention with squared relu features by the linear backend."""
    options: dict[str, Any] = {}
    if frequency is not None:
        options = {"relative": Rotary(frequency), "grid": Grid(query.shape[2])}
    return attention(
        query, key, value, kernel="squared_relu", backend="linear", is_causal=is_causal, **options
    )


def softmax_attention(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Tensor:
    """Return softmax attention by PyTorch's fused kernel."""
    fused = SDPBackend.EFFICIENT_ATTENTION
    if query.dtype == torch.bfloat16 or not query.is_cuda:
        fused = SDPBackend.FLASH_ATTENTION
    with sdpa_kernel(fused):
        return scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def make_passes(
    function: Callable[..., Tensor], query: Tensor, *others: Tensor | None, use_triton: bool
) -> dict[str, Call]:
    """Return the forward pass of a function, and the forward and backward pass."""
    inputs = query, *others
    learned = [tensor for tensor in inputs if tensor is not None]
    gradient = torch.randn_like(query)

    def forward() -> None:
        with torch.no_grad(), triton_enabled(use_triton):
            function(*inputs)

    def forward_backward() -> None:
        with triton_enabled(use_triton):
            output = function(*inputs)
        torch.autograd.grad(output, learned, gradient)

    return {"forward": forward, "forward_backward": forward_backward}


def variants_of(form: str, inputs: list[Tensor]) -> dict[str, dict[str, Call]]:
    """Return the passes of every variant of an attention, by the variant's name."""
    is_rotary, is_causal = FORMS[form]
    query = inputs[0]
    frequency = None
    if is_rotary:
        generator = torch.Generator(query.device).manual_seed(1)
        shape = HEADS, DIM // 2, 1
        frequency = torch.rand(shape, generator=generator, device=query.device).requires_grad_()
    function = partial(teka_attention, is_causal=is_causal)
    variants = {}
    for suffix, (use_triton, is_compiled) in VARIANTS.items():
        variant = torch.compile(function) if is_compiled else function
        variants[form + suffix] = make_passes(variant, *inputs, frequency, use_triton=use_triton)
    dtype = str(query.dtype).removeprefix("torch.")
    if not is_rotary and query.shape[2] <= MAX_SOFTMAX_TOKENS[dtype]:
        softmax = partial(softmax_attention, is_causal=is_causal)
        name = f"causal {SOFTMAX}" if is_causal else SOFTMAX
        variants[name] = make_passes(softmax, *inputs, use_triton=False)
    return variants


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(call: Call, num_calls: int) -> float:
    """Return the wall time of a call, the mean over calls that follow each other."""
    synchronize()
    start = time.perf_counter()
    for _ in range(num_calls):
        call()
    synchronize()
    return (time.perf_counter() - start) / num_calls


def interleaved_medians(calls: dict[str, Call], rounds: int) -> dict[str, dict[str, float]]:
    """Return the median times of calls that are measured in turn, in calls that follow each other and alone."""
    num_calls = {}
    for name, call in calls.items():
        call()  # compiles
        num_calls[name] = max(1, round(ROUND_SECONDS / seconds_of(call, 1)))
    queued: dict[str, list[float]] = {name: [] for name in calls}
    alone: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            queued[name].append(seconds_of(call, num_calls[name]))
            alone[name].append(seconds_of(call, 1))
    return {
        name: {
            "seconds": statistics.median(queued[name]),
            "seconds_alone": statistics.median(alone[name]),
        }
        for name in calls
    }


def peak_bytes(call: Call) -> int:
    """Return the GPU memory that a call allocates at most; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def copied_bytes_per_second(device: str) -> float:
    """Return the number of bytes that a copy of a large tensor reads and writes per second."""
    source = torch.randn(2**29 if device == "cuda" else 2**24, device=device)
    target = torch.empty_like(source)
    copies = interleaved_medians({"copy": lambda: target.copy_(source)}, rounds=11)
    return 2 * source.nbytes / copies["copy"]["seconds"]


def measure(form: str, inputs: list[Tensor], bandwidth: float, rounds: int) -> list[dict[str, Any]]:
    """Return one row for every variant of an attention."""
    query = inputs[0]
    variants = variants_of(form, inputs)
    rows = {
        name: {
            "name": name,
            "dtype": str(query.dtype).removeprefix("torch."),
            "tokens": query.shape[2],
        }
        for name in variants
    }
    for direction, num_tensors in (("forward", 4), ("forward_backward", 12)):
        calls = {name: passes[direction] for name, passes in variants.items()}
        times = interleaved_medians(calls, rounds)
        floor = num_tensors * query.nbytes / bandwidth
        for name, call in calls.items():
            share = floor / times[name]["seconds"]
            rows[name][direction] = {
                **times[name],
                "share_of_floor": share,
                "peak_bytes": peak_bytes(call),
            }
    return list(rows.values())


def measure_all(options: argparse.Namespace, bandwidth: float) -> Iterator[dict[str, Any]]:
    """Measure every dtype, length and form until the time is over; shorter sequences come first."""
    start = time.perf_counter()
    for dtype in DTYPES.values():
        for length in options.lengths:
            num_samples = max(1, options.tokens // length)
            inputs = draw_inputs(num_samples, length, dtype, options.device)
            for form in FORMS:
                if time.perf_counter() - start > options.seconds:
                    return
                torch.compiler.reset()  # compiles every length for itself
                for row in measure(form, inputs, bandwidth, options.rounds):
                    print(line(row), flush=True)
                    yield row


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    parts = []
    for direction in ("forward", "forward_backward"):
        times = row[direction]
        parts.append(
            f"{times['seconds'] * 1e6:9,.0f} µs {times['share_of_floor']:5.0%} "
            f"alone {times['seconds_alone'] * 1e6:9,.0f} {times['peak_bytes'] / 1e6:7,.0f} MB"
        )
    return f"{row['dtype']:8} {row['tokens']:>6,} {row['name']:46} {' | '.join(parts)}"


def main() -> None:
    """Measure and save the times, or print the saved ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=600, help="time after which no measurement starts"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of all samples together")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens per sample")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true", help="print the saved times")
    options = parser.parse_args()
    if options.table:
        saved = json.loads(options.out.read_text(encoding="utf-8"))
        for row in saved["rows"]:
            print(line(row))
    else:
        if options.device == "cpu" and not triton_backend.IS_INTERPRETED:
            parser.error("--device cpu needs TRITON_INTERPRET=1 in the environment")
        torch.set_num_threads(1)
        bandwidth = copied_bytes_per_second(options.device)
        saved = {
            **provenance(" ".join(["python", *sys.argv])),
            "bytes_per_second": bandwidth,
            "tokens": options.tokens,
            "heads": HEADS,
            "dim": DIM,
            "rows": list(measure_all(options, bandwidth)),
        }
        options.out.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    print(f"{saved['bytes_per_second'] / 1e12:.2f} TB/s copied; {saved['hardware']}")


if __name__ == "__main__":
    main()
