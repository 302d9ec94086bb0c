"""Batches of images in an order that depends only on the seed and the epoch."""

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
    """Some images of one step.

    Attributes:
        indices: Indices of the images.
        weight: Weight of the mean loss of these images. With it, the mean over all parts of a step
            is the mean over its images.
    """

    indices: list[int]
    weight: float


class TrainBatch(NamedTuple):
    """Images (B, C, H, W) of a part, their classes (B,), and the weight of the part."""

    images: Tensor
    labels: Tensor
    weight: float


class Parts(Sampler[Part]):
    """Sampler of the images of every step, in a random order that depends on seed and epoch.

    The images of a step are divided into parts: each process has `accumulate` parts. Part p of P
    has every P-th image of the step, starting with image p. The last step of an epoch may be
    smaller.
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
        """Set the epoch. Lightning calls this method."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Part]:
        generator = Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.num_images, generator=generator).tolist()
        for start in range(0, self.num_images, self.batch_size):
            step = order[start : start + self.batch_size]
            for turn in range(self.accumulate):
                indices = step[turn * self.world_size + self.rank :: self.num_parts]
                # All processes need the same number of steps. A part without images gets the first
                # image of the step with weight 0.
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
    """Lightning data module with the training and validation images of a run."""

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
