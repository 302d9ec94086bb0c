"""Benchmark of how closely attention with random features approximates softmax attention.

    python -m reproduction.benchmarks.approximation             # measures, takes two minutes
    python -m reproduction.benchmarks.approximation --table     # prints the committed errors

Two kinds of errors are measured in float64, for each kernel, random projection and number of
features:

- "output": the relative error of the output for normally distributed queries and keys,
  ‖ÂV − AV‖ / ‖AV‖, where A and Â are the exact and the approximate attention weights.
- "ball": the largest attention-weight error of any query i, ½ Σ_j |â_ij − a_ij|, for queries and
  keys of bounded length.

Source: Choromanski et al. 2021, Rethinking attention with Performers, Figure 4 and Theorem 4.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from reproduction.benchmarks.measurement import run_script, save_results
from reproduction.heads.attention_patterns import compute_attention_weights
from reproduction.study.summary_page import compute_margin_of_error
from teka.files import read_json
from teka.functional import PROJECTIONS, ContentKernel, draw_projection
from teka.functional.kernels import RANDOM_KERNELS

OUT = Path(__file__).with_suffix(".json")
# Standard deviations of queries and keys for "output", and radii of their balls for "ball".
SIZES = [*product(["output"], (0.25, 0.5, 1.0)), *product(["ball"], (0.5, 1.0, 2.0))]
SETTINGS = {
    "dim": 32,
    "num_tokens": 256,
    "num_features": (16, 32, 64, 128, 256, 512, 1024),
    "num_draws": 20,
}
PANEL = ["kind", "size"]
LINE = ["kernel", "projection", *PANEL]


def draw_queries_keys_values(kind: str, size: float, num_tokens: int, dim: int) -> list[Tensor]:
    """Draw the queries, keys and values of one head in float64.

    For the kind "output", queries and keys are normally distributed, and `size` is the standard
    deviation of their entries. For the kind "ball", they lie in a ball of radius size · dim^(1/4):
    their lengths are drawn uniformly, and the first query and the first key have the maximum
    length.
    """
    generator = Generator().manual_seed(0)
    shape = 3, 1, 1, num_tokens, dim
    query, key, value = torch.randn(shape, dtype=torch.float64, generator=generator)
    if kind == "output":
        return [size * query, size * key, value]
    lengths = torch.rand(2, 1, 1, num_tokens, 1, dtype=torch.float64, generator=generator)
    lengths[..., 0, :] = 1
    radii = size * dim**0.25 * lengths
    return [radii[0] * normalize(query, dim=-1), radii[1] * normalize(key, dim=-1), value]


def draw_random_feature_kernels(
    kernel_name: str, projection: str, num_features: int, dim: int, num_draws: int
) -> Iterator[ContentKernel]:
    """Create `num_draws` copies of a kernel, each with newly drawn random features."""
    kernel_class = RANDOM_KERNELS[kernel_name]
    # Some kernels have two features for each drawn vector.
    count = max(1, num_features // kernel_class.features_per_draw)
    for draw in range(num_draws):
        generator = Generator().manual_seed(1_000_003 * (draw + 1))
        yield kernel_class(draw_projection(count, dim, generator=generator, projection=projection))


def measure_approximation_errors(
    dim: int, num_tokens: int, num_features: Sequence[int], num_draws: int
) -> pd.DataFrame:
    """Measure how closely each random-feature kernel approximates softmax attention.

    The errors are averaged over random projections.

    Args:
        dim: Size of queries and keys.
        num_tokens: Number of tokens.
        num_features: Numbers of features to compare.
        num_draws: Number of random projections, at least 2. All use the same queries and keys.

    Returns:
        A table with the mean "error" and "half" of its 95 % interval. For comparison,
        "error_of_mean" is the error of a uniform average of all values.
    """
    rows = []
    for kind, size in SIZES:
        query, key, value = draw_queries_keys_values(kind, size, num_tokens, dim)
        exact = compute_attention_weights(query, key, kernel="softmax")
        output = exact @ value
        error_of_mean = (value.mean(dim=-2, keepdim=True) - output).norm() / output.norm()
        for variant in product(RANDOM_KERNELS, PROJECTIONS, num_features):
            for kernel in draw_random_feature_kernels(*variant, dim, num_draws):
                weights = compute_attention_weights(query, key, kernel=kernel)
                if kind == "output":
                    error = (weights @ value - output).norm() / output.norm()
                else:
                    error = (weights - exact).abs().sum(dim=-1).max() / 2
                rows.append((*variant, kind, size, error_of_mean.item(), error.item()))
    columns = ["kernel", "projection", "num_features", *PANEL, "error_of_mean", "error"]
    errors = pd.DataFrame(rows, columns=columns).groupby(columns[:-1], sort=False).error
    return pd.DataFrame(
        {"error": errors.mean(), "half": compute_margin_of_error(errors)}
    ).reset_index()


def fit_error_exponent(errors: pd.DataFrame) -> float:
    """Fit a power law m^p to the errors with m random features, and return the exponent p.

    Only the half of the rows with the most features is used.
    """
    last = errors.tail((len(errors) + 1) // 2)
    return np.polyfit(np.log(last.num_features), np.log(last.error), deg=1)[0]


def print_error_tables(errors: pd.DataFrame) -> None:
    """Print the errors of each kernel and how they decrease with the number of features m.

    The second table gives the exponent p of a power law m^p that is fitted to the errors. For
    comparison, the third table gives the error of a uniform average of all values.
    """
    tables = {
        "error": errors.set_index([*LINE, "num_features"]).error,
        "power of the number of features": errors.groupby(LINE)[["num_features", "error"]].apply(
            fit_error_exponent
        ),
        "error of the mean of the values": errors.groupby(PANEL).error_of_mean.first(),
    }
    for title, values in tables.items():
        table = values.unstack("size")
        print(f"\n{title}\n{table.to_string(float_format='{:.3g}'.format, na_rep='')}")


def main(*, table: bool = False, out: Path = OUT) -> None:
    """Measure and print the errors of attention with random features.

    Args:
        table: Print the errors in the result file without measuring.
        out: Result file.
    """
    if not table:
        rows = measure_approximation_errors(**SETTINGS)
        save_results(out, settings=SETTINGS, rows=rows.to_dict("records"))
    print_error_tables(pd.DataFrame(read_json(out)["rows"]))


if __name__ == "__main__":
    run_script(main)
