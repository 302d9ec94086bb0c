"""A layer compiled by torch.compile against the same layer as it is: python reproduction/benchmarks/compiled.py.

Forward and backward, dim 256, 8 heads, batch 2, one thread; by turns, medians of 9 rounds after 2, of 64 tokens of 99,
and of the default layer with 65,536 tokens too. Beside 64 tokens stands torch.nn.MultiheadAttention too, as it is.
Writes compiled.json beside itself.
"""

import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reproduction.bench.layers import FourGemms, Multihead, Step
from teka import Grid
from teka.files import write_json
from teka.nn import Attention
from teka.provenance import provenance

ROUNDS, ROUNDS_OF_SMALL, WARM_UP = 9, 99, 2
SMALL, SIDES, LARGE = 8, (8, 16, 32, 64), 256
DEFAULT = "squared_relu × rotary"
LAYERS: dict[str, dict[str, Any]] = {
    "squared_relu": {"relative": None},
    DEFAULT: {},
    "squared_relu × fourier": {"relative": "fourier"},
    "squared_relu × rotary, causal": {"causal": True, "num_axes": 1},
    "positive": {"relative": None, "kernel": "positive"},
    "hedgehog": {"relative": None, "kernel": "hedgehog"},
    "taylor2": {"relative": None, "kernel": "taylor2"},
    "squared_relu × clipped": {"relative": "clipped"},
    "squared_relu × rotation": {"relative": "rotation"},
    "softmax × rotary": {"kernel": "softmax"},
}


def measure(name: str, side: int) -> dict[str, Any]:
    """One layer at one number of tokens."""
    options = LAYERS[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    grid = Grid(side**2) if options.get("causal") else Grid((side, side))
    tokens = torch.randn(2, side**2, 256, requires_grad=True)
    layer = Attention(256, 8, **options)
    compiled: Any = torch.compile(layer)
    modules: dict[str, nn.Module] = {
        "four_gemms": FourGemms(256, 8),
        "eager": layer,
        "compiled": compiled,
    }
    if side == SMALL:
        modules["multihead_attention"] = Multihead(256, 8)
    steps = {one: Step(module, tokens, grid) for one, module in modules.items()}
    start, seconds = time.perf_counter(), {one: [] for one in modules}
    steps["compiled"]()
    compiling = time.perf_counter() - start
    for number in range(WARM_UP + (ROUNDS_OF_SMALL if side == SMALL else ROUNDS)):
        for one, step in steps.items():
            start = time.perf_counter()
            step()
            if number >= WARM_UP:
                seconds[one].append(time.perf_counter() - start)
            step.clear()
    medians = {one: 1e3 * statistics.median(found) for one, found in seconds.items()}
    return {"layer": name, "tokens": side**2, **medians, "seconds_to_compile": compiling}


def main() -> None:
    """Every layer at every number of tokens."""
    torch.set_num_threads(1)
    rows = []
    for side, name in [*itertools.product(SIDES, LAYERS), (LARGE, DEFAULT)]:
        rows.append(measure(name, side))
        print(
            {
                key: round(one, 1) if isinstance(one, float) else one
                for key, one in rows[-1].items()
            },
            flush=True,
        )
    write_json(
        Path(__file__).with_suffix(".json"),
        {**provenance("python reproduction/benchmarks/compiled.py"), "rows": rows},
    )


if __name__ == "__main__":
    main()
