"""Data loaders for training and evaluation, which also work in distributed training.

The order of training images depends only on the seed and the epoch, so that a resumed run sees the
same batches as an uninterrupted one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import joblib
import torch
from torch import Generator, Tensor
from torch.utils.data import BatchSampler, DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from teka.data import Split

MAX_NUM_WORKERS = 8


class MicroBatch(NamedTuple):
    """Indices of the images in one forward and backward pass, which is part of a training step.

    Attributes:
        indices: Indices of the images.
        weight: Factor for the mean loss of these images. Micro-batches may differ in size. With
            the factors, the mean over the micro-batches of a step is the mean over its images.
    """

    indices: list[int]
    weight: float


@dataclass(eq=False, kw_only=True)
class MicroBatchSampler(Sampler[MicroBatch]):
    """Sampler that shuffles the images and divides each batch into micro-batches.

    The order of the images depends only on the seed and the epoch, not on the number of processes
    or micro-batches. The last batch of an epoch may be smaller.

    Args:
        num_images: Number of images per epoch.
        batch_size: Number of images per optimizer step, over all processes.
        seed: Seed of the image order.
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
        """Set the epoch, which determines the image order. Lightning calls this method."""
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
class _MicroBatchDataset(TorchDataset[tuple[Tensor, Tensor, float]]):
    """Data set whose items are micro-batches: the images, the labels and the weight."""

    split: Split

    def __getitem__(self, micro_batch: MicroBatch) -> tuple[Tensor, Tensor, float]:
        return (*self.split[micro_batch.indices], micro_batch.weight)


def make_train_loader(split: Split, **options: int) -> DataLoader:
    """Create the data loader for training, which yields micro-batches of shuffled images.

    Each item is the images, labels and weight of a `MicroBatch`.

    Args:
        split: Training images and labels.
        options: Arguments of `MicroBatchSampler`, such as `batch_size` and `seed`.
    """
    sampler = MicroBatchSampler(num_images=len(split), **options)
    return DataLoader(
        _MicroBatchDataset(split), batch_size=None, sampler=sampler, **_make_worker_options(split)
    )


def make_evaluation_loader(
    split: Split, *, batch_size: int, rank: int = 0, world_size: int = 1
) -> DataLoader:
    """Create a data loader for evaluation, which does not shuffle the images.

    In distributed evaluation, each process reads every `world_size`-th image, starting at image
    `rank`.
    """
    sampler = BatchSampler(range(rank, len(split), world_size), batch_size, drop_last=False)
    return DataLoader(split, batch_size=None, sampler=sampler, **_make_worker_options(split))


def _make_worker_options(split: Split) -> dict[str, Any]:
    """Return `DataLoader` options: worker processes for picture files, none for a tensor.

    Reading and decoding files takes time, but images in memory need no workers.
    """
    if isinstance(split.images, Tensor):
        return {}
    # joblib counts only the cores that this process may use.
    num_workers = min(MAX_NUM_WORKERS, joblib.cpu_count())
    return {"num_workers": num_workers, "persistent_workers": True}
