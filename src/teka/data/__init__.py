"""Images and labels: published data sets, downloaded and checked; folders of pictures, and arrays; and augmentation."""

from teka.data.augment import HorizontalFlip, RandomCrop, RandomShift
from teka.data.dataset import Dataset, Split
from teka.data.download import download
from teka.data.fetch import Fetcher
from teka.data.from_arrays import from_arrays
from teka.data.load import NAMES, load
from teka.data.lossless import blank_columns, lossless_selection
from teka.data.normalize import Normalize
from teka.data.resize import resize_bilinear

__all__ = [
    "NAMES",
    "Dataset",
    "Fetcher",
    "HorizontalFlip",
    "Normalize",
    "RandomCrop",
    "RandomShift",
    "Split",
    "blank_columns",
    "download",
    "from_arrays",
    "load",
    "lossless_selection",
    "resize_bilinear",
]
