import gzip
import hashlib
from pathlib import Path

import pytest
import torch
from torch import Tensor

from teka.data.idx_dataset import IdxDataset, IdxFiles


def idx_bytes(values: Tensor) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(side.to_bytes(4, "big") for side in values.shape)
    return header + values.to(torch.uint8).numpy().tobytes()


class SyntheticIdx:
    """A data set as published in four IDX files, small enough for a test."""

    num_classes, height, width = 3, 7, 11

    def __init__(self) -> None:
        self.train_images, self.train_labels = self._part(23, seed=0)
        self.test_images, self.test_labels = self._part(5, seed=1)
        self.contents = {
            "train-images": idx_bytes(self.train_images),
            "train-labels": idx_bytes(self.train_labels),
            "test-images": idx_bytes(self.test_images),
            "test-labels": idx_bytes(self.test_labels),
        }

    def _part(self, num_images: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        size = (num_images, self.height, self.width)
        images = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
        # The first pixel tells which image it is.
        images[:, 0, 0] = torch.arange(num_images)
        return images, torch.arange(num_images) % self.num_classes

    def dataset(self, system_folder: Path | None = None) -> IdxDataset:
        hashes = {file: hashlib.sha256(content).hexdigest() for file, content in self.contents.items()}
        return IdxDataset(
            name="synthetic",
            train=IdxFiles("train-images", hashes["train-images"], "train-labels", hashes["train-labels"]),
            test=IdxFiles("test-images", hashes["test-images"], "test-labels", hashes["test-labels"]),
            num_classes=self.num_classes,
            remedy="Ask the author.",
            system_folder=system_folder,
        )

    def write(self, folder: Path, *, packed: bool = True) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in self.contents.items():
            (folder / f"{file}{'.gz' if packed else ''}").write_bytes(gzip.compress(content) if packed else content)
        return folder


@pytest.fixture
def synthetic() -> SyntheticIdx:
    return SyntheticIdx()


@pytest.fixture
def to_idx():
    return idx_bytes
