"""Downloading the published data sets into a folder that `load` reads them from."""

from pathlib import Path

from teka.data.fetch import Fetcher
from teka.data.idx_dataset import IdxDataset
from teka.data.load import PUBLISHED_DATASETS
from teka.data.record_dataset import RecordDataset
from teka.errors import unknown_name, wrong_value
from teka.files import make_directory


def published_dataset(name: str) -> IdxDataset | RecordDataset:
    """The data set of this name, if it has files on the web.

    Args:
        name: "mnist", "fashion-mnist" or "cifar10".

    Raises:
        ValueError: An unknown name, or one that needs no files.
    """
    if name == "digits":
        raise wrong_value("name", name, "a data set with files; the digits come inside scikit-learn")
    if name not in PUBLISHED_DATASETS:
        raise unknown_name("name", name, PUBLISHED_DATASETS)
    return PUBLISHED_DATASETS[name]


def download(name: str, data_dir: str | Path = "data", *, fetcher: Fetcher | None = None) -> Path:
    """Make sure that a folder holds the files of a data set; `load(name, data_dir=data_dir)` then reads them.

    Whole files that are there are left alone, and damaged ones replaced. A file arrives under a hidden name, is
    unpacked, checked and only then put under its own; a call that was cut off is gone on with by the next one. The
    IDX files are checked by the SHA-256 of their unpacked content; CIFAR-10 by the MD5 of its archive, which is all
    that its authors publish, and of a copy that is there already, only sizes and labels.

    Args:
        name: "mnist", "fashion-mnist" or "cifar10".
        data_dir: The folder, made if it is missing; the files go into one of the data set's name within.
        fetcher: How patient to be with servers.

    Returns:
        The folder that holds the files.

    Raises:
        ImportError: Something is to be fetched, and pooch is not installed.
        ValueError: An unknown name, a folder that cannot be made, or an archive without the files.
        ConnectionError: No address gave a file; what has arrived stays for the next call.
    """
    dataset = published_dataset(name)
    folder = make_directory("data_dir", Path(data_dir).expanduser())
    return dataset.download(folder, Fetcher() if fetcher is None else fetcher)
