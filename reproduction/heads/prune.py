"""Prune the degenerate heads of a finished run and train on."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor, nn

from reproduction.baselines import SelfAttentionNetwork
from reproduction.heads.degenerate_heads import (
    CONDITION_NUMBER,
    LARGEST_PRECISION,
    find_degenerate_heads,
)
from reproduction.heads.record import BEFORE_PRUNING_FILE, HEADS_FILE
from teka.data import Dataset
from teka.errors import wrong_value
from teka.files import atomic_directory, resolve_path, write_bytes
from teka.flops import flop_counter
from teka.provenance import provenance
from teka.training import TrainedRun, evaluate, train
from teka.training.checkpoint import BEST, CHECKPOINTS, load_weights
from teka.training.trained_run import confusion_matrix

PRUNING_FILE = "pruning.json"


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
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Prune the degenerate heads of a finished run and train the rest on, by the recipe of the run.

    `out` becomes the folder of a finished run, atomically. It also has the results in
    `pruning.json`, and the record of the heads before pruning.

    Source: Cordonnier et al. 2020, A.1. The default epochs and learning rate follow their code: 300
    epochs at 0.1, then 100 epochs of the pruned network at 0.01.

    Args:
        trained: A run of "self_attention" with position "quadratic" or "generalized_quadratic",
            without content.
        out: Folder to write, new or empty.
        largest_precision: Prune heads whose largest eigenvalue of Σ⁻¹ is smaller: they attend to
            everything.
        condition_number: Prune heads whose largest eigenvalue is more than this multiple of the
            smallest: they attend to a thin stripe.
        epochs: Epochs after pruning. By default a third of those of the run.
        learning_rate: Peak learning rate after pruning. By default a tenth of that of the run.
        command: Command line that the results record.
        progress_bar: Show the progress of the training.

    Returns:
        The table of `find_degenerate_heads`, and the parameters, FLOPs of an image and test
        accuracy of the model before pruning, after pruning and after training.

    Raises:
        ValueError: The run has another model or no head to prune, or `out` is not empty.
        FloatingPointError: The loss diverged.
    """
    model, dataset, folder = trained.model, trained.dataset, resolve_path("out", out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise wrong_value("out", str(out), "a folder that is empty or does not exist")
    if not isinstance(model, SelfAttentionNetwork):
        raise wrong_value("run", trained.run.model, "a run of model 'self_attention'")
    heads = find_degenerate_heads(
        model, largest_precision=largest_precision, condition_number=condition_number
    )
    if not heads.pruned.any():
        extremes = (
            f"The smallest largest_precision is {heads.largest_precision.min():.3g}, "
            f"the largest condition_number {heads.condition_number.max():.3g}."
        )
        raise wrong_value("run", str(trained.folder), "one with degenerate heads", extremes)
    pruned_heads = [
        layer.pruned.to_numpy().nonzero()[0].tolist() for _, layer in heads.groupby("layer")
    ]
    pruned = model.without_heads(pruned_heads)
    run = trained.run.replace(
        heads=pruned.heads,
        epochs=-(-trained.run.epochs // 3) if epochs is None else epochs,
        learning_rate=trained.run.learning_rate / 10 if learning_rate is None else learning_rate,
    )
    models = {"before": _measure(model, dataset), "pruned": _measure(pruned, dataset)}
    with atomic_directory("out", folder) as new:
        start = start_from(pruned.state_dict())
        result = train(
            run, new, command=command, dataset=dataset, callbacks=[start], progress_bar=progress_bar
        )
        load_weights(pruned, new / CHECKPOINTS / BEST)
        evaluation = evaluate(TrainedRun(new, run, pruned, dataset, result), command=command)
        models["tuned"] = models["pruned"] | {"accuracy": evaluation.accuracy}
        content = {
            **provenance(command),
            "run": str(trained.folder),
            "largest_precision": largest_precision,
            "condition_number": condition_number,
            "heads": heads.reset_index().to_dict("records"),
            **models,
            "test_images": evaluation.test_images,
            "seconds": result["seconds"],
        }
        # pandas writes infinity, which is not JSON, as null.
        content = pd.Series(content).to_json(force_ascii=False, indent=2)
        write_bytes(new / PRUNING_FILE, f"{content}\n".encode())
        if (trained.folder / HEADS_FILE).is_file():
            shutil.copyfile(trained.folder / HEADS_FILE, new / BEFORE_PRUNING_FILE)
    return heads, pd.DataFrame(models).T


def start_from(weights: Mapping[str, Tensor]) -> LambdaCallback:
    """Return a callback that starts a training from weights. A checkpoint overrides them."""
    named = {f"model.{name}": tensor for name, tensor in weights.items()}
    return LambdaCallback(setup=lambda _, classifier, stage: classifier.load_state_dict(named))


def _measure(model: nn.Module, dataset: Dataset) -> dict[str, Any]:
    images = torch.zeros(1, dataset.in_channels, *dataset.image_size)
    with torch.no_grad(), flop_counter() as counter:
        model(images)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flops": counter.get_total_flops(),
        "accuracy": int(confusion_matrix(model, dataset).diagonal().sum()) / len(dataset.test),
    }
