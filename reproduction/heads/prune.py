"""A finished run without its degenerate heads, trained on."""

import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor, nn

from reproduction.baselines import SelfAttentionNetwork
from reproduction.baselines.degenerate_heads import (
    CONDITION_NUMBER,
    LARGEST_PRECISION,
    DegenerateHeads,
    degenerate_heads,
)
from reproduction.heads.record import BEFORE_PRUNING_FILE, HEADS_FILE
from teka.data import Dataset
from teka.errors import wrong_value
from teka.files import atomic_directory, resolve_path, write_json
from teka.flops import flop_counter
from teka.provenance import provenance
from teka.training.checkpoint import BEST, CHECKPOINTS, load_weights
from teka.training.train import train
from teka.training.trained_run import Evaluation, TrainedRun, confusion_matrix, evaluate

PRUNING_FILE = "pruning.json"
# As in the code of Cordonnier et al.: 300 epochs at 0.1, then 100 of the pruned network at 0.01.
SHARE_OF_EPOCHS = 3
SHARE_OF_LEARNING_RATE = 10


@dataclass(frozen=True)
class PrunedModel:
    """A model's size, cost and accuracy on the test images at one time of its pruning."""

    parameters: int
    flops: int  # of matrix products and convolutions for one image, forward in evaluation
    accuracy: float


@dataclass(frozen=True)
class Pruning:
    """The heads of every layer before a pruning, the model before and after it and trained on, and its evaluation."""

    layers: tuple[DegenerateHeads, ...]
    before: PrunedModel
    pruned: PrunedModel
    tuned: PrunedModel
    evaluation: Evaluation
    seconds: float


def prune(
    trained: TrainedRun,
    out: str | Path,
    *,
    largest_precision: float = LARGEST_PRECISION,
    condition_number: float = CONDITION_NUMBER,
    epochs: int | None = None,
    learning_rate: float | None = None,
    command: str = "",
    progress_bar: bool = True,
) -> Pruning:
    """Remove the degenerate heads of a finished run, train on, and write the folder of a finished run.

    What is left is trained by the run's own recipe, from the weights that it has. The folder, which may be pruned once
    more, is written whole or not at all; besides what every run's holds there are `pruning.json` and
    the record of its heads before, whose accuracy `python -m reproduction heads` draws before its own.

    Source: Cordonnier et al. 2020, A.1; number of epochs and learning rate by their code.

    Args:
        trained: A run of "self_attention" with position "quadratic" or "generalized_quadratic", without content.
        out: The folder to write, new or empty.
        largest_precision: A head whose largest eigenvalue of the inverse covariance is below this sees everything.
        condition_number: A head whose largest eigenvalue over its smallest is above this sees a thin stripe.
        epochs: Epochs of the training on, by default a third of the run's.
        learning_rate: Peak learning rate, by default a tenth of the run's.
        command: The command to keep with the numbers.
        progress_bar: Whether to print a row of a table for each epoch.

    Raises:
        ValueError: A run of another model, no degenerate head, or a folder that is not empty.
        KeyboardInterrupt: Interrupted; nothing was written.
        FloatingPointError: The loss became NaN or infinite; nothing was written.
    """
    model, dataset, folder = trained.model, trained.dataset, resolve_path("out", out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise wrong_value("out", str(out), "a folder that is empty, or a place where none stands")
    if not isinstance(model, SelfAttentionNetwork):
        raise wrong_value("run", trained.run.model, "a run of model 'self_attention'")
    layers = degenerate_heads(
        model, largest_precision=largest_precision, condition_number=condition_number
    )
    pruned = model.without_heads([layer.prunable for layer in layers])
    if pruned.heads == model.heads:
        precision = min(min(layer.largest_precision) for layer in layers)
        condition = max(max(layer.condition_number) for layer in layers)
        extremes = f"the smallest of the largest precisions is {precision:.3g}, the largest condition number"
        expected = f"one with degenerate heads to spare; {extremes} {condition:.3g}"
        raise wrong_value("run", str(trained.folder), expected)
    run = trained.run.replace(
        heads=pruned.heads,
        epochs=-(-trained.run.epochs // SHARE_OF_EPOCHS) if epochs is None else epochs,
        learning_rate=trained.run.learning_rate / SHARE_OF_LEARNING_RATE
        if learning_rate is None
        else learning_rate,
    )
    before, after = _measure(model, dataset), _measure(pruned, dataset)
    with atomic_directory("out", folder) as new:
        start = beginning_with(pruned.state_dict())
        result = train(
            run, new, command=command, dataset=dataset, callbacks=[start], progress_bar=progress_bar
        )
        load_weights(pruned, new / CHECKPOINTS / BEST)
        evaluation = evaluate(TrainedRun(new, run, pruned, dataset, result), command=command)
        seconds: Any = result["seconds"]
        tuned = PrunedModel(after.parameters, after.flops, evaluation.accuracy)
        models = {"before": before, "pruned": after, "tuned": tuned}
        content = {
            **provenance(command),
            "run": str(trained.folder),
            "largest_precision": largest_precision,
            "condition_number": _or_none(condition_number),
            "layers": [_to_dict(layer) for layer in layers],
            **{name: asdict(one) for name, one in models.items()},
            "test_images": evaluation.test_images,
            "seconds": seconds,
        }
        write_json(new / PRUNING_FILE, content)
        if (trained.folder / HEADS_FILE).is_file():
            shutil.copyfile(trained.folder / HEADS_FILE, new / BEFORE_PRUNING_FILE)
    return Pruning(layers, **models, evaluation=evaluation, seconds=seconds)


def beginning_with(weights: Mapping[str, Tensor]) -> LambdaCallback:
    """What gives a model weights in place of drawn ones, before the first step; a checkpoint goes before them."""
    named = {f"model.{name}": tensor for name, tensor in weights.items()}
    return LambdaCallback(setup=lambda _, classifier, stage: classifier.load_state_dict(named))


def _measure(model: nn.Module, dataset: Dataset) -> PrunedModel:
    images = torch.zeros(1, dataset.in_channels, *dataset.image_size)
    with torch.no_grad(), flop_counter() as counter:
        model(images)
    matrix = confusion_matrix(model, dataset)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return PrunedModel(
        parameters, counter.get_total_flops(), int(matrix.diagonal().sum()) / len(dataset.test)
    )


def _to_dict(layer: DegenerateHeads) -> dict[str, object]:
    return {
        "heads": layer.num_heads,
        "everywhere": list(layer.everywhere),
        "thin": list(layer.thin),
        "pruned": list(layer.prunable),
        "largest_precision": list(layer.largest_precision),
        "condition_number": [_or_none(value) for value in layer.condition_number],
    }


def _or_none(value: float) -> float | None:
    """The number; None for infinity, which JSON has not."""
    return value if math.isfinite(value) else None
