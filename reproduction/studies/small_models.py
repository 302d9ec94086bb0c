"""Training of small models with tuned learning rates."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from reproduction.study import Study, read_results_table, run_study
from reproduction.study.model_metrics import compute_logits, measure_accuracy
from reproduction.study.study import StudyModel
from reproduction.study.train_and_measure import load_cached_dataset
from reproduction.training import train_steps
from teka.data import Dataset
from teka.nn import Attention
from teka.provenance import gather_provenance

BATCH_SIZE = 32
FIRST_TUNING_SEED = 100


def train_small_model(
    study_model: StudyModel,
    change_attention: Callable[[Attention], None],
    *,
    data_dir: str | None = None,
    command: str = "",
) -> tuple[nn.Module, Dataset, dict[str, Any]]:
    """Modify the attention layers of a small model, then train and measure the model.

    Training uses one thread, AdamW and a one-cycle schedule.

    Args:
        study_model: Configuration of the model, with the number of epochs, the peak learning rate
            and the seed.
        change_attention: Function that modifies each attention layer of the new model in place.
        data_dir: Folder with the files of the data sets.
        command: Command line that is saved with the result.

    Returns:
        The model, its data set, and the results to save: the CPU seconds, the loss on held-out
        images, statistics of the gradient norm, the hardware and the software versions. The test
        accuracy is measured only for seeds that do not tune the learning rate.
    """
    torch.set_num_threads(1)
    run = study_model.run
    dataset = load_cached_dataset(run.replace(data_dir=data_dir).images)
    torch.manual_seed(run.seed)
    model = run.make_model(**dataset.sizes)
    for layer in list(model.modules()):
        if isinstance(layer, Attention):
            change_attention(layer)
    train = dataset.train
    start = time.process_time()
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.learning_rate)
    steps_per_epoch = len(train) // BATCH_SIZE
    num_steps = run.epochs * steps_per_epoch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, run.learning_rate, num_steps, pct_start=0.1
    )
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    generator = torch.Generator().manual_seed(run.seed)
    orders = [torch.randperm(len(train), generator=generator) for _ in range(run.epochs)]
    rows = [part for order in orders for part in order.split(BATCH_SIZE)[:steps_per_epoch]]
    norms = train_steps(
        model, [optimizer], lambda step: train[rows[step]], num_steps=num_steps, gradient_clip=1.0
    )
    seconds = time.process_time() - start
    model.eval()
    result = {
        **study_model.labels,
        "seed": run.seed,
        "run": run.to_dict(),
        "seconds": seconds,
        "validation_loss": cross_entropy(
            compute_logits(model, dataset.validation.images), dataset.validation.labels
        ).item(),
        "gradient_norm": {"median": statistics.median(norms), "largest": max(norms)},
        **gather_provenance(command),
    }
    if run.seed < FIRST_TUNING_SEED:
        result["accuracy"] = measure_accuracy(model, dataset.test)
    return model, dataset, result


def run_tuned_study(
    study: Study,
    folder: Path,
    train_study_model: Callable[..., dict[str, Any]],
    *,
    last_rate: str = "",
    data_dir: str | None = None,
    processes: int = 1,
) -> None:
    """Tune the learning rate of each candidate on each data set, then train with the best rate.

    The learning rate is tuned with separate tuning seeds.

    Args:
        study: Study with the factors "data", "candidate" and "rate".
        folder: Folder with the study's results.
        train_study_model: Function that trains one model, see `run_study`.
        last_rate: Learning rate that is tried only if the largest of the other rates is the best.
        data_dir: Folder with the files of the data sets.
        processes: Number of models that are trained at the same time.
    """
    train = partial(
        run_study,
        study,
        folder,
        train_study_model=train_study_model,
        data_dir=data_dir,
        processes=processes,
        command=f"python -m {study.script}",
    )
    rates = [rate for rate in study.factors["rate"] if rate != last_rate]
    tuning_seeds = [str(seed) for seed in study.seeds if seed >= FIRST_TUNING_SEED]
    train(only={"seed": tuning_seeds, "rate": rates})
    for levels in find_best_learning_rates(study, folder):
        if last_rate and levels["rate"] == rates[-1:]:
            train(only={**levels, "rate": [last_rate], "seed": tuning_seeds})
    for levels in find_best_learning_rates(study, folder):
        train(only=levels)


def find_best_learning_rates(study: Study, folder: Path) -> list[dict[str, list[str]]]:
    """Find the best learning rate of each candidate on each data set.

    The best rate has the smallest loss on held-out images, averaged over the tuning seeds.
    Models with a tuning seed are recognized by their missing test accuracy.

    Returns:
        For each candidate and data set, the levels that select the models with the best rate.
    """
    results = read_results_table(study, folder)
    tuning = results[results.accuracy.isna()]
    losses = tuning.groupby(level=["data", "candidate", "rate"], sort=False).validation_loss.mean()
    best = losses.groupby(level=["data", "candidate"], sort=False).idxmin()
    return [
        {"data": [data], "candidate": [candidate], "rate": [rate]} for data, candidate, rate in best
    ]
