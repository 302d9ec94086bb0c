"""Time attention between given queries, keys and values on a GPU, and tell how near it is to what memory allows.

    python benchmarks/gpu.py [--seconds 120] [--out benchmarks/gpu.json]    # measures
    python benchmarks/gpu.py --table                                        # the table of the committed times

Times are medians over calls that follow each other, forward, and forward and backward, of so many tokens that the GPU
and not Python decides them. "Alone" is the wall time of one call, until the GPU has finished it. The floor is the time
in which the GPU copies as many bytes as queries, keys, values, outputs and their gradients have, each read or written
once; what is learned has a gradient in ours.
"""

import argparse
import contextlib
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import teka
from teka.functional import attention
from teka.functional.backends import triton as triton_backend
from teka.functional.relative import make_relative
from teka.provenance import provenance

OUT = Path(__file__).with_suffix(".json")
HEADS, DIM, TOKENS = 8, 64, 2**18  # of all samples together
LENGTHS = (1024, 4096, 16384, 65536)
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
CALLS, LONGEST = 21, 0.5  # calls, or 5 if all would take so many seconds
FLEX = "softmax × clipped, FlexAttention"
# By name: the relative kernel, whether causal, the content kernel, the backend, and whether by the Triton kernels.
OURS = {
    "squared_relu": (None, False, "squared_relu", "linear", True),
    "squared_relu × rotary": ("rotary", False, "squared_relu", "linear", True),
    "squared_relu × fourier": ("fourier", False, "squared_relu", "linear", True),
    "causal squared_relu": (None, True, "squared_relu", "linear", True),
    "causal squared_relu × rotary": ("rotary", True, "squared_relu", "linear", True),
    "squared_relu × rotary, without Triton": ("rotary", False, "squared_relu", "linear", False),
    "causal squared_relu × rotary, without Triton": (
        "rotary",
        True,
        "squared_relu",
        "linear",
        False,
    ),
    FLEX: ("clipped", False, "softmax", "dense", False),
}
SDPA = {"scaled_dot_product_attention": False, "causal scaled_dot_product_attention": True}
# Tokens up to which what compares every pair is timed.
QUADRATIC_MOST = {"bfloat16": 16384, "float32": 4096}

Run = Callable[[], tuple[Tensor, list[Tensor]]]


def name_of(dtype: torch.dtype) -> str:
    """A type's name without the library's."""
    return str(dtype).removeprefix("torch.")


def draw(length: int, dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys and values, in memory as a linear map leaves them."""
    generator = torch.Generator("cuda").manual_seed(0)
    shape = TOKENS // length, length, HEADS, DIM
    drawn = (torch.randn(shape, generator=generator, device="cuda").to(dtype) for _ in range(3))
    return [one.transpose(1, 2).requires_grad_() for one in drawn]


def ours(name: str, inputs: list[Tensor]) -> Run:
    """An attention of this library's, and what has a gradient."""
    relative_name, is_causal, kernel, backend, _ = OURS[name]
    length = inputs[0].shape[2]
    grid = teka.Grid(length) if is_causal else teka.Grid((math.isqrt(length),) * 2)
    placed, learned = None, []
    if relative_name is not None:
        placed = make_relative(
            relative_name, heads=HEADS, dim=DIM, num_axes=grid.num_axes, kernel=kernel
        )
        tensors = {
            key: one.to("cuda", torch.float32).requires_grad_()
            for key, one in vars(placed).items()
            if isinstance(one, Tensor)
        }
        placed, learned = type(placed)(**{**vars(placed), **tensors}), list(tensors.values())
    options = {"relative": placed, "grid": None if placed is None else grid, "is_causal": is_causal}
    return lambda: (
        attention(*inputs, kernel=kernel, backend=backend, **options),
        [*inputs, *learned],
    )


def fused_softmax(is_causal: bool, inputs: list[Tensor]) -> Run:
    """torch's fused softmax attention."""
    return lambda: (
        scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], is_causal=is_causal),
        inputs,
    )


@contextlib.contextmanager
def triton_kernels(wanted: bool) -> Iterator[None]:
    """Whether ours goes by its Triton kernels."""
    before, triton_backend.HAS_TRITON = (
        triton_backend.HAS_TRITON,
        triton_backend.HAS_TRITON and wanted,
    )
    try:
        yield
    finally:
        triton_backend.HAS_TRITON = before


