"""Former defects of training. Every test also fails on a faulty version, see `test_regressions`."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from teka.data import Split, load
from teka.nn import RandomFeatures
from teka.training import Run
from teka.training.batches import make_evaluation_loader, make_train_loader
from teka.training.classifier import Classifier


class OffByOneClassifier(Classifier):
    """A faulty version that counts the step that is about to begin."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        trainer: Any = self.trainer
        trainer.global_step += 1
        super().on_train_batch_start(batch, batch_idx)


@pytest.mark.parametrize(("kind", "is_correct"), [(Classifier, True), (OffByOneClassifier, False)])
def test_projections_are_redrawn_on_schedule(kind: type[Classifier], is_correct: bool):
    run = Run.from_fields(dim=8, depth=1, heads=2, redraw_every=3)
    features = RandomFeatures("positive", 5)
    classifier = kind(nn.Sequential(features), run, load("digits"))
    trainer: Any = SimpleNamespace(global_rank=0, accumulate_grad_batches=1, world_size=1)
    classifier._trainer = trainer
    draws = []
    for step in range(10):
        trainer.global_step = step
        classifier.on_train_batch_start((torch.zeros(1), torch.zeros(1), 1.0), step)
        draws.append(int(features.num_draws))
    assert (draws == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]) == is_correct


def split(num_images: int) -> Split:
    return Split(torch.zeros(num_images, 1, 2, 3), torch.arange(num_images))


def labels(loader: DataLoader) -> list[int]:
    return torch.cat([label for _, label, *_ in loader]).tolist()


def without_the_last_batch(split: Split, *, batch_size: int) -> DataLoader:
    """A faulty version of `make_evaluation_loader` without the last, incomplete batch."""
    return DataLoader(
        TensorDataset(split.images, split.labels), batch_size=batch_size, drop_last=True
    )


@pytest.mark.parametrize(
    ("make", "is_correct"), [(make_evaluation_loader, True), (without_the_last_batch, False)]
)
def test_every_test_image_is_evaluated(make: Callable[..., DataLoader], is_correct: bool):
    assert (labels(make(split(11), batch_size=4)) == list(range(11))) == is_correct


def shuffled_without_seed(split: Split, *, batch_size: int, seed: int) -> DataLoader:
    """A faulty version of `make_train_loader` that ignores the seed."""
    return DataLoader(
        TensorDataset(split.images, split.labels), batch_size=batch_size, shuffle=True
    )


@pytest.mark.parametrize(
    ("make", "is_correct"), [(make_train_loader, True), (shuffled_without_seed, False)]
)
def test_image_order_depends_only_on_the_seed(make: Callable[..., DataLoader], is_correct: bool):
    orders = []
    for seed, global_seed in ((3, 0), (3, 1), (4, 0)):
        torch.manual_seed(global_seed)
        orders.append(labels(make(split(37), batch_size=8, seed=seed)))
    assert (orders[0] == orders[1] and orders[0] != orders[2]) == is_correct
