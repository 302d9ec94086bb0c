"""Data sets published as four IDX files: where they are looked for, fetched from, and how they are checked."""

from dataclasses import dataclass
from pathlib import Path

import torch

from teka.data.fetch import Fetcher, PublishedFile
from teka.data.find_files import download_advice, find_files
from teka.data.idx import has_content, read_idx
from teka.data.levels import Levels

_ENDINGS = (".gz", "")  # the last that is there is taken


@dataclass(frozen=True)
class IdxFiles:
    """Images and labels of one part of a data set: names and hashes of two IDX files.

    Args:
        images: File name of the images, without `.gz`.
        images_sha256: Hash of their unpacked content.
        labels: File name of the labels, without `.gz`.
        labels_sha256: Hash of their unpacked content.
    """

    images: str
    images_sha256: str
    labels: str
    labels_sha256: str


@dataclass(frozen=True)
class IdxDataset:
    """A data set of grey images published as four IDX files.

    Args:
        name: Its name, also that of its folder.
        train: Files of the training part.
        test: Files of the test part.
        num_classes: Number of classes.
        remedy: How to get the files without `teka download`, as an instruction to the user.
        addresses: Web folders, each with a trailing slash, that have the four files packed by gzip (`.gz`); tried in
            this order.
        system_folder: Where a system package puts the files, if one exists.
    """

    name: str
    train: IdxFiles
    test: IdxFiles
    num_classes: int
    remedy: str
    addresses: tuple[str, ...] = ()
    system_folder: Path | None = None

    def read(self, data_dir: str | Path | None = None) -> tuple[Levels, Levels]:
        """Training and test images with levels 0 … 255, shapes (N, 1, H, W), from the first folder that has all files.

        Looked at in this order: `data_dir/<name>`, `data_dir` itself, the system's folder. A file may be packed
        (`.gz`) or not; of the two, the one that is not is read.

        Raises:
            ValueError: No folder has all four files (the message names every folder and what to do), or a file is
                damaged or is not the published one.
        """
        folders = [] if data_dir is None else self._folders(Path(data_dir).expanduser())
        if self.system_folder is not None:
            folders.append(self.system_folder)
        remedy = f"{download_advice(self.name, data_dir)} {self.remedy}"
        paths = find_files(self.name, folders, list(self._hashes()), remedy=remedy, endings=_ENDINGS)
        return _read_part(paths, self.train), _read_part(paths, self.test)

    def download(self, data_dir: Path, fetcher: Fetcher) -> Path:
        """The folder in `data_dir` that has all four files whole; what `data_dir/<name>` lacks of them is fetched.

        Raises:
            ImportError: Something is to be fetched, and pooch is not installed.
            ConnectionError: No address gave a file.
        """
        folders = self._folders(data_dir)
        for folder in folders:
            if not self._lacking(folder):
                return folder
            if all(_find(folder, file) for file in self._hashes()):
                break  # damaged, but it would be read before a later one
        for file in self._lacking(folders[0]):
            addresses = tuple(f"{address}{file}.gz" for address in self.addresses)
            fetcher.fetch(PublishedFile(file, addresses, f"sha256:{self._hashes()[file]}"), folders[0])
        return folders[0]

    def _folders(self, data_dir: Path) -> list[Path]:
        return [data_dir / self.name, data_dir]

    def _hashes(self) -> dict[str, str]:
        return {
            self.train.images: self.train.images_sha256,
            self.train.labels: self.train.labels_sha256,
            self.test.images: self.test.images_sha256,
            self.test.labels: self.test.labels_sha256,
        }

    def _lacking(self, folder: Path) -> list[str]:
        """The files that are not in a folder, or are damaged as they would be read."""
        return [file for file, sha256 in self._hashes().items() if not _is_whole(folder, file, sha256)]


def _is_whole(folder: Path, file: str, sha256: str) -> bool:
    path = _find(folder, file)
    return path is not None and has_content(path, sha256)


def _find(folder: Path, file: str) -> Path | None:
    places = (folder / f"{file}{ending}" for ending in reversed(_ENDINGS))
    return next((path for path in places if path.is_file()), None)


def _read_part(paths: dict[str, Path], files: IdxFiles) -> Levels:
    images = read_idx(paths[files.images], num_axes=3, sha256=files.images_sha256)
    labels = read_idx(paths[files.labels], num_axes=1, sha256=files.labels_sha256)
    if len(images) != len(labels):
        raise ValueError(
            f"{paths[files.images]} has {len(images)} images, but {paths[files.labels]} has {len(labels)} labels"
        )
    return Levels(images[:, None], labels.to(torch.int64), highest=255)
