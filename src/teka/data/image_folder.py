"""Images of one's own: picture files, in a folder for each class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from teka.data.hold_out import hold_out_test
from teka.data.levels import Levels
from teka.data.open_picture import open_picture
from teka.data.resize import resize_bilinear
from teka.data.sizes import height_and_width
from teka.errors import wrong_value
from teka.memory import check_memory

PARTS = ("train", "test")
_GREY = ("1", "L", "LA")
_BYTES = (*_GREY, "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB")


def read_image_folder(folder: Path, *, image_size: int | Sequence[int] | None = None) -> tuple[Levels, Levels, int]:
    """Training and test images of a folder that has a sub-folder for each class, with the pictures in it.

    A class is the place of its name among the sorted names, so that "10" comes before "2". With exactly the two
    sub-folders `train` and `test`, each of them has the classes' sub-folders; without, a fifth of the images, drawn
    once and for all, is for test (`hold_out_test`). Hidden files, and files beside the classes' sub-folders, are not
    looked at.

    Any format that Pillow reads with 8 bits a channel will do; of several frames the first is taken, and the
    orientation that a camera noted is applied. The images are grey if every file is stored as grey, else RGB; a palette
    counts as colour.

    Args:
        folder: The folder.
        image_size: One side or (height, width) in pixels that every image is resized to, whatever its own shape; by
            default all must be of one size.

    Returns:
        Training and test images with levels 0 … 255, shapes (N, C, H, W), and the number of classes.

    Raises:
        ImportError: Pillow is not installed.
        ValueError: Fewer than two classes, a class without images, a folder within one, a class in `test` alone, a
            file that is no picture or is damaged, one with transparency or with more than 8 bits a channel, or one of
            another size than the first; the message names it.
    """
    tops = [folder / part for part in PARTS] if _has_parts(folder) else [folder]
    files = {top: _files_by_class(top) for top in tops}
    classes = sorted(files[tops[0]])
    if len(classes) < 2:
        came = f"{len(classes)} ({', '.join(classes)})" if classes else "none"
        raise wrong_value(f"the classes of {tops[0]}", came, "at least two sub-folders of pictures")
    for top in tops[1:]:
        for name in files[top]:
            if name not in classes:
                raise wrong_value(f"the classes of {top}", name, f"those of {tops[0]}: {', '.join(classes)}")
    paths, labels, counts = [], [], []
    for top in tops:
        found = [(path, classes.index(name)) for name in sorted(files[top]) for path in files[top][name]]
        paths += [path for path, _ in found]
        labels += [label for _, label in found]
        counts.append(len(found))
    levels = Levels(_read_all(paths, image_size), torch.tensor(labels), highest=255)
    parts = hold_out_test(len(levels)) if len(tops) == 1 else torch.arange(len(levels)).split(counts)
    train, test = (levels.take(indices) for indices in parts)
    return train, test, len(classes)


def _has_parts(folder: Path) -> bool:
    names = [path.name for path in _visible(folder) if path.is_dir()]
    if not set(PARTS) <= set(names):
        return False
    others = sorted(set(names) - set(PARTS))
    if others:
        raise wrong_value(f"the sub-folders of {folder}", names, f"only train and test, or only classes; not {others}")
    return True


def _files_by_class(top: Path) -> dict[str, list[Path]]:
    files = {}
    for folder in _visible(top):
        if not folder.is_dir():
            continue
        files[folder.name] = _visible(folder)
        if not files[folder.name]:
            raise wrong_value(f"the pictures in {folder}", "none", "at least one")
        for path in files[folder.name]:
            if path.is_dir():
                raise wrong_value(f"the pictures in {folder}", f"the folder {path.name}", "files only")
    return files


def _visible(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda path: path.name)


def _read_all(paths: list[Path], image_size: int | Sequence[int] | None) -> UInt8[Tensor, "images channels h w"]:
    images = []
    for path in paths:
        image = _read(path)
        if not images:
            size = image.shape[1:] if image_size is None else height_and_width("image_size", image_size)
            check_memory("image_size", image_size, len(paths) * size[0] * size[1], "pictures")
        images.append(image if image_size is None else resize_bilinear(image[None], image_size)[0])
        if images[-1].shape[1:] != images[0].shape[1:]:
            (height, width), (first_height, first_width) = images[-1].shape[1:], images[0].shape[1:]
            raise ValueError(
                f"{path} has {height} × {width} pixels, expected the {first_height} × {first_width} of {paths[0]}; "
                "with image_size every image is resized"
            )
    channels = max(len(image) for image in images)
    return torch.stack([image.expand(channels, -1, -1) for image in images])


def _read(path: Path) -> UInt8[Tensor, "channels h w"]:
    picture = open_picture(path)
    if picture.mode not in _BYTES:
        raise wrong_value(f"the pixel type of {path}", picture.mode, "8 bits a channel")
    if "A" in picture.getbands() or "transparency" in picture.info:
        lowest = np.asarray(picture.convert("RGBA"))[..., 3].min()
        if lowest < 255:
            raise wrong_value(f"the opacity of {path}", f"{lowest} of 255", "a picture without transparency")
    if picture.mode in _GREY:
        return torch.from_numpy(np.array(picture.convert("L")))[None]
    return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)
