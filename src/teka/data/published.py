"""Published data sets, such as MNIST: downloading, verifying and reading their files.

The file `published.json` describes the data sets. To add a data set in the format "idx" or
"records", add an entry to this file.

- MNIST is downloaded from the mirror that torchvision uses, because the server of its authors often
  refuses downloads.
- CIFAR-10 is read from its "binary version", because its "Python version" consists of pickle files,
  which can execute code.

References:
    E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998.
    Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits, "File formats".
    Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document
    recognition, 1998.
    H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine
    learning algorithms, 2017.
    A. Krizhevsky, Learning multiple layers of features from tiny images, 2009.
"""

import gzip
import hashlib
import json
import math
import shlex
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from teka.codec import decode
from teka.data.dataset import RawDataset, Split
from teka.errors import first_line_of_error, require, wrong_argument, wrong_value
from teka.files import expand_user, make_directory, write_bytes
from teka.memory import check_fits_in_memory

TIMEOUT_SECONDS = 30.0  # a connection without data for this long is considered stalled
NUM_ATTEMPTS = 5
CHUNK_BYTES = 2**16
DIGIT_NAMES = tuple("0123456789")
NUM_TRAIN_DIGITS = 1437
DIGITS_SEED = 0
DIGIT_SIZE = 8
MAX_DIGIT_LEVEL = 16


