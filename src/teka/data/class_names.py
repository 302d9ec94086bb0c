"""Names of a data set's classes."""

from pathlib import Path

from teka.data.image_folder import PARTS

_DIGITS = tuple("0123456789")
PUBLISHED_CLASS_NAMES = {
    "digits": _DIGITS,
    "mnist": _DIGITS,
    "fashion-mnist": (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}


def class_names(name: str, *, data_dir: str | Path | None = None) -> tuple[str, ...] | None:
    """A name for each class of a data set, in the order of its labels; None for arrays, which have numbers only.

    Args:
        name: What `teka.data.load` takes: a published data set, or the path of a folder of pictures, whose classes are
            named as their sub-folders, or of an .npz file.
        data_dir: Folder in which a path is looked for first.

    Source: https://github.com/zalandoresearch/fashion-mnist, "Labels"; batches.meta.txt of CIFAR-10.
    """
    if name in PUBLISHED_CLASS_NAMES:
        return PUBLISHED_CLASS_NAMES[name]
    given = Path(name).expanduser()
    places = [given] if data_dir is None else [Path(data_dir).expanduser() / given, given]  # as teka.data.load looks
    folder = next((place for place in places if place.exists()), given)
    if not folder.is_dir():
        return None
    found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if found != sorted(PARTS):
        return tuple(found)
    return class_names(str((folder / PARTS[0]).resolve()))
