"""The images of an audit: some of a data set's test images, as a model takes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.adapters.preprocessing import Preprocessing
from teka.checks import check_sizes
from teka.data import load, resize_bilinear
from teka.data.dataset import hold_out_test
from teka.data.load import NAMES, class_names, find_path
from teka.data.own_images import GREY, find_pictures
from teka.data.pictures import read_picture
from teka.errors import wrong_value

_IMAGES_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class AuditImages:
    """Some of the `num_available` test images of a data set, in [0, 1], with channels and size as wanted."""

    name: str
    images: Float[Tensor, "images channels height width"]
    labels: Int[Tensor, " images"]
    num_classes: int
    class_names: tuple[str, ...] | None
    image_size: tuple[int, int] | None  # as the data have them; None if the pictures have several sizes
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
    """Test images of what `teka.data.load` takes, as many as wanted, with a model's channels and size.

    The images are the first `num_images` in the order `numpy.random.default_rng(seed).permutation(N)`, so that fewer
    are part of more, and come in the order of the data. Of a folder of pictures only these are read, and each is
    resized from its own size. An `image_size` is made before that: the canvas of digits, else a bilinear resize in
    whole levels.
    """
    path = None if data in NAMES else find_path(data, data_dir)
    if path is not None and path.is_dir():
        parts, names = find_pictures(path)
        # As `teka.data.load` has them: a fifth is for test where there is no such part.
        found = parts[1] if len(parts) > 1 else [parts[0][one] for one in hold_out_test(len(parts[0]))[1].tolist()]
        chosen = [found[one] for one in _choose(len(found), num_images, seed)]
        images, size = read_pictures([file for file, _ in chosen], transform, image_size)
        labels = torch.tensor([label for _, label in chosen])
        return AuditImages(data, images, labels, len(names), tuple(names), size, len(found))
    dataset = load(data, data_dir=data_dir, image_size=image_size)
    split = dataset.test.take(torch.tensor(_choose(len(dataset.test), num_images, seed)))
    placed = torch.cat([transform.place(part) for part in split.images.to(torch.float32).split(_IMAGES_AT_ONCE)])
    names = class_names(data, data_dir=data_dir)
    return AuditImages(data, placed, split.labels, dataset.num_classes, names, dataset.image_size, len(dataset.test))


def _choose(available: int, num_images: int | None, seed: int) -> list[int]:
    check_sizes({"seed": seed}, least=0)
    check_sizes({"images": num_images}, or_none=True)
    if num_images is None:
        return list(range(available))
    return sorted(np.random.default_rng(seed).permutation(available)[:num_images].tolist())


def read_pictures(
    files: Sequence[Path], transform: Preprocessing, image_size: int | tuple[int, int] | None = None
) -> tuple[Float[Tensor, "images channels height width"], tuple[int, int] | None]:
    """Pictures in [0, 1] as a model takes them, each resized from its own size; and their size, if it is one.

    For a model of unknown channels they are grey if every file is stored as grey, else colour, as `teka.data.load` has
    it.
    """
    grey = all(map(_is_grey, files)) if transform.in_channels is None else transform.in_channels == 1
    images, sizes = [], set()
    for path in files:
        levels = read_picture(path, in_channels=1 if grey else 3)[None]
        levels = levels if image_size is None else resize_bilinear(levels, image_size)
        sizes.add((levels.shape[2], levels.shape[3]))
        images.append(transform.place(levels.to(torch.float32) / 255))
        if images[-1].shape != images[0].shape:
            came, first = (tuple(image.shape[2:]) for image in (images[-1], images[0]))
            raise wrong_value(f"the size of {path}", came, f"{first}, that of {files[0]}, or image_size, or input_size")
    return torch.cat(images), sizes.pop() if len(sizes) == 1 else None


def _is_grey(path: Path) -> bool:
    try:
        from PIL import Image

        with Image.open(path) as picture:
            return picture.mode in GREY
    except (ImportError, OSError):  # which reading the picture puts into words
        return False
