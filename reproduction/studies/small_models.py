"""Small models that are trained at the learning rate that is best on tuning seeds."""

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reproduction.study.cells import load_cells
from reproduction.study.measure import predict
from reproduction.study.run_study import run_cells
from reproduction.study.study import cell_name
from reproduction.training import train_steps
from teka.data import Dataset
from teka.models import Performer

BATCH_SIZE = 32
Cell = tuple[str, str, float, int]
FACTORS = ["data", "candidate", "rate", "seed"]


def build(seed: int, channels: int = 1, **options: Any) -> Performer:
    """Create a small model on a torus of 14 × 14 pixels.

    Args:
        seed: Seed of the weights.
        channels: Number of channels of the images.
        options: Options of the attention.
    """
    torch.manual_seed(seed)
    sizes = {"dim": 32, "depth": 2, "heads": 2}
    fixed = {"stem": "convolution", "periodic": True, "pool": "mean"}
    return Performer(14, channels, 10, **sizes, **fixed, **options)


def fit(
    model: nn.Module, dataset: Dataset, *, epochs: int, rate: float, seed: int
) -> dict[str, Any]:
    """Train a model on one thread with AdamW and a one-cycle schedule.

    Args:
        model: Model to train.
        dataset: Training images and held-out images.
        epochs: Number of epochs.
        rate: Largest learning rate.
        seed: Seed of the order of the images.

    Returns:
        The seconds, the loss on the held-out images, and statistics of the norm of the gradient.
    """
    torch.set_num_threads(1)
    split, held_out = dataset.train, dataset.validation
    start = time.process_time()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    steps_per_epoch = len(split) // BATCH_SIZE
    num_steps = epochs * steps_per_epoch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, num_steps, pct_start=0.1)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(split), generator=generator) for _ in range(epochs)]
    rows = [part for order in orders for part in order.split(BATCH_SIZE)[:steps_per_epoch]]
    norms = train_steps(
        model, [optimizer], lambda step: split[rows[step]], num_steps=num_steps, gradient_clip=1.0
    )
    seconds = time.process_time() - start
    model.eval()
    return {
        "seconds": seconds,
        "validation_loss": cross_entropy(predict(model, held_out.images), held_out.labels).item(),
        "gradient_norm": {"median": statistics.median(norms), "largest": max(norms)},
    }


def read_results(path: Path) -> pd.DataFrame:
    """Read the results of trained cells, with nested keys joined by "."."""
    return pd.json_normalize(list(load_cells(path).values()))


def train_missing(
    path: Path, train: Callable[..., dict[str, Any]], processes: int, cells: Iterable[Cell]
) -> pd.DataFrame:
    """Train the cells that a file lacks, add the results to the file, and return all results.

    Args:
        path: File of the cells.
        train: Function that trains one cell (data, candidate, rate, seed) and returns its result.
        processes: Number of cells that are trained at the same time.
        cells: Cells to train.
    """

    def train_cell(cell: Cell) -> dict[str, Any]:
        return {**dict(zip(FACTORS, cell, strict=True)), **train(*cell)}

    calls = {
        cell_name((data, candidate, str(rate)), seed): partial(
            train_cell, (data, candidate, rate, seed)
        )
        for data, candidate, rate, seed in cells
    }
    run_cells(path, calls, processes=processes)
    return read_results(path)


def best_rates(results: pd.DataFrame) -> list[tuple[str, str, float]]:
    """Return the data, the candidate and its learning rate with the smallest loss on tuning seeds.

    Args:
        results: Results of `train_missing`. Those of the tuning seeds have no accuracy.
    """
    tuning: Any = results[results.accuracy.isna()]
    losses = tuning.groupby(FACTORS[:-1], sort=False).validation_loss.mean()
    return losses.groupby(FACTORS[:2], sort=False).idxmin().tolist()
