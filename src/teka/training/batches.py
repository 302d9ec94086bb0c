"""Batches of a split, in an order that only the seed and the epoch decide, whatever they are divided among."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from teka.data import Split
from teka.errors import wrong_value


class Part(NamedTuple):
    """Some images of one step.

    Args:
        indices: Which images.
        weight: What their mean loss counts for, so that the mean over all parts of a step is the mean over its images.
    """

    indices: list[int]
    weight: float


class TrainBatch(NamedTuple):
    """What a part becomes.

    Args:
        images: Its images, shape (B, C, H, W).
        labels: Their classes, shape (B,).
        weight: As of the part.
    """

    images: Tensor
    labels: Tensor
    weight: float


class Parts(Sampler[Part]):
    """The images of every step, in a new order every epoch, divided into parts.

    The order is that of a generator seeded with (seed, epoch). A step takes the next `batch_size` images of it, the
    last step of an epoch what is left, and part p of P of a step every P-th of its images from the p-th on. A process
    goes through its parts of a step one after another; what all parts of all processes amount to is the same for any
    number of them.

    Args:
        num_images: Number of images.
        batch_size: Images a step.
        seed: The run's seed.
        accumulate: Parts of a step that one process goes through.
        rank: Which process this is.
        world_size: Number of processes.

    Raises:
        ValueError: More parts than images in a step.
    """

    def __init__(
        self, num_images: int, *, batch_size: int, seed: int, accumulate: int = 1, rank: int = 0, world_size: int = 1
    ) -> None:
        self.num_parts = accumulate * world_size
        if self.num_parts > batch_size:
            expected = f"at most batch_size = {batch_size}, the images of a step"
            raise wrong_value("accumulate × processes", self.num_parts, expected)
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


class _ImagesOfParts(Dataset[TrainBatch]):
    """The images of a part, taken at once."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __getitem__(self, part: Part) -> TrainBatch:
        return TrainBatch(self.split.images[part.indices], self.split.labels[part.indices], part.weight)


def train_batches(
    split: Split, *, batch_size: int, seed: int, accumulate: int = 1, rank: int = 0, world_size: int = 1
) -> DataLoader:
    """Shuffled batches of every image of the split, with what their mean loss counts for; the last may be smaller.

    Args:
        split: The images.
        batch_size: Images a step.
        seed: The run's seed.
        accumulate: Parts of a step that one process goes through.
        rank: Which process this is.
        world_size: Number of processes.

    Raises:
        ValueError: More parts than images in a step.
    """
    parts = Parts(len(split), batch_size=batch_size, seed=seed, accumulate=accumulate, rank=rank, world_size=world_size)
    return DataLoader(_ImagesOfParts(split), batch_size=None, sampler=parts)


def batches(split: Split, *, batch_size: int, rank: int = 0, world_size: int = 1) -> DataLoader:
    """Batches of every image of the split, in order; of several processes each takes its share.

    Args:
        split: The images.
        batch_size: Images at a time.
        rank: Which process this is.
        world_size: Number of processes.
    """
    images, labels = split.images[rank::world_size], split.labels[rank::world_size]
    return DataLoader(TensorDataset(images, labels), batch_size=batch_size)
