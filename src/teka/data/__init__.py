"""Data sets for image classification, augmentation, and reading of picture files.

Wrong arguments raise a ValueError that names the argument.
"""

from teka.data.augment import HorizontalFlip, Normalize, RandomShift, lossless_selection
from teka.data.dataset import Dataset, Split
from teka.data.load import download, from_arrays, load
from teka.data.pictures import PictureFiles, resize_bilinear

__all__ = [
    "Dataset",
    "HorizontalFlip",
    "Normalize",
    "PictureFiles",
    "RandomShift",
    "Split",
    "download",
    "from_arrays",
    "load",
    "lossless_selection",
    "resize_bilinear",
]
