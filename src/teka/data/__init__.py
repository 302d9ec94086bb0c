"""Images and labels: published data sets, downloaded and checked; folders of pictures, and arrays; and augmentation.

Shapes, types, names and numbers other than a docstring says are a ValueError that names the argument.
"""

from teka.data.augment import HorizontalFlip, Normalize, RandomCrop, RandomShift, lossless_selection
from teka.data.dataset import Dataset, Split
from teka.data.fetch import Fetcher
from teka.data.load import download, from_arrays, load
from teka.data.pictures import resize_bilinear

__all__ = [
    "Dataset",
    "Fetcher",
    "HorizontalFlip",
    "Normalize",
    "RandomCrop",
    "RandomShift",
    "Split",
    "download",
    "from_arrays",
    "load",
    "lossless_selection",
    "resize_bilinear",
]
