"""Batches of a split, in an order that only the seed and the epoch decide."""

from collections.abc import Iterator

import torch
from torch import Generator
from torch.utils.data import DataLoader, Sampler, TensorDataset

from teka.data import Split


class ShuffledByEpoch(Sampler[int]):
    """A new order of the images every epoch, from a generator seeded with (seed, epoch).

    Args:
        num_images: Number of images.
        seed: The run's seed.
    """

    def __init__(self, num_images: int, seed: int) -> None:
        self.num_images = num_images
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch; Lightning calls it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        return iter(torch.randperm(self.num_images, generator=generator).tolist())

    def __len__(self) -> int:
        return self.num_images


def train_batches(split: Split, *, batch_size: int, seed: int) -> DataLoader:
    """Shuffled batches of every image of the split; the last may be smaller."""
    sampler = ShuffledByEpoch(len(split), seed)
    return DataLoader(TensorDataset(split.images, split.labels), batch_size=batch_size, sampler=sampler)


def batches(split: Split, *, batch_size: int) -> DataLoader:
    """Batches of every image of the split, in order."""
    return DataLoader(TensorDataset(split.images, split.labels), batch_size=batch_size)
