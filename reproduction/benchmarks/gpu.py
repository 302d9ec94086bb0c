"""Time of linear attention on a GPU: Triton, torch.compile of the plain form, and fused softmax.

    python -m reproduction.benchmarks.gpu             # measures
    python -m reproduction.benchmarks.gpu --table     # prints the committed times

All variants of one attention take turns in one process. A time is that of a call when many calls
follow each other, so that the GPU and not Python decides it. The file of version 0.1.0 also has the
time of a single call ("seconds_alone"), the peak memory and the share of the copying speed.

Triton's interpreter runs the script without a GPU, to test it:

    TRITON_INTERPRET=1 python -m reproduction.benchmarks.gpu --seconds 0 --tokens 16 --lengths 16 \
        --out /tmp/gpu.json
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from reproduction.benchmarks.measurement import interleaved_medians, run_script, save_results
from teka import Grid
from teka.files import read_json
from teka.functional import Rotary, attention
from teka.functional.backends import triton as triton_backend

OUT = Path(__file__).with_suffix(".json")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, DIM = 8, 64
NUM_CALLS = 10
# The largest number of tokens for which softmax attention is timed.
MAX_SOFTMAX_TOKENS = {torch.bfloat16: 16384, torch.float32: 4096}


def draw_inputs(num_samples: int, length: int, dtype: torch.dtype) -> list[Tensor]:
    """Return queries, keys and values in the memory layout that a linear projection gives them."""
    shape = 3, num_samples, length, HEADS, DIM
    inputs = torch.randn(shape, device=DEVICE, dtype=dtype).transpose(2, 3)
    return [tensor.requires_grad_() for tensor in inputs]


def linear_attention(*inputs: Tensor, is_causal: bool) -> Tensor:
    """Return attention with squared relu features, and with rotary if frequencies are given."""
    query, key, value, *frequency = inputs
    options: dict[str, Any] = {}
    if frequency:
        options = {"relative": Rotary(*frequency), "grid": Grid(query.shape[2])}
    return attention(
        query, key, value, kernel="squared_relu", backend="linear", is_causal=is_causal, **options
    )


def call_repeatedly(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], *, use_triton: bool, backward: bool
) -> None:
    """Call a function many times without pause, so that the time to start one hardly matters.

    Args:
        function: Attention.
        inputs: Its arguments.
        use_triton: Let teka use its Triton kernels. Otherwise it uses plain PyTorch.
        backward: Compute the gradients too.
    """
    has_triton = triton_backend.HAS_TRITON and use_triton
    with patch.object(triton_backend, "HAS_TRITON", has_triton), torch.set_grad_enabled(backward):
        for _ in range(NUM_CALLS):
            output = function(*inputs)
            if backward:
                torch.autograd.grad(output, inputs, output.detach())


def make_variants(
    inputs: list[Tensor], is_rotary: bool, is_causal: bool
) -> dict[str, Callable[..., None]]:
    """Return the variants of an attention by name. Each is a function of `backward`."""
    query = inputs[0]
    prefix = "causal " if is_causal else ""
    name = f"{prefix}squared_relu × rotary" if is_rotary else f"{prefix}squared_relu"
    function = partial(linear_attention, is_causal=is_causal)
    arguments = list(inputs)
    if is_rotary:
        arguments.append(torch.rand(HEADS, DIM // 2, 1, device=DEVICE, requires_grad=True))
    plain = partial(call_repeatedly, inputs=arguments, use_triton=False)
    variants = {
        name: partial(call_repeatedly, function, arguments, use_triton=True),
        f"{name}, compiled": partial(plain, torch.compile(function)),
        f"{name}, without Triton": partial(plain, function),
    }
    if not is_rotary and query.shape[2] <= MAX_SOFTMAX_TOKENS[query.dtype]:
        softmax = partial(scaled_dot_product_attention, is_causal=is_causal)
        variants[f"{prefix}scaled_dot_product_attention"] = partial(plain, softmax)
    return variants


def measure(
    variants: dict[str, Callable[..., None]], query: Tensor, seconds: float
) -> list[dict[str, Any]]:
    """Return one row for every variant of an attention."""
    rows: dict[str, dict[str, Any]] = {}
    for name in variants:
        dtype = str(query.dtype).removeprefix("torch.")
        rows[name] = {"name": name, "dtype": dtype, "tokens": query.shape[2]}
    for backward, direction in enumerate(("forward", "forward_backward")):
        steps = {name: partial(call, backward=bool(backward)) for name, call in variants.items()}
        for name, median in interleaved_medians(steps, seconds).items():
            rows[name][direction] = {"seconds": median / NUM_CALLS}
    return list(rows.values())


def main(
    *,
    lengths: Sequence[int] = (1024, 4096, 16384, 65536),
    tokens: int = 2**18,
    seconds: float = 0.5,
    table: bool = False,
    out: Path = OUT,
) -> None:
    """Time all variants, and write a file after each attention.

    Args:
        lengths: Numbers of tokens of a sample.
        tokens: Number of tokens of all samples together.
        seconds: Time of each variant and direction.
        table: Print the times of the file, and measure nothing.
        out: The file.
    """
    rows: list[dict[str, Any]] = read_json(out)["rows"] if table else []
    if not table:
        forms = itertools.product(MAX_SOFTMAX_TOKENS, lengths, (False, True), (False, True))
        for dtype, length, is_causal, is_rotary in forms:
            torch.compiler.reset()  # compiles each length by itself
            inputs = draw_inputs(max(1, tokens // length), length, dtype)
            variants = make_variants(inputs, is_rotary, is_causal)
            rows += measure(variants, inputs[0], seconds)
            print(rows[-len(variants) :], flush=True)
            save_results(out, tokens=tokens, heads=HEADS, dim=DIM, rows=rows)
    print(pd.json_normalize(rows).to_string())


if __name__ == "__main__":
    run_script(main)
