"""GPU benchmark of linear attention with Triton, against torch.compile and fused softmax.

    python -m reproduction.benchmarks.gpu             # measures
    python -m reproduction.benchmarks.gpu --table     # prints the committed times

Each time is the mean of ten consecutive calls, so that it does not depend on the speed of Python.
The results of version 0.1.0 also contain the time of a single call ("seconds_alone"), the peak
memory, and the memory bandwidth as a fraction of a plain copy.

To test the script without a GPU, run it in Triton's interpreter:

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

from reproduction.benchmarks.measurement import measure_median_times, run_script, save_results
from teka import Grid
from teka.files import read_json
from teka.functional import Rotary, attention
from teka.functional.backends import triton as triton_backend

OUT = Path(__file__).with_suffix(".json")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, DIM = 8, 64
NUM_CALLS = 10
# Maximum sequence length for which softmax attention is timed.
MAX_SOFTMAX_TOKENS = {torch.bfloat16: 16384, torch.float32: 4096}


def draw_queries_keys_values(num_samples: int, length: int, dtype: torch.dtype) -> list[Tensor]:
    """Draw queries, keys and values with the memory layout of a linear layer's output."""
    shape = 3, num_samples, length, HEADS, DIM
    inputs = torch.randn(shape, device=DEVICE, dtype=dtype).transpose(2, 3)
    return [tensor.requires_grad_() for tensor in inputs]


def linear_attention(*inputs: Tensor, is_causal: bool) -> Tensor:
    """Compute linear attention with the squared ReLU kernel.

    Args:
        inputs: Queries, keys, values, and optionally the frequencies of rotary positions.
        is_causal: Do not attend to later tokens.
    """
    query, key, value, *frequency = inputs
    return attention(
        query,
        key,
        value,
        kernel="squared_relu",
        relative=Rotary(*frequency) if frequency else None,
        grid=Grid(query.shape[2]),
        backend="linear",
        is_causal=is_causal,
    )


def call_ten_times(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], *, use_triton: bool, backward: bool
) -> None:
    """Call an attention function ten times without a pause, so that the GPU never waits for Python.

    Args:
        function: Attention function.
        inputs: Arguments of the function.
        use_triton: Let teka use its Triton kernels instead of plain PyTorch.
        backward: Also compute the gradients.
    """
    has_triton = triton_backend.HAS_TRITON and use_triton
    with patch.object(triton_backend, "HAS_TRITON", has_triton), torch.set_grad_enabled(backward):
        for _ in range(NUM_CALLS):
            output = function(*inputs)
            if backward:
                torch.autograd.grad(output, inputs, output.detach())


def make_attention_functions(
    inputs: list[Tensor], is_rotary: bool, is_causal: bool
) -> dict[str, Callable[..., None]]:
    """Return the attention functions that the benchmark compares, by name.

    Three functions compute linear attention with Triton, with `torch.compile` and in plain PyTorch.
    Without rotary positions, a fourth function computes fused softmax attention. Each function
    computes attention ten times, and takes the argument `backward` of `call_ten_times`.
    """
    prefix = "causal " if is_causal else ""
    name = f"{prefix}squared_relu × rotary" if is_rotary else f"{prefix}squared_relu"
    function = partial(linear_attention, is_causal=is_causal)
    arguments = list(inputs)
    if is_rotary:
        arguments.append(torch.rand(HEADS, DIM // 2, 1, device=DEVICE, requires_grad=True))
    plain = partial(call_ten_times, inputs=arguments, use_triton=False)
    variants = {
        name: partial(call_ten_times, function, arguments, use_triton=True),
        f"{name}, compiled": partial(plain, torch.compile(function)),
        f"{name}, without Triton": partial(plain, function),
    }
    query = inputs[0]
    if not is_rotary and query.shape[2] <= MAX_SOFTMAX_TOKENS[query.dtype]:
        softmax = partial(scaled_dot_product_attention, is_causal=is_causal)
        variants[f"{prefix}scaled_dot_product_attention"] = partial(plain, softmax)
    return variants


def time_attention_functions(
    variants: dict[str, Callable[..., None]], query: Tensor, seconds: float
) -> list[dict[str, Any]]:
    """Time attention functions with and without the backward pass.

    Args:
        variants: Functions to time, by name.
        query: Queries, whose dtype and number of tokens are saved with the times.
        seconds: Mean total time per function and measurement.
    """
    rows = []
    for direction, backward in (("forward", False), ("forward_backward", True)):
        steps = {name: partial(call, backward=backward) for name, call in variants.items()}
        medians = measure_median_times(steps, seconds)
        rows.append(
            {
                "dtype": str(query.dtype),
                "tokens": query.shape[2],
                "direction": direction,
                "seconds": {name: median / NUM_CALLS for name, median in medians.items()},
            }
        )
    return rows


def main(
    *,
    lengths: Sequence[int] = (1024, 4096, 16384, 65536),
    tokens: int = 2**18,
    seconds: float = 0.5,
    table: bool = False,
    out: Path = OUT,
) -> None:
    """Time linear and softmax attention for each dtype and sequence length, and save the times.

    Args:
        lengths: Sequence lengths.
        tokens: Number of tokens in a batch, over all its sequences.
        seconds: Mean total time per implementation and measurement.
        table: Print the times in the result file without measuring.
        out: Result file.
    """
    rows = read_json(out)["rows"] if table else []
    if not table:
        cases = itertools.product(MAX_SOFTMAX_TOKENS, lengths, (False, True), (False, True))
        for dtype, length, is_causal, is_rotary in cases:
            torch.compiler.reset()  # so that each length is compiled separately
            inputs = draw_queries_keys_values(max(1, tokens // length), length, dtype)
            variants = make_attention_functions(inputs, is_rotary, is_causal)
            rows += time_attention_functions(variants, inputs[0], seconds)
            print(rows[-2:], flush=True)
            save_results(out, tokens=tokens, heads=HEADS, dim=DIM, rows=rows)
    print(pd.json_normalize(rows).to_string())


if __name__ == "__main__":
    run_script(main)
