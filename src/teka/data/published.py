"""Data sets as they are published: where their files are looked for, fetched from and checked, and what they hold."""

import gzip
import hashlib
import math
import shlex
import tarfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from teka.data.dataset import Levels
from teka.data.fetch import Fetcher, PublishedFile
from teka.errors import wrong_value
from teka.files import expand_user, make_directory, write_bytes
from teka.memory import check_memory

DATA_DIR = "data"
_UNSIGNED_BYTE = 0x08


@dataclass(frozen=True, kw_only=True)
class PublishedDataset(ABC):
    """A data set with files on the web; `remedy` tells the user how to get them without `teka download`."""

    name: str
    class_names: tuple[str, ...]
    remedy: str
    system_folder: Path | None = None

    endings: ClassVar[tuple[str, ...]] = (
        "",
    )  # what may follow a file's name; the first that is there is taken

    @property
    @abstractmethod
    def files(self) -> tuple[str, ...]:
        """Names of the files, those for training first."""

    def folders(self, data_dir: Path) -> list[Path]:
        """Where the files may lie, the folder that they are downloaded to first."""
        return [data_dir / self.name, data_dir]

    @abstractmethod
    def read_file(self, file: str, path: Path) -> UInt8[Tensor, "..."]:
        """What a file holds; a ValueError if it is not the published one, as far as that can be told."""

    @abstractmethod
    def read_files(self, paths: Mapping[str, Path]) -> tuple[Levels, Levels]:
        """Training and test images."""

    @abstractmethod
    def fetch(self, data_dir: Path, fetcher: Fetcher) -> None:
        """Put the files that are lacking into the first folder."""

    def read(self, data_dir: str | Path | None = None) -> tuple[Levels, Levels]:
        """Training and test images with levels 0 … 255, shapes (N, C, H, W), from the first folder that has all files.

        The ValueError, if none has, names every folder, what it lacks and what to do.
        """
        folders = [] if data_dir is None else self.folders(expand_user(data_dir))
        looked = []
        for folder in [*folders, *([] if self.system_folder is None else [self.system_folder])]:
            found = self._find(folder)
            absent = [file for file in self.files if file not in found]
            if not absent:
                return self.read_files(found)
            looked.append(f"{folder} (no {', no '.join(absent)})")
        places = "; looked in " + " and ".join(looked) if looked else ": no data_dir was given"
        target = shlex.quote(str(DATA_DIR if data_dir is None else data_dir))
        told = f" and give {target} as data_dir" if data_dir is None else ""
        advice = f"Run `teka download {self.name} --data-dir {target}`{told}. {self.remedy}"
        raise ValueError(f"the files of {self.name} were not found{places}. {advice}")

    def download(self, data_dir: Path, fetcher: Fetcher) -> Path:
        """The folder in `data_dir` that has all files whole; if none has, the first, into which they are fetched."""
        for folder in self.folders(data_dir):
            if not self.lacking(folder):
                return folder
            if len(self._find(folder)) == len(self.files):
                break  # damaged, but it would be read before a later one
        self.fetch(data_dir, fetcher)
        return self.folders(data_dir)[0]

    def lacking(self, folder: Path) -> list[str]:
        """The files that are not in a folder, or are damaged as they would be read."""
        found, lacking = self._find(folder), []
        for file in self.files:
            try:
                self.read_file(file, found[file])
            except (KeyError, ValueError):
                lacking.append(file)
        return lacking

    def _find(self, folder: Path) -> dict[str, Path]:
        paths = [
            (file, folder / f"{file}{ending}")
            for file in self.files
            for ending in reversed(self.endings)
        ]
        return {file: path for file, path in paths if path.is_file()}


@dataclass(frozen=True, kw_only=True)
class IdxDataset(PublishedDataset):
    """Grey images published as four IDX files: images and labels for training, images and labels for test."""

    hashes: Mapping[str, str]
    sizes: Mapping[str, int]  # of the unpacked files, in bytes
    addresses: tuple[str, ...] = ()

    endings = ("", ".gz")

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(self.hashes)

    def read_file(self, file: str, path: Path) -> UInt8[Tensor, "..."]:
        num_axes = 3 if file in self.files[::2] else 1
        return read_idx(
            path, num_axes=num_axes, sha256=self.hashes[file], num_bytes=self.sizes[file]
        )

    def read_files(self, paths: Mapping[str, Path]) -> tuple[Levels, Levels]:
        parts = []
        for images_file, labels_file in (self.files[:2], self.files[2:]):
            images, labels = (
                self.read_file(file, paths[file]) for file in (images_file, labels_file)
            )
            if len(images) != len(labels):
                raise ValueError(
                    f"{paths[images_file]} has {len(images)} images, but {paths[labels_file]} has {len(labels)} labels"
                )
            parts.append(Levels(images[:, None], labels.to(torch.int64)))
        return parts[0], parts[1]

    def fetch(self, data_dir: Path, fetcher: Fetcher) -> None:
        folder = self.folders(data_dir)[0]
        for file in self.lacking(folder):
            addresses = tuple(f"{address}{file}.gz" for address in self.addresses)
            fetcher.fetch(
                PublishedFile(
                    file, addresses, f"sha256:{self.hashes[file]}", max_bytes=self.sizes[file]
                ),
                folder,
            )