def gpu_seconds(call: Callable[[], object]) -> float:
    """Median time from call to call where the next ones wait in the GPU's queue already."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    calls = CALLS if (time.perf_counter() - start) * CALLS < LONGEST else 5
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    for mark in marks[:-1]:
        mark.record()
        call()
    marks[-1].record()
    torch.cuda.synchronize()
    return (
        statistics.median(one.elapsed_time(other) for one, other in itertools.pairwise(marks)) / 1e3
    )


def seconds_alone(call: Callable[[], object]) -> float:
    """Median wall time of a call, until the GPU has finished it."""
    times: list[float] = []
    while len(times) < (CALLS if sum(times) < LONGEST else 5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def copied_bytes_per_second() -> float:
    """Bytes read and written a second by a copy of 2 GiB."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / gpu_seconds(lambda: target.copy_(source))


def measure(
    name: str, run: Run, length: int, dtype: torch.dtype, bandwidth: float
) -> dict[str, object]:
    """One row."""

    def forward() -> None:
        with torch.no_grad():
            run()

    output, wanted = run()
    cotangent = torch.randn_like(output)

    def both() -> None:
        torch.autograd.grad(run()[0], wanted, cotangent, allow_unused=True)

    row: dict[str, object] = {"name": name, "dtype": name_of(dtype), "tokens": length}
    tensor_bytes = TOKENS * HEADS * DIM * dtype.itemsize
    for direction, call, passes in (("forward", forward, 4), ("forward_backward", both, 12)):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        seconds, floor = gpu_seconds(call), passes * tensor_bytes / bandwidth
        row[direction] = {
            "seconds": seconds,
            "seconds_alone": seconds_alone(call),
            "share_of_floor": floor / seconds,
            "peak_bytes": peak,
        }
    return row


def rows(seconds: float, bandwidth: float) -> Iterator[dict[str, object]]:
    """All that there is time for, shorter sequences first."""
    start = time.perf_counter()
    for dtype in DTYPES.values():
        for length in LENGTHS:
            inputs = draw(length, dtype)
            runs = {name: ours(name, inputs) for name in OURS} | {
                name: fused_softmax(causal, inputs) for name, causal in SDPA.items()
            }
            for name, run in runs.items():
                quadratic = name in SDPA or OURS[name][3] == "dense"
                # Ours widens what FlexAttention takes to float32, and it is compiled for every length.
                is_again = name == FLEX and (dtype != torch.float32 or length != 4096)
                too_long = quadratic and length > QUADRATIC_MOST[name_of(dtype)]
                if time.perf_counter() - start > seconds or is_again or too_long:
                    continue
                fastest = (
                    [SDPBackend.FLASH_ATTENTION]
                    if dtype == torch.bfloat16
                    else [SDPBackend.EFFICIENT_ATTENTION]
                )
                with (
                    triton_kernels(name in OURS and OURS[name][4]),
                    sdpa_kernel(fastest) if name in SDPA else contextlib.nullcontext(),
                ):
                    row = measure(name, run, length, dtype, bandwidth)
                print(line(row), flush=True)
                yield row


def line(row: dict[str, object]) -> str:
    """A row in words."""
    place = f"{row['dtype']:8} {row['tokens']:>6,} {row['name']:44}"
    parts = []
    for direction in ("forward", "forward_backward"):
        found = row[direction]
        assert isinstance(found, dict)
        times = f"{found['seconds'] * 1e6:9,.0f} µs {found['share_of_floor']:5.0%}"
        parts.append(
            f"{times} alone {found['seconds_alone'] * 1e6:9,.0f} {found['peak_bytes'] / 1e6:7,.0f} MB"
        )
    return f"{place} {' | '.join(parts)}"


def main() -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=600, help="after which nothing new is begun"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--table", action="store_true", help="print the table of the times that are there"
    )
    options = parser.parse_args()
    if not options.table:
        torch.set_num_threads(1)
        bandwidth = copied_bytes_per_second()
        found = {
            **provenance(" ".join(["python", *sys.argv])),
            "bytes_per_second": bandwidth,
            "tokens": TOKENS,
            "heads": HEADS,
            "dim": DIM,
            "rows": list(rows(options.seconds, bandwidth)),
        }
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    else:
        found = json.loads(options.out.read_text(encoding="utf-8"))
        for row in found["rows"]:
            print(line(row))
    print(f"{found['bytes_per_second'] / 1e12:.2f} TB/s copied; {found['hardware']}")


if __name__ == "__main__":
    main()
