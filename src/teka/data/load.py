"""Data sets by name or path."""

from collections.abc import Sequence
from pathlib import Path

from teka.data.arrays import read_npz
from teka.data.assemble import assemble
from teka.data.cifar10 import CIFAR10
from teka.data.dataset import Dataset
from teka.data.digits import read_digits
from teka.data.image_folder import read_image_folder
from teka.data.mnist import FASHION_MNIST, MNIST
from teka.data.sizes import height_and_width, whole_number
from teka.errors import unknown_name

PUBLISHED_DATASETS = {dataset.name: dataset for dataset in (MNIST, FASHION_MNIST, CIFAR10)}
NAMES = ("digits", *PUBLISHED_DATASETS)


def load(
    name: str,
    *,
    data_dir: str | Path | None = None,
    image_size: int | Sequence[int] | None = None,
    validation_size: int | None = None,
    train_size: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Load a data set and part its training images into training and validation.

    The training images are put in the order `numpy.random.default_rng(seed).permutation(N)`; the last
    `validation_size` of them are for validation, the first `train_size` of the others for training, so that a smaller
    training set is part of a larger one. The test images are the published ones, in their order, and all of them; of
    one's own images without a test part a fifth is held out, the same whatever the seed.

    Args:
        name: "digits" (needs scikit-learn and no files), "mnist", "fashion-mnist" or "cifar10"; or the path of a folder
            with a sub-folder of pictures for each class (`teka.data.image_folder`), or of an .npz file
            (`teka.data.arrays`). A folder that has the name of a data set is meant by `./mnist`.
        data_dir: Folder with the published files, or with a folder of the data set's name that has them (for CIFAR-10
            also `cifar-10-batches-bin`, as its archive unpacks); digits need none, and Fashion-MNIST is found without
            it where Debian's package dataset-fashion-mnist is installed. A path that is not absolute is looked for in
            it first.
        image_size: One side or (height, width) in pixels. For digits the canvas that the 8×8 images lie in the
            middle of, 16 by default; for the others the size to which they are resized bilinearly, by default as
            published, untouched: 28, and 32 of CIFAR-10.
        validation_size: Number of validation images, 0 for none; by default 137 of digits, 5,000 of the other
            published ones and a tenth of one's own training images.
        train_size: Number of training images; by default all that are not for validation.
        seed: Seed of this split alone. Leave it as it is when the seed of a run changes, so that runs are compared
            on the same split.

    Raises:
        ImportError: digits without scikit-learn, or a folder of pictures without Pillow.
        ValueError: An unknown name, a size that does not fit, or files that are missing, damaged, or not the
            published ones.
    """
    if image_size is not None:
        image_size = height_and_width("image_size", image_size, smallest=8 if name == "digits" else 1)
    whole_number("seed", seed, smallest=0)
    default_validation_size = None
    if name == "digits":
        train, test = read_digits(16 if image_size is None else image_size)
        num_classes, default_validation_size = 10, 137
        image_size = None
    elif name in PUBLISHED_DATASETS:
        source = PUBLISHED_DATASETS[name]
        train, test = source.read(data_dir)
        num_classes, default_validation_size = source.num_classes, 5000
    else:
        path = _find_path(name, data_dir)
        if path.is_dir():
            train, test, num_classes = read_image_folder(path, image_size=image_size)
        else:
            train, test, num_classes = read_npz(path)
    return assemble(
        name,
        train,
        test,
        num_classes,
        image_size=image_size,
        validation_size=default_validation_size if validation_size is None else validation_size,
        train_size=train_size,
        seed=seed,
    )


def _find_path(name: str, data_dir: str | Path | None) -> Path:
    given = Path(name).expanduser()
    places = [given] if data_dir is None else [Path(data_dir).expanduser() / given, given]
    for place in places:
        if place.exists():
            return place
    looked = " or ".join(dict.fromkeys(map(str, places)))
    raise ValueError(f"{unknown_name('name', name, NAMES)}; no folder of images or .npz file is at {looked}")
