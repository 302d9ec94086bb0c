"""The images of an audit: some of a data set's test images, as a model takes them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.adapters.picture_files import find_pictures, read_pictures
from teka.audit.adapters.preprocessing import Preprocessing
from teka.checks import check_sizes
from teka.data import load
from teka.data.load import NAMES, class_names

_IMAGES_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class AuditImages:
    """Some test images of a data set, and what is known of them.

    Args:
        name: What the data were named by.
        images: Intensities in [0, 1], shape (N, C, H, W), channels and size as wanted.
        labels: Their classes, (N,).
        num_classes: Number of the data's classes.
        class_names: Names of the classes, if they have any.
        image_size: Height and width as the data have them; None if the pictures have several sizes.
        num_available: Number of test images that they were drawn from.
    """

    name: str
    images: Float[Tensor, "images channels height width"]
    labels: Int[Tensor, " images"]
    num_classes: int
    class_names: tuple[str, ...] | None
    image_size: tuple[int, int] | None
    num_available: int


def load_images(
    data: str,
    transform: Preprocessing,
    *,
    data_dir: str | Path | None = None,
    image_size: int | tuple[int, int] | None = None,
    num_images: int | None = None,
    seed: int = 0,
) -> AuditImages:
    """Test images of a data set, as many as wanted, as a model takes them.

    The images are the first `num_images` in the order `numpy.random.default_rng(seed).permutation(N)`, so that fewer
    are part of more, and come in the order of the data. Of a folder of pictures only these are read, and each is
    resized from its own size.

    Args:
        data: What `teka.data.load` takes: a name, or the path of a folder of pictures or an .npz file.
        transform: Its `place` makes the model's channels and size; `Preprocessing()` leaves the images.
        data_dir: Folder with the data set's files.
        image_size: Size at which the data are loaded, before that: the canvas of digits, else a bilinear resize in
            whole levels.
        num_images: At most so many images; None takes all.
        seed: Seed of the choice.

    Raises:
        ImportError: A library that the data need is not installed.
        ValueError: No such data, fewer than one image, channels that cannot be made the model's, or pictures of
            several sizes that nothing resizes to one.
    """
    folder = None if data in NAMES else find_pictures(data, data_dir)
    if folder is not None:
        chosen = _choose(len(folder.labels), num_images, seed)
        images, size = read_pictures([folder.files[one] for one in chosen], transform, image_size)
        labels, classes = torch.tensor([folder.labels[one] for one in chosen]), len(folder.class_names)
        return AuditImages(data, images, labels, classes, folder.class_names, size, len(folder.labels))
    dataset = load(data, data_dir=data_dir, image_size=image_size)
    chosen = _choose(len(dataset.test), num_images, seed)
    split = dataset.test.take(torch.tensor(chosen))
    placed = torch.cat([transform.place(part) for part in split.images.to(torch.float32).split(_IMAGES_AT_ONCE)])
    names = class_names(data, data_dir=data_dir)
    return AuditImages(data, placed, split.labels, dataset.num_classes, names, dataset.image_size, len(dataset.test))


def _choose(available: int, num_images: int | None, seed: int) -> list[int]:
    check_sizes({"seed": seed}, 0)
    if num_images is None:
        return list(range(available))
    check_sizes({"images": num_images})
    return sorted(np.random.default_rng(seed).permutation(available)[:num_images].tolist())
