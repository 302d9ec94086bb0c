"""The test pictures of a folder, found before any is read, and read one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.adapters.preprocessing import Preprocessing
from teka.data import resize_bilinear
from teka.data.dataset import hold_out_test
from teka.data.own_images import PARTS
from teka.data.pictures import read_picture
from teka.errors import wrong_value


@dataclass(frozen=True)
class PictureFiles:
    """Files of a folder's test pictures, in the order of `teka.data.load`.

    Args:
        files: The files.
        labels: The class of each.
        class_names: The classes: names of their sub-folders.
    """

    files: tuple[Path, ...]
    labels: tuple[int, ...]
    class_names: tuple[str, ...]


def find_pictures(data: str, data_dir: str | Path | None = None) -> PictureFiles | None:
    """The test pictures of a folder of pictures; None if the data are no folder.

    They are those of `teka.data.load`: the sub-folder `test` beside `train`, or else a fifth of all, the same always.

    Args:
        data: Path of the folder.
        data_dir: Folder in which a path is looked for first.

    Raises:
        ValueError: Fewer than two classes, a class without pictures, or one that is only in `test`.
    """
    given = Path(data).expanduser()
    places = [given] if data_dir is None else [Path(data_dir).expanduser() / given, given]
    folder = next((place for place in places if place.exists()), given)
    if not folder.is_dir():
        return None
    parted = set(_folders(folder)) == set(PARTS)
    top = folder / PARTS[1] if parted else folder
    classes = _folders(folder / PARTS[0] if parted else folder)
    if len(classes) < 2:
        raise wrong_value(
            f"the classes of {folder}", ", ".join(classes) or "none", "two or more sub-folders of pictures"
        )
    found: list[tuple[Path, int]] = []
    for name in _folders(top):
        files = sorted(path for path in (top / name).iterdir() if path.is_file() and not path.name.startswith("."))
        if not files:
            raise wrong_value(f"the pictures in {top / name}", "none", "at least one")
        if name not in classes:
            raise wrong_value(f"the classes of {top}", name, f"those of {PARTS[0]}: {', '.join(classes)}")
        found += [(path, classes.index(name)) for path in files]
    if not parted:
        found = [found[one] for one in hold_out_test(len(found))[1].tolist()]
    return PictureFiles(tuple(path for path, _ in found), tuple(label for _, label in found), tuple(classes))


def read_pictures(
    files: Sequence[Path], transform: Preprocessing, image_size: int | tuple[int, int] | None = None
) -> tuple[Float[Tensor, "images channels height width"], tuple[int, int] | None]:
    """Pictures in [0, 1] as a model takes them, each resized from its own size; and their size, if it is one.

    For a model of unknown channels they are grey if every file is stored as grey, else colour, as `teka.data.load` has
    it.

    Args:
        files: The files.
        transform: Its `place` makes the model's channels and size.
        image_size: Size that they are resized to in whole levels before that, their shape not kept.

    Raises:
        ImportError: Pillow is not installed.
        ValueError: A file that is no picture, or sizes that stay several.
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


def _folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _is_grey(path: Path) -> bool:
    try:
        from PIL import Image

        with Image.open(path) as picture:
            return picture.mode in ("1", "L", "LA")
    except (ImportError, OSError):  # which reading the picture puts into words
        return False
