"""Images and labels: digits from scikit-learn, and published files of MNIST, Fashion-MNIST and CIFAR-10, checked."""

from teka.data.dataset import Dataset, Split
from teka.data.load import NAMES, load
from teka.data.lossless import blank_columns, lossless_selection
from teka.data.resize import resize_bilinear

__all__ = ["NAMES", "Dataset", "Split", "blank_columns", "load", "lossless_selection", "resize_bilinear"]
