"""Data sets of labeled images, for training and testing image classifiers.

`load` reads published data sets and your own pictures, and `from_arrays` takes NumPy arrays or
tensors. Other functions augment, normalize and resize images.
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
