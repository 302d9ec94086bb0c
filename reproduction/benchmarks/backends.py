"""Benchmark of all attention backends, which calibrates the cost model for choosing one.

    python -m reproduction.benchmarks.backends             # measures the times
    python -m reproduction.benchmarks.backends --table     # uses the committed times

The script times attention with many kernels and input sizes on every backend that supports it. It
fits the constants of the cost model to these times. It also prints how much slower the backend
chosen by `backend="auto"` is than the fastest backend.
"""

import math
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import nnls

from reproduction.benchmarks.measurement import measure_median_times, run_script, save_results
from teka import Grid
from teka.files import read_json
from teka.functional import attention
from teka.functional.attention_plan import AttentionPlan
from teka.functional.backends.costs import Cost, select_backend
from teka.functional.kernels import make_content_kernel
from teka.functional.positions import Positions
from teka.functional.relative import make_relative_kernel

OUT = Path(__file__).with_suffix(".json")
DIM = 32
SECONDS = 0.3  # mean total time per backend and measurement
LARGE_GRIDS = [
    *((length,) for length in (256, 1024, 2048, 4096)),
    *((side, side) for side in (16, 32, 48, 64)),
    *((side, side, side) for side in (6, 10, 16)),
]
SMALL_GRIDS = [(side, side) for side in (4, 6, 8, 12, 16)]
SEPARABLE = ("fourier", "clipped", "rotation")
OTHERS = ("quadratic", "table", "generalized_quadratic")


def make_benchmark_cases() -> list[dict[str, Any]]:
    """Return the combinations of kernels and input sizes to time.

    Only combinations that at least two backends support are included.
    """
    cases = [
        *product(["squared_relu"], [None, "rotary", *SEPARABLE, *OTHERS], LARGE_GRIDS, [2], [1]),
        *product(["constant"], [*SEPARABLE, *OTHERS], LARGE_GRIDS, [2], [1]),
        *product(["squared_relu"], [None, "rotary", *SEPARABLE], SMALL_GRIDS, [8], [1, 4, 32]),
    ]
    names = ("kernel", "relative", "shape", "heads", "batch")
    rows = [dict(zip(names, case, strict=True)) for case in cases]
    return [row for row in rows if len(estimate_costs(row)) > 1]


def make_attention_plan(case: dict[str, Any]) -> AttentionPlan:
    """Create the `AttentionPlan` from which teka estimates the costs of a benchmark case."""
    shape = tuple(case["shape"])
    kernel = make_content_kernel(case["kernel"], DIM)
    relative = None
    if case["relative"] is not None:
        relative = make_relative_kernel(
            case["relative"], heads=case["heads"], dim=DIM, num_axes=len(shape), kernel=kernel
        )
    return AttentionPlan(kernel, relative, Positions(Grid(shape)), DIM**-0.5, is_causal=False)


def estimate_costs(case: dict[str, Any]) -> dict[str, Cost]:
    """Estimate the cost of a benchmark case for each backend that supports it."""
    num_tokens = math.prod(case["shape"])
    return make_attention_plan(case).estimate_costs(
        heads=case["heads"],
        num_queries=num_tokens,
        num_keys=num_tokens,
        dim=DIM,
        dim_value=DIM,
        batch=case["batch"],
    )


def time_backends(case: dict[str, Any], seconds: float) -> dict[str, dict[str, float]]:
    """Time a benchmark case with all backends that support it.

    Returns:
        The median time of each backend in seconds, for the keys "forward" and "forward_backward".
    """
    plan = make_attention_plan(case)
    shape = case["batch"], case["heads"], math.prod(case["shape"]), DIM
    inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    options = {"kernel": plan.kernel, "relative": plan.relative, "grid": Grid(case["shape"])}

    def forward(backend: str) -> None:
        with torch.no_grad():
            attention(*inputs, backend=backend, **options)

    def forward_backward(backend: str) -> None:
        output = attention(*inputs, backend=backend, **options)
        torch.autograd.grad(output, inputs, output.detach(), allow_unused=True)

    backends = estimate_costs(case)
    return {
        function.__name__: measure_median_times(
            {name: partial(function, name) for name in backends}, seconds
        )
        for function in (forward, forward_backward)
    }


def make_time_table(measurements: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a table of the measured times of all backends and their estimated costs.

    Args:
        measurements: Kernels, input size and measured times of each benchmark case.
    """
    records = []
    for case, row in enumerate(measurements):
        costs = estimate_costs(row)
        chosen = select_backend("auto", costs)
        for direction, times in row["seconds"].items():
            for backend, seconds in times.items():
                records.append(
                    {
                        "case": case,
                        "direction": direction,
                        "backend": backend,
                        "is_chosen": backend == chosen,
                        "nanoseconds": 1e9 * seconds,
                        **vars(costs[backend]),
                    }
                )
    return pd.DataFrame(records)


def fit_cost_constants(times: pd.DataFrame) -> pd.DataFrame:
    """Fit the cost model of each backend to its measured times.

    The constants are the nanoseconds per multiply-add, per byte of memory traffic, per call and per
    attention head.
    """
    rates = {}
    for backend, group in times.groupby("backend"):
        # Times are those of all heads, costs are those of one head.
        costs = group[["multiply_adds", "bytes"]].assign(call=1 / group.heads, head=1)
        work = costs.mul(group.heads / group.nanoseconds, axis=0)
        rates[backend], _ = nnls(work, np.ones(len(work)))
    return pd.DataFrame(rates, index=["multiply_add", "byte", "call", "head"]).T


def main(*, table: bool = False, out: Path = OUT) -> None:
    """Time all backends, fit the cost model, and print how fast the chosen backends are.

    Args:
        table: Use the times in the result file without measuring.
        out: Result file.
    """
    if not table:
        rows = []
        for case in make_benchmark_cases():
            rows.append({**case, "seconds": time_backends(case, SECONDS)})
            print(rows[-1], flush=True)
        save_results(out, dim=DIM, times=rows)
    times = make_time_table(read_json(out)["times"])
    print(fit_cost_constants(times).to_string(float_format="{:.3g}".format))
    fastest = times.groupby(["case", "direction"]).nanoseconds.transform("min")
    ratios = (times.nanoseconds / fastest)[times.is_chosen]
    num_slow = (ratios > 1.3).sum()
    print(f"backend='auto' is at most {ratios.max():.2f} times as slow as the fastest backend")
    print(f"it is more than 1.3 times as slow in {num_slow} of {len(ratios)} comparisons")


if __name__ == "__main__":
    run_script(main)
