"""Small models that are trained at the learning rate that is best on tuning seeds."""

import gzip
import json
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from joblib import Parallel, delayed
from torch import nn
from torch.nn.functional import cross_entropy

from reproduction.study.measure import predict
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
    num_steps = len(split) // BATCH_SIZE
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, epochs * num_steps, pct_start=0.1
    )
    order = torch.Generator().manual_seed(seed)
    norms = []
    for _ in range(epochs):
        for rows in torch.randperm(len(split), generator=order).split(BATCH_SIZE)[:num_steps]:
            loss = cross_entropy(model(split.images[rows]), split.labels[rows])
            optimizer.zero_grad()
            loss.backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
            schedule.step()
    seconds = time.process_time() - start
    model.eval()
    return {
        "seconds": seconds,
        "validation_loss": cross_entropy(predict(model, held_out.images), held_out.labels).item(),
        "gradient_norm": {"median": statistics.median(norms), "largest": max(norms)},
    }


def read_results(path: Path) -> pd.DataFrame:
    """Read the results of trained cells, with nested keys joined by "."."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return pd.json_normalize([json.loads(line) for line in file])


def train_missing(
    path: Path, train: Callable[..., dict[str, Any]], processes: int, cells: Iterable[Cell]
) -> pd.DataFrame:
    """Train the cells that a file lacks, append each result to the file, and return all results.

    Args:
        path: Compressed file with one JSON object per line.
        train: Function that trains one cell (data, candidate, rate, seed) and returns its result.
        processes: Number of cells that are trained at the same time.
        cells: Cells to train.
    """

    def train_cell(cell: Cell) -> dict[str, Any]:
        return {**dict(zip(FACTORS, cell, strict=True)), **train(*cell)}

    finished = set(read_results(path)[FACTORS].itertuples(index=False, name=None))
    jobs = [delayed(train_cell)(cell) for cell in cells if cell not in finished]
    new_results: Any = Parallel(processes, return_as="generator_unordered")(jobs)
    for result in new_results:
        line = json.dumps(result, ensure_ascii=False)
        with gzip.open(path, "at", encoding="utf-8") as file:
            print(line, file=file)
        print(line, flush=True)
    return read_results(path)


def best_rates(results: pd.DataFrame) -> list[tuple[str, str, float]]:
    """Return the data, the candidate and its learning rate with the smallest loss on tuning seeds.

    Args:
        results: Results of `train_missing`. Those of the tuning seeds have no accuracy.
    """
    tuning: Any = results[results.accuracy.isna()]
    losses = tuning.groupby(FACTORS[:-1], sort=False).validation_loss.mean()
    return losses.groupby(FACTORS[:2], sort=False).idxmin().tolist()
