"""Small models that are trained at the learning rate that is best on tuning seeds."""

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reproduction.study import Study, read_cells
from reproduction.study.measure import predict
from reproduction.study.study import Cell
from reproduction.training import train_steps
from teka.data import Dataset
from teka.provenance import provenance

BATCH_SIZE = 32
FIRST_TUNING_SEED = 100


def make_model(cell: Cell, dataset: Dataset) -> nn.Module:
    """Create the model of a cell with the initial weights of its seed."""
    torch.manual_seed(cell.run.seed)
    return cell.run.make_model(**dataset.sizes)


def fit(model: nn.Module, dataset: Dataset, cell: Cell, command: str) -> dict[str, Any]:
    """Train a model on one thread with AdamW and a one-cycle schedule.

    Args:
        model: Model to train.
        dataset: Training images and held-out images.
        cell: Cell with the number of epochs, the largest learning rate and the seed.
        command: Command line that is saved with the result.

    Returns:
        The content to save: the CPU seconds, the loss on the held-out images, statistics of the
        norm of the gradient, and the conditions.
    """
    torch.set_num_threads(1)
    run, split, held_out = cell.run, dataset.train, dataset.validation
    rate: float = run.learning_rate
    start = time.process_time()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    steps_per_epoch = len(split) // BATCH_SIZE
    num_steps = run.epochs * steps_per_epoch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, num_steps, pct_start=0.1)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    generator = torch.Generator().manual_seed(run.seed)
    orders = [torch.randperm(len(split), generator=generator) for _ in range(run.epochs)]
    rows = [part for order in orders for part in order.split(BATCH_SIZE)[:steps_per_epoch]]
    norms = train_steps(
        model, [optimizer], lambda step: split[rows[step]], num_steps=num_steps, gradient_clip=1.0
    )
    seconds = time.process_time() - start
    model.eval()
    return {
        **cell.labels,
        "seed": run.seed,
        "run": run.to_dict(),
        "seconds": seconds,
        "validation_loss": cross_entropy(predict(model, held_out.images), held_out.labels).item(),
        "gradient_norm": {"median": statistics.median(norms), "largest": max(norms)},
        **provenance(command),
    }


def best_levels(study: Study, folder: Path) -> list[dict[str, list[str]]]:
    """Return the levels of each data set and candidate with the best learning rate.

    The best rate has the smallest mean loss on the tuning seeds, whose cells have no accuracy.
    """
    cells = read_cells(study, folder)
    tuning = cells[cells.accuracy.isna()]
    losses = tuning.groupby(level=["data", "candidate", "rate"], sort=False).validation_loss.mean()
    best: Any = losses.groupby(level=["data", "candidate"], sort=False).idxmin()
    return [
        {"data": [data], "candidate": [candidate], "rate": [rate]} for data, candidate, rate in best
    ]
