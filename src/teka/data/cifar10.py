"""CIFAR-10: 50,000 training and 10,000 test photographs of 32×32 in three colours and 10 classes.

Read from the six files of the published "binary version"; the pickles of the "Python version" would run what they
hold, and are never read. Its authors give an MD5 of the packed archive alone, none of the unpacked files: a download is
checked by it, and files that are there already by size and labels only.

References:
    A. Krizhevsky, Learning multiple layers of features from tiny images, 2009.
"""

from teka.data.fetch import PublishedFile
from teka.data.record_dataset import RecordDataset

CIFAR10 = RecordDataset(
    name="cifar10",
    published_folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test=("test_batch.bin",),
    images_per_file=10_000,
    image_shape=(3, 32, 32),
    num_classes=10,
    remedy="By hand: download https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz (MD5 "
    "c32a1d4ab5d03f1284b67883e8d87530), unpack it and pass the folder as data_dir.",
    archive=PublishedFile(
        name="cifar-10-binary.tar.gz",
        addresses=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        known_hash="md5:c32a1d4ab5d03f1284b67883e8d87530",
        packing="none",
    ),
)
