"""The published data sets that are known by name.

References:
    E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository (1998), test part.
    Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document recognition, 1998.
    H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine learning
    algorithms, 2017; the names of its classes: https://github.com/zalandoresearch/fashion-mnist, "Labels".
    A. Krizhevsky, Learning multiple layers of features from tiny images, 2009; the names: its batches.meta.txt.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from teka.checks import check_image_size
from teka.data.dataset import Levels
from teka.data.fetch import PublishedFile
from teka.data.published import IdxDataset, PublishedDataset, RecordDataset
from teka.errors import require
from teka.memory import check_memory

DIGIT_NAMES = tuple("0123456789")
NUM_TRAIN_DIGITS, DIGITS_SEED = 1437, 0
_DIGIT_SIDE, _HIGHEST_DIGIT_LEVEL = 8, 16

# Of the four unpacked files: a header, and 28 × 28 levels or one label for each of 60,000 and 10,000 images.
IDX_SIZES: Mapping[str, int] = {
    "train-images-idx3-ubyte": 16 + 60_000 * 28 * 28,
    "train-labels-idx1-ubyte": 8 + 60_000,
    "t10k-images-idx3-ubyte": 16 + 10_000 * 28 * 28,
    "t10k-labels-idx1-ubyte": 8 + 10_000,
}

# 60,000 training and 10,000 test images of 28×28.
MNIST = IdxDataset(
    name="mnist",
    class_names=DIGIT_NAMES,
    remedy="By hand: download the four files from https://ossci-datasets.s3.amazonaws.com/mnist/ into a folder and "
    "pass it as data_dir.",
    hashes={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    sizes=IDX_SIZES,
    # Copies that PyTorch keeps: the authors' own server often refuses, and has no https.
    addresses=("https://ossci-datasets.s3.amazonaws.com/mnist/",),
)
# The same four files and sizes.
FASHION_MNIST = IdxDataset(
    name="fashion-mnist",
    class_names=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    remedy="By hand: run `apt-get install dataset-fashion-mnist` on Debian or Ubuntu, or download the four files from "
    "https://github.com/zalandoresearch/fashion-mnist/tree/master/data/fashion into a folder and pass it as data_dir.",
    hashes={
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    sizes=IDX_SIZES,
    # The authors' repository: their server has no https.
    addresses=("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",),
    system_folder=Path("/usr/share/datasets/fashion-mnist"),
)
# 50,000 training and 10,000 test photographs, in the published "binary version": pickles are never read. Its authors
# give an MD5 of the archive alone: a download is checked by it, files that are there by size and labels only.
CIFAR10 = RecordDataset(
    name="cifar10",
    class_names=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    remedy="By hand: download https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz (MD5 "
    "c32a1d4ab5d03f1284b67883e8d87530), unpack it and pass the folder as data_dir.",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test=("test_batch.bin",),
    images_per_file=10_000,
    image_shape=(3, 32, 32),
    archive=PublishedFile(
        name="cifar-10-binary.tar.gz",
        addresses=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        known_hash="md5:c32a1d4ab5d03f1284b67883e8d87530",
        is_packed=False,
        max_bytes=200_000_000,
    ),
    published_folder="cifar-10-batches-bin",
)
PUBLISHED_DATASETS: dict[str, PublishedDataset] = {
    dataset.name: dataset for dataset in (MNIST, FASHION_MNIST, CIFAR10)
}


def read_digits(canvas_size: int | Sequence[int] = 16) -> tuple[Levels, Levels]:
    """Scikit-learn's digits, 1,797 real 8×8 images that come inside that package, on a canvas of background 0.

    The first 1,437 of `numpy.random.default_rng(0).permutation(1797)` are for training, the other 360 for test,
    whatever the canvas. Each lies in its middle; where the margin is odd, its smaller half is above and to the left.
    """
    height, width = check_image_size("canvas_size", canvas_size, smallest=_DIGIT_SIDE)
    pixels, classes = require("sklearn.datasets", "digits need", "teka[train]").load_digits(
        return_X_y=True
    )
    check_memory("image_size", canvas_size, 4 * len(pixels) * height * width, "images")
    canvas = torch.zeros(len(pixels), 1, height, width, dtype=torch.uint8)
    top, left = (height - _DIGIT_SIDE) // 2, (width - _DIGIT_SIDE) // 2
    digits = torch.from_numpy(np.asarray(pixels, dtype=np.uint8)).reshape(
        -1, 1, _DIGIT_SIDE, _DIGIT_SIDE
    )
    canvas[:, :, top : top + _DIGIT_SIDE, left : left + _DIGIT_SIDE] = digits
    published = Levels(
        canvas, torch.from_numpy(np.asarray(classes, dtype=np.int64)), _HIGHEST_DIGIT_LEVEL
    )
    order = torch.from_numpy(np.random.default_rng(DIGITS_SEED).permutation(len(published)))
    return published.take(order[:NUM_TRAIN_DIGITS]), published.take(order[NUM_TRAIN_DIGITS:])