@dataclass(frozen=True)
class PublishedFile:
    """Name, size and SHA-256 hash of a file that belongs to a published data set.

    Args:
        name: Name of the unpacked file.
        num_bytes: Size of the unpacked file.
        sha256: Hash of the unpacked file, or None if its authors publish none.
    """

    name: str
    num_bytes: int
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedDataset:
    """Data set that can be downloaded from the web, such as MNIST.

    Args:
        name: Name for `teka.data.load`.
        url: Folder with the gzip-compressed files, or a tar archive with all files.
        archive_hash: Hash of the archive, such as "md5:…". None if `url` is a folder.
        folder: Name of the folder for downloaded files.
        train: Files with the training images.
        test: Files with the test images.
        format: "idx" or "records". "idx" has one file of images and one of labels. Each starts with
            a header of 4 bytes plus 4 bytes per axis. In "records", one byte with the label comes
            before each image.
        image_shape: (channels, height, width).
        class_names: Names of the classes.
        license: License of the data set, as stated by its authors.
        advice: Sentence that says how to get the files without `teka download`.
        system_folder: Folder in which a package of the operating system installs the files.
    """

    name: str
    url: str
    archive_hash: str | None = None
    folder: str
    train: tuple[PublishedFile, ...]
    test: tuple[PublishedFile, ...]
    format: str
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    license: str
    advice: str
    system_folder: Path | None = None

    @property
    def files(self) -> tuple[PublishedFile, ...]:
        """Training and test files."""
        return self.train + self.test

    def read(self, data_dir: str | Path | None = None) -> RawDataset:
        """Read the data set from the first search folder that contains all its files.

        Args:
            data_dir: Folder to search, see `list_search_folders`. If it is None, only
                `system_folder` is searched.

        Raises:
            ValueError: A file is damaged, or no folder contains all files. The error lists the
                searched folders.
        """
        folders = [] if data_dir is None else self.list_search_folders(expand_user(data_dir))
        if self.system_folder is not None:
            folders.append(self.system_folder)
        folder = next(filter(self.has_all_files, folders), None)
        if folder is None:
            target = shlex.quote(str(data_dir or "data"))
            command = f"teka download {self.name} --data-dir {target}"
            raise wrong_argument(
                f"the files of {self.name}",
                f"not all of them in {' or '.join(map(str, folders)) or 'any data_dir'}",
                f"{', '.join(file.name for file in self.files)} in one folder",
                f"Run `{command}`, and pass {target} as data_dir. {self.advice}",
            )
        train, test = (self._read_split(folder, files) for files in (self.train, self.test))
        return RawDataset(train, test, class_names=self.class_names)

    def list_search_folders(self, data_dir: Path) -> list[Path]:
        """Return the folders in which `read` and `download` look for the files, in order.

        `download` writes to the first folder if no folder contains all files.
        """
        names = dict.fromkeys((self.folder, self.name, ""))
        return [data_dir / name for name in names]

    def has_all_files(self, folder: Path) -> bool:
        """Return True if a folder contains all files of the data set. They may be damaged."""
        return all(find_downloaded_file(folder, file) for file in self.files)

    def download(self, data_dir: Path) -> Path:
        """Download the files that are missing or damaged, and return the folder with all files.

        The folder is one of `list_search_folders(data_dir)`.
        """
        folders = filter(self.has_all_files, self.list_search_folders(data_dir))
        folder = next(folders, None) or make_directory("data_dir", data_dir / self.folder)
        missing = []
        for file in self.files:
            try:
                self._read_and_verify_file(folder, file)
            except ValueError:
                missing.append(file)
        if self.archive_hash is None:
            for file in missing:
                download_file(
                    f"{self.url}{file.name}.gz",
                    folder / file.name,
                    f"sha256:{file.sha256}",
                    file.num_bytes,
                )
        elif missing:
            archive = data_dir / self.url.rpartition("/")[2]
            is_new = not archive.is_file()
            download_file(self.url, archive, self.archive_hash)
            with tarfile.open(archive) as members:
                for file in missing:  # by full name, so that the archive cannot choose a path
                    member = members.extractfile(f"{self.folder}/{file.name}")
                    assert member is not None
                    write_bytes(folder / file.name, member.read())
            if is_new:
                archive.unlink()
        return folder

    def _read_split(self, folder: Path, files: Sequence[PublishedFile]) -> Split:
        contents = [self._read_and_verify_file(folder, file) for file in files]
        if self.format == "idx":  # the hash was checked, so that the headers are known
            images, labels = contents
            images, labels = images[16:].view(-1, *self.image_shape), labels[8:]
        else:
            records = torch.cat(contents).view(-1, 1 + math.prod(self.image_shape))
            images, labels = records[:, 1:].unflatten(1, self.image_shape), records[:, 0]
        return Split(images.contiguous(), labels.long())

    def _read_and_verify_file(self, folder: Path, file: PublishedFile) -> UInt8[Tensor, " bytes"]:
        """Return the bytes of a file, after unpacking, whose size and SHA-256 hash are correct.

        If the authors publish no hash, the largest label is checked instead.
        """
        path = find_downloaded_file(folder, file)
        if path is None:
            raise wrong_value(f"a file in {folder}", None, file.name)
        content = read_unpacked(path, file.num_bytes)
        hint = "`teka download` replaces damaged files."
        if len(content) != file.num_bytes:
            description = "more" if len(content) > file.num_bytes else f"{len(content):,} bytes"
            raise wrong_argument(
                f"the unpacked size of {path}", description, f"{file.num_bytes:,} bytes", hint
            )
        values = torch.frombuffer(content, dtype=torch.uint8)
        if file.sha256 is None:
            label = int(values[:: 1 + math.prod(self.image_shape)].max())
            if label >= len(self.class_names):
                raise wrong_value(
                    f"the largest label in {path}",
                    label,
                    f"classes from 0 to {len(self.class_names) - 1}",
                    hint,
                )
        elif (sha256 := hashlib.sha256(content).hexdigest()) != file.sha256:
            raise wrong_argument(f"the unpacked SHA-256 of {path}", sha256, file.sha256, hint)
        return values


def find_downloaded_file(folder: Path, file: PublishedFile) -> Path | None:
    """Return the path of a downloaded file, or None if the file is missing.

    The file may be compressed with gzip. In this case, its name ends in ".gz".
    """
    return next(filter(Path.is_file, (folder / file.name, folder / f"{file.name}.gz")), None)


