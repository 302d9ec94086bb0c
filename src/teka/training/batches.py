"""Batches of images in an order that depends only on the seed and the epoch."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils.data import BatchSampler, DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from teka.data import Split

MAX_NUM_WORKERS = 8


class MicroBatch(NamedTuple):
    """Part of the images of an optimizer step, whose gradient is computed in one pass.

    Attributes:
        indices: Indices of the images.
        weight: Weight of the mean loss over these images. Micro-batches of a step may differ in
            size. The weights make the mean over micro-batches equal to the mean over images.
    """

    indices: list[int]
    weight: float


class TrainBatch(NamedTuple):
    """Images (B, C, H, W) of a micro-batch, their class indices (B,), and the loss weight."""

    images: Tensor
    labels: Tensor
    weight: float


@dataclass(eq=False, kw_only=True)
class MicroBatchSampler(Sampler[MicroBatch]):
    """Sampler that shuffles the images and divides each optimizer step into micro-batches.

    The order of the images depends only on the seed and the epoch. It does not depend on the number
    of processes or of micro-batches. The last step of an epoch may have fewer images.

    Args:
        num_images: Number of images of an epoch.
        batch_size: Number of images of a step, in all processes together.
        seed: Seed of the order.
        accumulate: Number of micro-batches per step in each process.
        rank: Rank of this process.
        world_size: Number of processes.
    """

    num_images: int
    batch_size: int
    seed: int
    accumulate: int = 1
    rank: int = 0
    world_size: int = 1
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. Lightning calls this method."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[MicroBatch]:
        generator = Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.num_images, generator=generator).tolist()
        num_micro_batches = self.accumulate * self.world_size
        for start in range(0, self.num_images, self.batch_size):
            step = order[start : start + self.batch_size]
            for index in range(self.accumulate):
                indices = step[index * self.world_size + self.rank :: num_micro_batches]
                weight = len(indices) * num_micro_batches / len(step)
                # All processes need the same number of micro-batches. An empty one contains the
                # first image of the step with weight 0.
                yield MicroBatch(indices or step[:1], weight)

    def __len__(self) -> int:
        return self.accumulate * -(-self.num_images // self.batch_size)


@dataclass
class _MicroBatchDataset(TorchDataset[TrainBatch]):
    """Data set that is indexed by micro-batches."""

    split: Split

    def __getitem__(self, micro_batch: MicroBatch) -> TrainBatch:
        images, labels = self.split[micro_batch.indices]
        return TrainBatch(images, labels, micro_batch.weight)


def make_train_loader(split: Split, **options: int) -> DataLoader:
    """Return a data loader of shuffled micro-batches of the training images.

    Args:
        split: The training images and their labels.
        options: Arguments of `MicroBatchSampler`, such as `batch_size` and `seed`.
    """
    sampler = MicroBatchSampler(num_images=len(split), **options)
    return DataLoader(
        _MicroBatchDataset(split), batch_size=None, sampler=sampler, **_loader_options(split)
    )


def make_evaluation_loader(
    split: Split, *, batch_size: int, rank: int = 0, world_size: int = 1
) -> DataLoader:
    """Return a data loader for evaluation, which does not shuffle the images.

    If there are several processes, process `rank` reads every `world_size`-th image.
    """
    sampler = BatchSampler(range(rank, len(split), world_size), batch_size, drop_last=False)
    return DataLoader(split, batch_size=None, sampler=sampler, **_loader_options(split))


def _loader_options(split: Split) -> dict[str, Any]:
    """Return the options of `DataLoader` with which worker processes read picture files."""
    if isinstance(split.images, Tensor):
        return {}
    return {"num_workers": min(MAX_NUM_WORKERS, os.cpu_count() or 1), "persistent_workers": True}
