"""Data sets published as four IDX files: where they are looked for, and how they are checked."""

from dataclasses import dataclass
from pathlib import Path

import torch

from teka.data.find_files import find_files
from teka.data.idx import read_idx
from teka.data.levels import Levels


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
        remedy: What to do when the files are missing, as an instruction to the user.
        system_folder: Where a system package puts the files, if one exists.
    """

    name: str
    train: IdxFiles
    test: IdxFiles
    num_classes: int
    remedy: str
    system_folder: Path | None = None

    def read(self, data_dir: str | Path | None = None) -> tuple[Levels, Levels]:
        """Training and test images with levels 0 … 255, shapes (N, 1, H, W), from the first folder that has all files.

        Looked at in this order: `data_dir/<name>`, `data_dir` itself, the system's folder. A file may be packed
        (`.gz`) or not; of the two, the packed one is read.

        Raises:
            ValueError: No folder has all four files (the message names every folder and what to do), or a file is
                damaged or is not the published one.
        """
        paths = self._find(data_dir)
        return _read_part(paths, self.train), _read_part(paths, self.test)

    def _find(self, data_dir: str | Path | None) -> dict[str, Path]:
        folders = []
        if data_dir is not None:
            given = Path(data_dir).expanduser()
            folders += [given / self.name, given]
        if self.system_folder is not None:
            folders.append(self.system_folder)
        files = [self.train.images, self.train.labels, self.test.images, self.test.labels]
        # The packed one of two is the later of the endings.
        return find_files(self.name, folders, files, remedy=self.remedy, endings=("", ".gz"))


def _read_part(paths: dict[str, Path], files: IdxFiles) -> Levels:
    images = read_idx(paths[files.images], num_axes=3, sha256=files.images_sha256)
    labels = read_idx(paths[files.labels], num_axes=1, sha256=files.labels_sha256)
    if len(images) != len(labels):
        raise ValueError(
            f"{paths[files.images]} has {len(images)} images, but {paths[files.labels]} has {len(labels)} labels"
        )
    return Levels(images[:, None], labels.to(torch.int64), highest=255)
