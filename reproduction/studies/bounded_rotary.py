r"""Denominators of rotary attention: accuracy, size of the outputs and gradients.

    python -m reproduction.studies.bounded_rotary --data-dir data --processes 2
    python -m reproduction.studies.tables

The first command trains the models that are missing in bounded_rotary.jsonl.gz. The second one
writes the tables of the results. Every candidate is tuned on each data set. The selection seeds
choose the default. The evaluation seeds were not used for any choice; they compare the default with
the previous one and with softmax.
"""

from collections.abc import Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import cyclopts
from torch import nn

from reproduction.studies.small_models import best_rates, build, fit, train_missing
from reproduction.study.measure import accuracy
from teka.data import load
from teka.nn import Attention, LearnedRelativeKernel

RESULTS = Path(__file__).with_name("bounded_rotary.jsonl.gz")
LARGE = {"image_size": 14, "train_size": 10_000, "validation_size": 2000}
DATA: dict[str, dict[str, Any]] = {
    "digits": {"name": "digits", "image_size": 14, "validation_size": 137},
    "MNIST": {"name": "mnist", **LARGE},
    "Fashion-MNIST": {"name": "fashion-mnist", **LARGE},
}
EPOCHS = {"digits": 12, "MNIST": 3, "Fashion-MNIST": 3}
# The bound of the outputs, options of the model, and options of the rotary kernel.
CANDIDATES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "softmax": ("1", {"kernel": "softmax"}, {}),
    "features (before)": ("none", {}, {"normalizer": "features"}),
    "features, ε = 0.1": ("none", {"epsilon": 0.1}, {"normalizer": "features"}),
    "mixed, λ = 0.1": ("10", {}, {"normalizer": "mixed", "length_share": 0.1}),
    "mixed, λ = 0.3": ("3.3", {}, {"normalizer": "mixed", "length_share": 0.3}),
    "lengths": ("1", {}, {"normalizer": "lengths", "length_share": 1.0}),
    "non-negative": ("1", {}, {"normalizer": "nonnegative", "length_share": 1.0}),
}
DEFAULT = "mixed, λ = 0.3"
EVALUATED = (DEFAULT, "features (before)", "softmax")
RATES = (0.001, 0.002, 0.004, 0.008)
LARGEST_RATE = 0.016  # only if 0.008 is the best of the others
TUNING_SEEDS = {"digits": (100, 101), "MNIST": (100,), "Fashion-MNIST": (100,)}
SELECTION_SEEDS = range(6)
EVALUATION_SEEDS = range(10, 16)


def watch_outputs(model: nn.Module) -> list[float]:
    """Return a list that receives the largest output of each call divided by the largest value."""
    ratios: list[float] = []
    sizes: list[float] = []
    for layer in model.modules():
        if isinstance(layer, Attention) and layer.value is not None:
            layer.value.register_forward_hook(
                lambda module, inputs, output: sizes.append(output.detach().abs().max().item())
            )
            layer.output.register_forward_pre_hook(
                lambda module, inputs: ratios.append(inputs[0].abs().max().item() / sizes.pop())
            )
    return ratios


def train(
    data_dir: str | None, data: str, candidate: str, rate: float, seed: int
) -> dict[str, Any]:
    """Train and measure one model; with a tuning seed only on held-out images."""
    dataset = load(**DATA[data], data_dir=data_dir)
    _, options, rotary = CANDIDATES[candidate]
    model = build(seed, dataset.in_channels, **{"kernel": "squared_relu", **options})
    for layer in model.modules():
        if isinstance(layer, LearnedRelativeKernel):
            layer.options.update(rotary)
    outputs = watch_outputs(model)
    result = fit(model, dataset, epochs=EPOCHS[data], rate=rate, seed=seed)
    result["largest_output"] = max(outputs)
    if seed not in TUNING_SEEDS[data]:
        result["accuracy"] = accuracy(model, dataset.test)
    return result


def main(*, data_dir: str | None = None, processes: int = 1) -> None:
    """Train the models that are missing: first those that tune the learning rates."""
    train_missing_cells = partial(train_missing, RESULTS, partial(train, data_dir), processes)

    def tune(cells: Iterable[tuple[str, str, float]]) -> list[tuple[str, str, float]]:
        """Train the cells with the tuning seeds, and return the best rates."""
        return best_rates(
            train_missing_cells((*cell, seed) for cell in cells for seed in TUNING_SEEDS[cell[0]])
        )

    best = tune(product(DATA, CANDIDATES, RATES))
    at_limit = [cell[:2] for cell in best if cell[2] >= RATES[-1]]
    best = tune((*cell, LARGEST_RATE) for cell in at_limit)
    for data, candidate, rate in best:
        seeds = [*SELECTION_SEEDS, *(EVALUATION_SEEDS if candidate in EVALUATED else ())]
        train_missing_cells((data, candidate, rate, seed) for seed in seeds)


if __name__ == "__main__":
    cyclopts.run(main)
