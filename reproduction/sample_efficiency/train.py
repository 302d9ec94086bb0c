"""Training of the cells of the study, each with the same number of steps."""

import time
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Generator, Tensor, nn

import reproduction.baselines  # noqa: F401, registers ResNet-18
from reproduction.resumable import train_steps
from reproduction.sample_efficiency.images import (
    CANVAS,
    balanced_subset,
    load_on_canvas,
    move_test_images,
    random_movement,
)
from reproduction.study.cells import CELLS, add_cell, load_cells
from reproduction.study.measure import predict
from reproduction.study.study import Cell, Levels, Study
from teka.data import Split
from teka.files import make_directory
from teka.provenance import provenance
from teka.training.classifier import learning_rate_factor, make_optimizer

NUM_STEPS = 1200
SAVE_EVERY = 300


def train_cells(
    study: Study,
    folder: Path,
    *,
    data_dir: str | None,
    only: Levels,
    num_steps: int = NUM_STEPS,
    command: str = "",
) -> None:
    """Train the cells that are not finished, in the order of the study.

    A cell that another process trains is skipped. The same call resumes an interrupted one.

    Args:
        study: The study.
        folder: Folder of the results.
        data_dir: Folder with the files of the data sets.
        only: Levels of some factors, to train only their cells.
        num_steps: Number of steps of each cell.
        command: Command line that is saved with the results.
    """
    make_directory("out", folder)
    cells = study.cells(only)
    for number, cell in enumerate(cells, 1):
        lock = FileLock(folder / f"{cell.name}.lock", blocking=False)
        try:
            with lock:
                if cell.name not in load_cells(folder / CELLS):
                    result = train_cell(cell, folder, data_dir=data_dir, num_steps=num_steps)
                    add_cell(folder / CELLS, cell.name, {**result, **provenance(command)})
                    print(f"{number}/{len(cells)} {cell.name} {result['accuracy']:.4f}", flush=True)
                (folder / f"{cell.name}.pt").unlink(missing_ok=True)
        except Timeout:
            continue
        (folder / f"{cell.name}.lock").unlink(missing_ok=True)


def train_cell(cell: Cell, folder: Path, *, data_dir: str | None, num_steps: int) -> dict[str, Any]:
    """Train a model on its subset of the images, and measure its accuracy on both test sets."""
    run = cell.run
    dataset = load_on_canvas(run.data, run.image_size, data_dir)
    margin = (CANVAS - run.image_size) // 2
    num_images = run.train_size or len(dataset.train)
    train = dataset.train.take(balanced_subset(dataset.train.labels, num_images, run.seed))
    torch.manual_seed(run.seed)
    model = run.make_model(**dataset.sizes).train()
    orders = order_batches(num_images, num_steps, run.batch_size, run.seed)
    is_moving = cell.labels["training"] == "random shifts"

    def make_batch(step: int) -> tuple[Tensor, Tensor]:
        images, labels = train[orders[step]]
        if is_moving:
            generator = Generator().manual_seed(run.seed * 1_000_003 + step)
            images = random_movement(margin)(images, generator)
        return images, labels

    checkpoint = folder / f"{cell.name}.pt"
    is_resumed = checkpoint.is_file()
    start, process_start = time.perf_counter(), time.process_time()
    train_steps(
        model,
        [make_optimizer(model, run)],
        make_batch,
        num_steps=num_steps,
        rate_factor=lambda step: learning_rate_factor(step, run, num_steps),
        label_smoothing=run.label_smoothing,
        gradient_clip=run.gradient_clip,
        checkpoint=checkpoint,
        save_every=SAVE_EVERY,
    )
    seconds, process_seconds = time.perf_counter() - start, time.process_time() - process_start
    return {
        **cell.labels,
        "seed": run.seed,
        "num_images": num_images,
        "num_steps": num_steps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": None if is_resumed else round(seconds, 1),
        "process_seconds": None if is_resumed else round(process_seconds, 1),
        **measure(model.eval(), dataset.test, margin),
        "run": run.replace(data_dir=None).to_dict(),
    }


def order_batches(
    num_images: int, num_steps: int, batch_size: int, seed: int
) -> tuple[Tensor, ...]:
    """Return the indices of the images of every step: epoch after epoch, each in random order."""
    generator = Generator().manual_seed(seed)
    num_epochs = -(-num_steps * batch_size // num_images)
    epochs = [torch.randperm(num_images, generator=generator) for _ in range(num_epochs)]
    return torch.cat(epochs)[: num_steps * batch_size].split(batch_size)


def measure(model: nn.Module, test: Split, margin: int) -> dict[str, float]:
    """Return the accuracy on test images as published and moved, and the unchanged predictions."""
    predicted = predict(model, test.images).argmax(dim=1)
    moved = predict(model, move_test_images(test.images, margin)).argmax(dim=1)
    shares = {
        "accuracy": predicted == test.labels,
        "moved_accuracy": moved == test.labels,
        "consistency": predicted == moved,
    }
    return {name: is_true.double().mean().item() for name, is_true in shares.items()}
