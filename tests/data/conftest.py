import gzip
import hashlib
from pathlib import Path

import pytest
import torch
from torch import Tensor

from teka.data.idx_dataset import IdxDataset, IdxFiles
from teka.data.record_dataset import RecordDataset


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


class SyntheticRecords:
    """A data set as published in files of records, 3 for training and 1 for test, small enough for a test."""

    train_files, test_files = ("batch-1", "batch-2", "batch-3"), ("batch-test",)
    images_per_file, image_shape, num_classes = 5, (3, 7, 11), 4

    def __init__(self) -> None:
        self.train_images, self.train_labels = self._part(len(self.train_files), seed=0)
        self.test_images, self.test_labels = self._part(len(self.test_files), seed=1)
        images, labels = (
            torch.cat([self.train_images, self.test_images]),
            torch.cat([self.train_labels, self.test_labels]),
        )
        records = torch.cat([labels[:, None].to(torch.uint8), images.flatten(1)], dim=1)
        files = records.split(self.images_per_file)
        self.contents = {
            name: file.numpy().tobytes() for name, file in zip(self.train_files + self.test_files, files, strict=True)
        }

    def _part(self, num_files: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        num_images = num_files * self.images_per_file
        images = torch.randint(0, 256, (num_images, *self.image_shape), generator=generator, dtype=torch.uint8)
        return images, torch.randint(0, self.num_classes, (num_images,), generator=generator)

    def dataset(self) -> RecordDataset:
        return RecordDataset(
            name="synthetic",
            published_folder="synthetic-bin",
            train=self.train_files,
            test=self.test_files,
            images_per_file=self.images_per_file,
            image_shape=self.image_shape,
            num_classes=self.num_classes,
            remedy="Ask the author.",
        )

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in self.contents.items():
            (folder / file).write_bytes(content)
        return folder


@pytest.fixture
def synthetic_records() -> SyntheticRecords:
    return SyntheticRecords()


@pytest.fixture
def synthetic() -> SyntheticIdx:
    return SyntheticIdx()


@pytest.fixture
def to_idx():
    return idx_bytes
