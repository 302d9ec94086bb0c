"""MNIST and Fashion-MNIST: the same four files, 60,000 training and 10,000 test images of 28×28 in 10 classes.

References:
    Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document recognition, 1998.
    H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine learning
    algorithms, 2017.
"""

from pathlib import Path

from teka.data.idx_dataset import IdxDataset, IdxFiles

MNIST = IdxDataset(
    name="mnist",
    train=IdxFiles(
        images="train-images-idx3-ubyte",
        images_sha256="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        labels="train-labels-idx1-ubyte",
        labels_sha256="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    test=IdxFiles(
        images="t10k-images-idx3-ubyte",
        images_sha256="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        labels="t10k-labels-idx1-ubyte",
        labels_sha256="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    num_classes=10,
    remedy="By hand: download the four files from https://ossci-datasets.s3.amazonaws.com/mnist/ into a folder and "
    "pass it as data_dir.",
    # The authors' own server often refuses, so that the copy that PyTorch keeps comes first.
    addresses=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
)

FASHION_MNIST = IdxDataset(
    name="fashion-mnist",
    train=IdxFiles(
        images="train-images-idx3-ubyte",
        images_sha256="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        labels="train-labels-idx1-ubyte",
        labels_sha256="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    test=IdxFiles(
        images="t10k-images-idx3-ubyte",
        images_sha256="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        labels="t10k-labels-idx1-ubyte",
        labels_sha256="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    num_classes=10,
    remedy="By hand: run `apt-get install dataset-fashion-mnist` on Debian or Ubuntu, or download the four files from "
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/ into a folder and pass it as data_dir.",
    addresses=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    system_folder=Path("/usr/share/datasets/fashion-mnist"),
)