def read_idx(
    path: Path, *, num_axes: int, sha256: str | None = None, num_bytes: int | None = None
) -> UInt8[Tensor, "..."]:
    """Read an IDX file of unsigned bytes, packed by gzip or not (its content tells, not its name).

    The file is two zero bytes, the type of the values (8: unsigned byte), the number of axes n, then n sizes, each a
    big-endian 32-bit number, then the values. The hash and the size, if they are given, are those of the *unpacked*
    content. No more is unpacked than the header says.

    Source: Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits, "File formats".
    """
    start = 4 + 4 * num_axes
    try:
        with _open_unpacked(path) as file:
            content = bytearray(file.read(start))
            sizes = _check_header(path, content, num_axes)
            expected = start + math.prod(sizes)
            if num_bytes not in (None, expected):
                raise ValueError(
                    f"{path} is not the published file: it unpacks to {expected:,} bytes, expected {num_bytes:,}"
                )
            check_memory(f"the size of {path}", f"{expected:,} bytes", expected, "images")
            content += file.read(expected + 1 - start)  # one byte more than there should be
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is truncated or damaged gzip data: {error}") from error
    if len(content) != expected:
        more = "at least " if len(content) > expected else ""
        raise ValueError(
            f"{path} is {_state(len(content), expected)}: it unpacks to {more}{len(content)} bytes, "
            f"expected {expected} for the sizes {tuple(sizes)}"
        )
    found = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, found):
        raise ValueError(
            f"{path} is not the published file: the SHA-256 of its unpacked content is {found}, expected {sha256}"
        )
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=start).reshape(sizes))


def _open_unpacked(path: Path) -> gzip.GzipFile | BufferedReader:
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    return gzip.GzipFile(path) if is_packed else path.open("rb")


def _check_header(path: Path, header: bytes | bytearray, num_axes: int) -> list[int]:
    """Return the sizes that the first bytes of an IDX file name."""
    magic = bytes([0, 0, _UNSIGNED_BYTE, num_axes])
    start = len(magic) + 4 * num_axes
    if header[: len(magic)] != magic:
        found = header[: len(magic)].hex() or "nothing"
        raise ValueError(f"{path} starts with {found}, expected the IDX magic number {magic.hex()}")
    if len(header) < start:
        raise ValueError(
            f"{path} is truncated: it unpacks to {len(header)} bytes, expected a header of {start}"
        )
    return [
        int.from_bytes(header[place : place + 4], "big") for place in range(len(magic), start, 4)
    ]


def _state(size: int, expected: int) -> str:
    return "truncated" if size < expected else "too long"


@dataclass(frozen=True, kw_only=True)
class RecordDataset(PublishedDataset):
    """Images published as binary files of records, in an archive that unpacks to `published_folder`.

    A record is one byte, the label, then C · H · W bytes, the levels: channel by channel, each row by row. Sizes and
    the range of labels are checked, no hash: a level that was changed goes unseen.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    images_per_file: int
    image_shape: tuple[int, int, int]
    archive: PublishedFile
    published_folder: str

    @property
    def files(self) -> tuple[str, ...]:
        return self.train + self.test

    def folders(self, data_dir: Path) -> list[Path]:
        return [data_dir / self.published_folder, *super().folders(data_dir)]

    @property
    def file_size(self) -> int:
        """Bytes of every file."""
        return self.images_per_file * (1 + math.prod(self.image_shape))

    def read_file(self, file: str, path: Path) -> UInt8[Tensor, "images bytes"]:
        size, expected = path.stat().st_size, self.file_size
        if size != expected:
            raise ValueError(
                f"{path} is {_state(size, expected)}: it has {size} bytes, expected {expected} for "
                f"{self.images_per_file} images of one label byte and {' × '.join(map(str, self.image_shape))} levels; "
                f"`teka download {self.name}` replaces it"
            )
        records = torch.from_numpy(np.fromfile(path, dtype=np.uint8)).view(self.images_per_file, -1)
        outside = records[:, 0] >= len(self.class_names)
        if outside.any():
            index = int(outside.int().argmax())
            raise ValueError(
                f"{path} is not the published file: the label of its image {index} is {records[index, 0]}, "
                f"expected a class from 0 to {len(self.class_names) - 1}"
            )
        return records

    def read_files(self, paths: Mapping[str, Path]) -> tuple[Levels, Levels]:
        parts = []
        for files in (self.train, self.test):
            labels, levels = torch.cat(
                [self.read_file(file, paths[file]) for file in files]
            ).tensor_split([1], dim=1)
            parts.append(
                Levels(
                    levels.unflatten(1, self.image_shape).contiguous(), labels[:, 0].to(torch.int64)
                )
            )
        return parts[0], parts[1]

    def fetch(self, data_dir: Path, fetcher: Fetcher) -> None:
        """Fetch the archive and take its files out; it is removed again, unless it was there before."""
        kept = (data_dir / self.archive.name).is_file()
        archive = fetcher.fetch(self.archive, data_dir)
        folder = make_directory("data_dir", data_dir / self.published_folder)
        with tarfile.open(archive) as tar:
            for file in self.files:  # by their whole names: no path in the archive decides on one
                content = tar.extractfile(f"{self.published_folder}/{file}")
                assert content is not None
                levels = content.read(self.file_size + 1)
                if len(levels) != self.file_size:
                    raise wrong_value(
                        f"the size of {file} in {archive}", len(levels), f"{self.file_size} bytes"
                    )
                write_bytes(folder / file, levels)
        if not kept:
            archive.unlink()
