"""How unevenly each content kernel spreads a query's weight over keys, and how much of it depends on the query.

    python reproduction/benchmarks/contrast.py

writes reproduction/benchmarks/contrast.json and prints the table. Queries and keys are normal, of unit size, as a layer's are at
first, and three times as long, as they may become. Three numbers a kernel, each a mean over heads:

- contrast: standard deviation of a query's weights over their mean, 0 for the plain mean of all values;
- query: share of the weights' variance that depends on the query, and not on the key alone;
- keys: 1 / Σ p², the number of keys that a query attends to in effect, of 196.
"""

import argparse
import sys
from pathlib import Path

import torch

from teka.files import write_json
from teka.functional import Kernel, draw_projection
from teka.functional.kernels import RANDOM_KERNELS, make_kernel
from teka.provenance import provenance

DIM_HEAD, NUM_TOKENS, HEADS, SCALES = 16, 196, 64, (1.0, 3.0)
DETERMINISTIC = ("softmax", "squared_relu", "focused", "relu", "elu", "taylor2", "hedgehog")
RANDOM = (("positive", 44), ("positive", 176), ("optimal", 44), ("hyperbolic", 44))


def kernels(generator: torch.Generator) -> dict[str, Kernel]:
    """The kernels of the study, the random ones with one draw."""
    made: dict[str, Kernel] = {name: make_kernel(name, DIM_HEAD) for name in DETERMINISTIC}
    for name, num_features in RANDOM:
        projection = draw_projection(num_features, DIM_HEAD, generator=generator)
        made[f"{name}, m = {num_features}"] = RANDOM_KERNELS[name](projection.double())
    return made


def measure(kernel: Kernel, size: float, generator: torch.Generator) -> dict[str, float]:
    """Contrast, share of the query and number of keys for normal queries and keys of a size."""
    query, key = (
        size * torch.randn(1, HEADS, NUM_TOKENS, DIM_HEAD, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    weights = kernel.weights(query, key, scale=DIM_HEAD**-0.5)
    weights = weights / weights.sum(dim=-1, keepdim=True) * NUM_TOKENS
    of_key = weights.mean(dim=-2, keepdim=True)
    variance = (weights - 1).square().mean(dim=(-2, -1))
    return {
        "contrast": (weights - 1).square().mean(dim=-1).sqrt().mean().item(),
        "query": ((weights - of_key).square().mean(dim=(-2, -1)) / variance).mean().item(),
        "keys": (NUM_TOKENS**2 / weights.square().sum(dim=-1)).mean().item(),
    }


def main() -> None:
    """Measure every kernel, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    out = parser.parse_args().out
    rows = []
    for size in SCALES:
        for name, kernel in kernels(torch.Generator().manual_seed(0)).items():
            numbers = measure(kernel, size, torch.Generator().manual_seed(1))
            rows.append({"kernel": name, "size": size, **numbers})
            print(
                f"{name:<20} × {size:g}  "
                + "  ".join(f"{key} {number:7.2f}" for key, number in numbers.items())
            )
    command = " ".join(["python", "reproduction/benchmarks/contrast.py", *sys.argv[1:]])
    sizes = {"dim_head": DIM_HEAD, "num_tokens": NUM_TOKENS, "heads": HEADS}
    write_json(out, {**provenance(command), **sizes, "rows": rows})


if __name__ == "__main__":
    main()