def read_unpacked(path: Path, num_bytes: int) -> bytearray:
    """Read a file of an expected size, and decompress it if it is a gzip file.

    At most `num_bytes` + 1 bytes are returned. One byte more than expected tells the caller that
    the file is too large, without reading all of it.

    Args:
        path: The file.
        num_bytes: Expected size after decompression.
    """
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if is_packed else path.open("rb") as file:
            return bytearray(file.read(num_bytes + 1))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise wrong_argument(str(path), first_line_of_error(error), "complete gzip data") from error


def download_file(url: str, path: Path, known_hash: str, unpacked_bytes: int | None = None) -> None:
    """Download a file and show a progress bar, unless a file with the correct hash exists.

    The file appears at `path` only after its hash has been verified. Failed downloads are retried.

    Args:
        url: URL of the file.
        path: Path of the downloaded file.
        known_hash: Hash of the file, such as "sha256:…".
        unpacked_bytes: Size of the unpacked file, for a download that is compressed with gzip. In
            this case, the unpacked file is stored, and `known_hash` is its hash.

    Raises:
        ConnectionError: All attempts failed.
    """
    pooch = require("pooch", "downloads need", "teka[train]")
    from requests import RequestException

    # Without this header, a server may compress the file once more.
    headers = {"Accept-Encoding": "identity"}
    download = pooch.HTTPDownloader(
        progressbar=True, chunk_size=CHUNK_BYTES, timeout=TIMEOUT_SECONDS, headers=headers
    )

    def download_and_unpack(url: str, output_file: str, source: object) -> None:
        download(url, output_file, source)
        file = Path(output_file)
        if unpacked_bytes is not None:
            file.write_bytes(read_unpacked(file, unpacked_bytes))
        file.chmod(0o644)  # temporary files are readable for their owner alone

    files = pooch.create(
        path.parent,
        "",
        registry={path.name: known_hash},
        urls={path.name: url},
        retry_if_failed=NUM_ATTEMPTS - 1,
    )
    try:
        files.fetch(path.name, downloader=download_and_unpack)
    except (RequestException, ValueError) as error:
        raise ConnectionError(
            f"{path.name} could not be downloaded from {url}: {first_line_of_error(error)}"
        ) from error


_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
PUBLISHED_DATASETS = {row["name"]: decode(PublishedDataset, row) for row in _TABLE}


def read_digits(canvas_size: tuple[int, int]) -> RawDataset:
    """Read the 1,797 handwritten digits of scikit-learn, and center them on a larger canvas.

    The digits have 8×8 pixels. If they cannot be centered exactly, the margin at the top or on the
    left is one pixel smaller. The first 1,437 indices of
    `numpy.random.default_rng(0).permutation(1797)` are for training, and the others for testing.

    Args:
        canvas_size: (height, width) of the canvas in pixels.
    """
    height, width = canvas_size
    datasets = require("sklearn.datasets", "digits need", "teka[train]")
    pixels, classes = datasets.load_digits(return_X_y=True)
    check_fits_in_memory("image_size", canvas_size, 4 * len(pixels) * height * width, "images")
    digits = torch.from_numpy(pixels).float().view(-1, 1, DIGIT_SIZE, DIGIT_SIZE) / MAX_DIGIT_LEVEL
    top = (height - DIGIT_SIZE) // 2
    left = (width - DIGIT_SIZE) // 2
    margins = (left, width - DIGIT_SIZE - left, top, height - DIGIT_SIZE - top)
    images = Split(torch.nn.functional.pad(digits, margins), torch.from_numpy(classes).long())
    order = torch.from_numpy(np.random.default_rng(DIGITS_SEED).permutation(len(pixels)))
    train, test = order.tensor_split([NUM_TRAIN_DIGITS])
    return RawDataset(images.take(train), images.take(test), class_names=DIGIT_NAMES)
