"""Denominators of rotary attention: accuracy, size of the outputs and gradients.

    python -m reproduction.studies.bounded_rotary --data-dir data --processes 2
    python -m reproduction.studies.tables

The first command trains the models of bounded_rotary.yaml that are missing in the folder
bounded_rotary. The second one writes the tables of the results.
"""

from functools import partial
from pathlib import Path
from typing import Any

import cyclopts
from torch import nn

from reproduction.studies.small_models import FIRST_TUNING_SEED, best_levels, fit, make_model
from reproduction.study import read_study, run_study
from reproduction.study.measure import accuracy
from reproduction.study.run_cell import load_dataset
from reproduction.study.study import Cell
from teka.nn import Attention, LearnedRelativeKernel

STUDY = read_study(Path(__file__).with_suffix(".yaml"))
RESULTS = Path(__file__).with_suffix("")
*RATES, LARGEST_RATE = STUDY.factors["rate"]
SELECTION_SEEDS = range(6)
EVALUATION_SEEDS = range(10, 16)
# λ of the denominator, which no option of a model sets.
LENGTH_SHARES = {"mixed, λ = 0.1": 0.1, "mixed, λ = 0.3": 0.3}


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


def train_cell(
    cell: Cell, folder: Path, *, data_dir: str | None = None, command: str = ""
) -> dict[str, Any]:
    """Train and measure one model; with a tuning seed only on held-out images."""
    dataset = load_dataset(cell.run.replace(data_dir=data_dir).images)
    model = make_model(cell, dataset)
    length_share = LENGTH_SHARES.get(cell.labels["candidate"])
    for layer in model.modules():
        if length_share is not None and isinstance(layer, LearnedRelativeKernel):
            layer.options["length_share"] = length_share
    outputs = watch_outputs(model)
    result = fit(model, dataset, cell, command)
    result["largest_output"] = max(outputs)
    if cell.run.seed < FIRST_TUNING_SEED:
        result["accuracy"] = accuracy(model, dataset.test)
    return result


def main(*, data_dir: str | None = None, processes: int = 1) -> None:
    """Train the models that are missing: first those that tune the learning rates."""
    train = partial(
        run_study,
        STUDY,
        RESULTS,
        train_cell=train_cell,
        data_dir=data_dir,
        processes=processes,
        command="python -m reproduction.studies.bounded_rotary",
    )
    tuning_seeds = [str(seed) for seed in STUDY.seeds if seed >= FIRST_TUNING_SEED]
    train(only={"seed": tuning_seeds, "rate": RATES})
    for levels in best_levels(STUDY, RESULTS):
        if levels["rate"] == RATES[-1:]:
            train(only={**levels, "rate": [LARGEST_RATE], "seed": tuning_seeds})
    for levels in best_levels(STUDY, RESULTS):
        train(only=levels)


if __name__ == "__main__":
    cyclopts.run(main)
