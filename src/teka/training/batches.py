"""Batches of a split, in an order that only the seed and the epoch decide, whatever they are divided among."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningDataModule
from torch import Generator, Tensor
from torch.utils.data import BatchSampler, DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from teka.data import Dataset, Split
from teka.training.execution import Execution
from teka.training.run import Run

MAX_NUM_WORKERS = 8


class Part(NamedTuple):
    """Some images of one step."""

    indices: list[int]
    weight: float  # of their mean loss, so that the mean over all parts of a step is the mean over its images


class TrainBatch(NamedTuple):
    """What a part becomes: images (B, C, H, W), their classes (B,), and the part's weight."""

    images: Tensor
    labels: Tensor
    weight: float


class Parts(Sampler[Part]):
    """The images of every step, in a new order every epoch drawn with (seed, epoch), divided into parts.

    Part p of P takes every P-th image of a step from the p-th on; the last step of an epoch has what is left.
    """

    def __init__(
        self,
        num_images: int,
        *,
        batch_size: int,
        seed: int,
        accumulate: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.num_parts = accumulate * world_size
        self.num_images, self.batch_size, self.seed = num_images, batch_size, seed
        self.accumulate, self.rank, self.world_size = accumulate, rank, world_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch; Lightning calls it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Part]:
        generator = Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.num_images, generator=generator).tolist()
        for start in range(0, self.num_images, self.batch_size):
            step = order[start : start + self.batch_size]
            for turn in range(self.accumulate):
                indices = step[turn * self.world_size + self.rank :: self.num_parts]
                # Processes must take equally many steps: one without an image takes another's, and counts it for 0.
                yield Part(indices or step[:1], len(indices) * self.num_parts / len(step))

    def __len__(self) -> int:
        return self.accumulate * -(-self.num_images // self.batch_size)


@dataclass
class _TrainingParts(TorchDataset[TrainBatch]):
    """The images of a part, read together."""

    split: Split

    def __getitem__(self, part: Part) -> TrainBatch:
        images, labels = self.split[part.indices]
        return TrainBatch(images, labels, part.weight)


def train_batches(split: Split, **options: int) -> DataLoader:
    """Return shuffled batches of all images of a split, with the options of `Parts`."""
    sampler = Parts(len(split), **options)
    dataset = _TrainingParts(split)
    return DataLoader(dataset, batch_size=None, sampler=sampler, **_workers(split))


def batches(split: Split, *, batch_size: int, rank: int = 0, world_size: int = 1) -> DataLoader:
    """Return batches of all images of a split, in order. Each process gets its share."""
    indices = range(rank, len(split), world_size)
    sampler = BatchSampler(indices, batch_size, drop_last=False)
    return DataLoader(split, batch_size=None, sampler=sampler, **_workers(split))


def _workers(split: Split) -> dict[str, Any]:
    """Return options with which picture files are read by other processes."""
    if isinstance(split.images, Tensor):
        return {}
    return {"num_workers": min(MAX_NUM_WORKERS, os.cpu_count() or 1), "persistent_workers": True}


class BatchSource(LightningDataModule):
    """Training and held-out images for Lightning's Trainer, made where it is known which process of how many it is."""

    def __init__(self, dataset: Dataset, run: Run, execution: Execution) -> None:
        super().__init__()
        self.dataset, self.run, self.execution = dataset, run, execution

    def _ranks(self) -> dict[str, int]:
        return (
            {}
            if self.trainer is None
            else {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
        )

    def train_dataloader(self) -> DataLoader:
        options = {"seed": self.run.seed, "accumulate": self.execution.accumulate, **self._ranks()}
        return train_batches(self.dataset.train, batch_size=self.run.batch_size, **options)

    def val_dataloader(self) -> DataLoader | list:
        if not len(self.dataset.validation):
            return []
        return batches(self.dataset.validation, batch_size=self.run.batch_size, **self._ranks())
