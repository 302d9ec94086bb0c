"""Data sets published as binary files of records of one size: a label byte, then the levels of one image."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from teka.data.archive import take_files
from teka.data.fetch import Fetcher, PublishedFile
from teka.data.find_files import download_advice, find_files
from teka.data.levels import Levels
from teka.files import make_directory


@dataclass(frozen=True)
class RecordDataset:
    """A data set of colour images published as binary files of records.

    A record is one byte, the label, then C · H · W bytes, the levels: channel by channel, each row by row. A file has
    nothing else, so that its size is known: images_per_file · (1 + C · H · W) bytes.

    Args:
        name: Its name, also that of a folder that its files may lie in.
        published_folder: The folder that the published archive unpacks to.
        train: Names of the files of the training part, in their order.
        test: Names of the files of the test part, in their order.
        images_per_file: Number of records in each file.
        image_shape: (C, H, W) of an image.
        num_classes: Number of classes; labels are 0 … num_classes − 1.
        remedy: How to get the files without `teka download`, as an instruction to the user.
        archive: The published archive; it holds the files in `published_folder`.
    """

    name: str
    published_folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    images_per_file: int
    image_shape: tuple[int, int, int]
    num_classes: int
    remedy: str
    archive: PublishedFile

    def read(self, data_dir: str | Path | None = None) -> tuple[Levels, Levels]:
        """Training and test images with levels 0 … 255, shapes (N, C, H, W), from the first folder that has all files.

        Looked at in this order: `data_dir/<published_folder>`, `data_dir/<name>`, `data_dir` itself. The size of every
        file and the range of every label are checked, no hash: a level that was changed goes unseen.

        Raises:
            ValueError: No folder has all files (the message names every folder and what to do), a file has another
                size than its records take, or a label is not a class.
            OSError: A file cannot be opened or read.
        """
        folders = [] if data_dir is None else self._folders(Path(data_dir).expanduser())
        remedy = f"{download_advice(self.name, data_dir)} {self.remedy}"
        paths = find_files(self.name, folders, [*self.train, *self.test], remedy=remedy)
        train, test = ([paths[file] for file in part] for part in (self.train, self.test))
        return self._read_part(train), self._read_part(test)

    def download(self, data_dir: Path, fetcher: Fetcher) -> Path:
        """The folder in `data_dir` that has all files; if there is none, the archive is fetched and unpacked.

        The archive is removed again, unless it was there before.

        Raises:
            ImportError: The archive is to be fetched, and pooch is not installed.
            ValueError: The archive lacks a file, or has one of another size than its records take.
            ConnectionError: No address gave the archive.
        """
        for folder in self._folders(data_dir):
            paths = [folder / file for file in (*self.train, *self.test)]
            if all(map(self._is_whole, paths)):
                return folder
            if all(path.is_file() for path in paths):
                break  # damaged, but it would be read before a later one
        kept = (data_dir / self.archive.name).is_file()
        archive = fetcher.fetch(self.archive, data_dir)
        folder = make_directory("data_dir", data_dir / self.published_folder)
        places = {f"{self.published_folder}/{file}": folder / file for file in (*self.train, *self.test)}
        take_files(archive, places, num_bytes=self._file_size)
        if not kept:
            archive.unlink()
        return folder

    def _folders(self, data_dir: Path) -> list[Path]:
        return [data_dir / self.published_folder, data_dir / self.name, data_dir]

    @property
    def _record_size(self) -> int:
        return 1 + math.prod(self.image_shape)

    @property
    def _file_size(self) -> int:
        return self.images_per_file * self._record_size

    def _is_whole(self, path: Path) -> bool:
        try:
            self._read_records(path)
        except (ValueError, FileNotFoundError):
            return False
        return True

    def _read_part(self, paths: list[Path]) -> Levels:
        num_images = len(paths) * self.images_per_file
        images = torch.empty(num_images, *self.image_shape, dtype=torch.uint8)
        labels = torch.empty(num_images, dtype=torch.int64)
        for path, some_images, some_labels in zip(
            paths, images.split(self.images_per_file), labels.split(self.images_per_file), strict=True
        ):
            records = self._read_records(path)
            some_labels.copy_(records[:, 0])
            some_images.copy_(records[:, 1:].unflatten(1, self.image_shape))
        return Levels(images, labels, highest=255)

    def _read_records(self, path: Path) -> UInt8[Tensor, "images bytes"]:
        size, expected = path.stat().st_size, self._file_size
        if size != expected:
            state = "truncated" if size < expected else "too long"
            raise ValueError(
                f"{path} is {state}: it has {size} bytes, expected {expected} for {self.images_per_file} images of one "
                f"label byte and {' × '.join(map(str, self.image_shape))} levels; "
                f"`teka download {self.name}` replaces it"
            )
        records = torch.from_numpy(np.fromfile(path, dtype=np.uint8)).view(-1, self._record_size)
        outside = records[:, 0] >= self.num_classes
        if outside.any():
            index = int(outside.int().argmax())
            raise ValueError(
                f"{path} is not the published file: the label of its image {index} is {records[index, 0]}, "
                f"expected a class from 0 to {self.num_classes - 1}"
            )
        return records
