"""Inputs of an audit: the model, its images and labels, and what a report says about them."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.adapters.labels import match_labels
from teka.audit.adapters.load_options import Size
from teka.audit.adapters.loaded_model import LoadedModel
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.caveats import Caveat, other_scale, resized
from teka.audit.model_output import CLASSIFIERS, MULTILABEL
from teka.audit.settings import AuditSettings
from teka.checks import check_image_size, check_sizes
from teka.codec import encode
from teka.data import load, resize_bilinear
from teka.data.custom_images import find_pictures, has_pictures, read_npz
from teka.data.dataset import hold_out_test
from teka.data.load import NAMES, class_names, find_path
from teka.data.pictures import GRAY_MODES, SUFFIXES, read_header, read_picture, to_intensities
from teka.errors import wrong_argument, wrong_value

_IMAGES_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class AuditImages:
    """Images of a data set in [0, 1], with the channels and size of a model.

    Args:
        name: Name of the data set.
        images: The images.
        labels: Class of each image, or None.
        num_classes: Number of classes of the data set.
        class_names: Names of the classes, or None.
        image_size: Size of the images in the data set, or None if they have several sizes.
        num_available: Number of images that could be used.
        description: Number of images, and the part of the data set that they come from.
    """

    name: str
    images: Float[Tensor, "images channels height width"]
    labels: Int[Tensor, " images"] | None
    num_classes: int
    class_names: tuple[str, ...] | None
    image_size: tuple[int, int] | None
    num_available: int
    description: str


def load_images(
    data: str,
    transform: Preprocessing,
    data_dir: str | Path | None = None,
    image_size: Size = None,
    num_images: int | None = None,
    seed: int = 0,
    held_out: bool = False,
) -> AuditImages:
    """Load test images with the channels and size of a model, in the order of the data set.

    All images are used if a folder or file has no test part.

    Args:
        data: Name or path of a data set, as for `teka.data.load`.
        transform: Preprocessing of the model.
        data_dir: Folder of the data set's files.
        image_size: Size to which images are resized first.
        num_images: Maximum number of images, which are chosen at random. Default: all.
        seed: Seed of the choice.
        held_out: Use only the fifth of data without a test part that `teka.data.load` holds out.
    """
    source = _find_images(data, data_dir, image_size)
    if not len(source.images):
        raise wrong_argument(f"the test images of {data}", "none", "at least one")
    available = torch.arange(len(source.images))
    kind, remark = "test images", ""
    if source.part == "all" and held_out:
        available = hold_out_test(len(source.images))[1]
        kind, remark = "held-out images", " (the fifth that training did not use)"
    elif source.part == "all":
        kind, remark = "images", " (no test part declared)"
    chosen = available[_choose(len(available), num_images, seed)]
    if isinstance(source.images, Tensor):
        images = source.images[chosen].to(torch.float32)
        # Levels are resized exactly as in the library of the model.
        levels = (255 * images).round().to(torch.uint8)
        images = levels if torch.equal(to_intensities(levels), images) else images
        batches = [transform.place(batch) for batch in images.split(_IMAGES_AT_ONCE)]
        placed, size = torch.cat(batches), (images.shape[2], images.shape[3])
    else:
        files = [source.images[index] for index in chosen.tolist()]
        placed, size = read_pictures(files, transform, image_size)
    labels = None if source.labels is None else source.labels[chosen]
    description = f"{len(chosen):,} of {len(available):,} {kind} of {data}{remark}"
    classes = source.num_classes, source.class_names
    return AuditImages(data, placed, labels, *classes, size, len(available), description)


class _Source(NamedTuple):
    """The images of a data set that an audit can use: images in memory or picture files.

    The part is "test", or "all" if the data set has no test part.
    """

    part: str
    images: Tensor | Sequence[Path]
    labels: Tensor | None = None
    num_classes: int = 0
    class_names: tuple[str, ...] | None = None


def _find_images(data: str, data_dir: str | Path | None, image_size: Size = None) -> _Source:
    path = None if data in NAMES else find_path(data, data_dir)
    if path is None:
        dataset = load(data, data_dir=data_dir, image_size=image_size)
        test = dataset.test
        return _Source("test", test.images, test.labels, dataset.num_classes, class_names(data))
    if not has_pictures(path):
        arrays = read_npz(path)
        split = (arrays.train if arrays.test is None else arrays.test).to_intensities(image_size)
        part = "all" if arrays.test is None else "test"
        return _Source(part, split.images, split.labels, arrays.num_classes)
    files = sorted(path.iterdir()) if path.is_dir() else []
    pictures = [file for file in files if file.suffix.lower() in SUFFIXES]
    if pictures and not any(file.is_dir() for file in files):
        return _Source("all", pictures)
    parts, names = find_pictures(path)
    part = "test" if "test" in parts else "all"
    labeled = parts.get("test", parts["train"])
    labels = torch.tensor([label for _, label in labeled])
    return _Source(part, [file for file, _ in labeled], labels, len(names), tuple(names))


def is_trained_on(subject: LoadedModel, data: str, data_dir: str | Path | None = None) -> bool:
    """Return True if this library trained the model on this folder or file, or on a copy of it."""
    path = None if data in NAMES else find_path(data, data_dir)
    if path is None or subject.trained_on is None or subject.trained_on in NAMES:
        return False
    known = find_path(subject.trained_on, data_dir)
    is_same = known is not None and known.samefile(path)
    return is_same or Path(subject.trained_on).name == path.resolve().name


def _choose(available: int, num_images: int | None, seed: int) -> list[int]:
    check_sizes({"seed": seed}, least=0)
    check_sizes({"images": num_images}, or_none=True)
    if num_images is None:
        return list(range(available))
    # Take the first of a permutation, so that a smaller number gives a subset.
    return sorted(np.random.default_rng(seed).permutation(available)[:num_images].tolist())


def read_pictures(
    files: Sequence[Path], transform: Preprocessing, image_size: Size = None
) -> tuple[Float[Tensor, "images channels height width"], tuple[int, int] | None]:
    """Read image files with the channels and size of a model.

    If the number of channels is unknown, images are gray if all files are.

    Returns:
        The images, and their original size, or None if they have several sizes.

    Raises:
        ValueError: The images have different sizes after preprocessing.
    """
    is_gray = transform.in_channels == 1
    if transform.in_channels is None:
        is_gray = all(read_header(file)[0] in GRAY_MODES for file in files)
    images, sizes = [], set()
    for path in files:
        levels = read_picture(path, in_channels=1 if is_gray else 3)[None]
        levels = levels if image_size is None else resize_bilinear(levels, image_size)
        sizes.add((levels.shape[2], levels.shape[3]))
        images.append(transform.place(levels))
        if images[-1].shape != images[0].shape:
            size, first = (tuple(image.shape[2:]) for image in (images[-1], images[0]))
            given = f"{first} ({files[0].name}) and {size} ({path.name})"
            expected = "of one size, because the model does not resize them"
            hint = "Choose a size with --input-size, for example --input-size 224."
            raise wrong_argument("the images", given, expected, hint)
    return torch.cat(images), sizes.pop() if len(sizes) == 1 else None


PHOTOGRAPH_SIDE = 128  # pixels
_NUM_HEADERS = 20  # pictures


def usual_mode(data: str, data_dir: str | Path | None = None) -> tuple[str, str]:
    """Return the default mode of shifting for a data set, and the reason in words.

    The mode is "crop", which resembles a moving camera, for a folder in which most images have at
    least `PHOTOGRAPH_SIDE` pixels along the shorter side, and "circular" for other data.
    """
    path = None if data in NAMES else find_path(data, data_dir)
    if path is None or not has_pictures(path):
        return "circular", "a data set of arrays"
    files: Any = _find_images(data, data_dir).images
    places = np.linspace(0, len(files) - 1, min(len(files), _NUM_HEADERS)).round().astype(int)
    sides = []
    for place in places:
        with contextlib.suppress(ValueError):  # damaged files are reported when they are read
            sides.append(min(read_header(files[place])[1:]))
    is_photograph = bool(sides) and float(np.median(sides)) >= PHOTOGRAPH_SIDE
    relation = "at least" if is_photograph else "fewer than"
    reason = f"most pictures have {relation} {PHOTOGRAPH_SIDE} pixels along the shorter side"
    return "crop" if is_photograph else "circular", reason


@dataclass(frozen=True, eq=False)
class AuditInputs:
    """Model, images and settings of an audit.

    Args:
        subject: The model.
        function: Function that is audited.
        images: Unshifted images in [0, 1], as the function takes them.
        labels: Labels as indices of the model's classes, or None.
        settings: Settings of the audit.
        known: Further arguments of `teka.audit.audit`.
        description: Model, images and preprocessing in words.
    """

    subject: LoadedModel
    function: Callable[[Tensor], object]
    images: Float[Tensor, "images channels height width"]
    labels: Int[Tensor, " images"] | None
    settings: AuditSettings
    known: dict[str, Any]
    description: str


def make_inputs(
    subject: LoadedModel,
    data: str,
    settings: AuditSettings,
    *,
    data_dir: str | Path | None = None,
    image_size: Size = None,
    num_images: int | None = None,
    placed_size: Size = None,
    shift_before_resize: bool = False,
    labelled: bool = True,
    held_out: bool | None = None,
    read: Callable[..., AuditImages] = load_images,
) -> AuditInputs:
    """Load the images for the audit of a model, and describe both.

    Args:
        subject: The model.
        data: Name or path of a data set.
        settings: Settings of the audit.
        data_dir: Folder of the data set's files.
        image_size: Size to which images are resized first.
        num_images: Maximum number of images. Default: all.
        placed_size: Size of the images in modes `crop` and `canvas`, before the crop or canvas.
        shift_before_resize: Whether to shift images before the resize to the model's size.
        labelled: Whether to use the labels.
        held_out: Whether to use only the held-out fifth of data without a test part. Default: if
            the model was trained on the data.
        read: Function that loads the images. To share images between models, pass one
            `functools.cache(load_images)` for all.
    """
    # Digits have the size of their canvas, so they are not resized.
    is_sized_first = (not shift_before_resize or data == "digits") and not data.endswith(".npz")
    if image_size is None and subject.loads_at_input_size and is_sized_first:
        image_size = subject.input_size
    if shift_before_resize:
        function, transform = subject.with_placement(), Preprocessing(subject.in_channels)
    else:
        function = subject.function
        transform, settings = place_for_modes(subject, settings, placed_size)
    if held_out is None:
        held_out = is_trained_on(subject, data, data_dir)
    chosen = read(
        data, transform.placing, data_dir, image_size, num_images, settings.seed, held_out
    )
    if settings.output == "auto":
        settings = dataclasses.replace(settings, output=subject.output)
    caveats = [] if subject.declares_preprocessing else [_unknown_preprocessing(subject)]
    if chosen.image_size is not None:
        shifts = settings.shifts_for(tuple(chosen.images.shape[2:]))
        max_shift = max(max(map(abs, steps)) for steps in shifts)
        resizing = subject.transform if shift_before_resize else transform
        sizes = chosen.image_size, resizing.resized_size(chosen.image_size)
        caveats += resized(*sizes, before_resize=shift_before_resize, max_shift=max_shift)
    if not shift_before_resize:
        caveats += other_scale(subject.transform.resize, transform.resize)
    labels, names = None, subject.class_names
    if chosen.labels is not None and labelled and settings.output in MULTILABEL:
        message = (
            f"{subject.name} predicts several labels for an image, "
            f"but {data} has one class for each image, so no accuracy was measured."
        )
        caveats.append(Caveat("labels not used", "limits", message))
    elif chosen.labels is not None and labelled and settings.output in ("auto", *CLASSIFIERS):
        labels, matched = match_labels(
            chosen.labels, chosen.num_classes, chosen.class_names, subject
        )
        caveats += matched
        if names is None and torch.equal(labels, chosen.labels):
            names = chosen.class_names
    preprocessing = transform.describe(chosen.image_size)
    data_facts = {
        "name": chosen.name,
        "image_size": encode(chosen.image_size),
        "used": chosen.description,
        "available_images": chosen.num_available,
        "preprocessing": preprocessing or "none",
        "data_class_names": encode(chosen.class_names),
    }
    order = "before" if shift_before_resize else "after"
    known = {
        "class_names": names,
        "model_facts": {**subject.describe(), "shifted": f"{order} resizing"},
        "data_facts": data_facts,
        "caveats": tuple(caveats),
    }
    kind = subject.kind
    if subject.module is not None:
        kind += f", {known['model_facts']['parameters']:,} parameters"
    size = " × ".join(map(str, chosen.image_size)) if chosen.image_size else "of several sizes"
    details = ", ".join(filter(None, (chosen.description, size, preprocessing)))
    unknown = "" if subject.declares_preprocessing else "its normalization is unknown: see --mean"
    notes = "; ".join(filter(None, (unknown, subject.note)))
    description = f"{subject.name} ({kind}) on {details}{f' ({notes})' if notes else ''}"
    return AuditInputs(subject, function, chosen.images, labels, settings, known, description)


def _unknown_preprocessing(subject: LoadedModel) -> Caveat:
    message = (
        f"{subject.name} does not declare how its images are normalized, so it gets intensities "
        "from 0 to 1. If its accuracy is too low or its predictions are all alike, repeat with the "
        "normalization of its training, for example --mean 0.485 0.456 0.406 --std 0.229 0.224 "
        "0.225 (ImageNet) or --mean 0 --std 0.00392157 (levels up to 255), and with --bgr if it "
        "expects blue first."
    )
    return Caveat("unknown preprocessing", "limits", message)


def place_for_modes(
    subject: LoadedModel, settings: AuditSettings, placed_size: Size = None
) -> tuple[Preprocessing, AuditSettings]:
    """Return the preprocessing with room for shifts in modes `crop` and `canvas`, and the settings.

    Args:
        subject: The model.
        settings: Settings of the audit.
        placed_size: Size of the images before the crop or canvas. Default: the input size of the
            model plus (crop) or minus (canvas) the largest shift on both sides.
    """
    transform, seen = subject.transform, subject.input_size
    wide = [mode for mode in settings.modes if mode in ("crop", "canvas")]
    if not wide and placed_size is not None:
        raise wrong_value("placed_size", placed_size, "None, but for modes crop and canvas")
    if not wide or (seen is None and placed_size is None):
        return transform, settings
    if len(settings.modes) > 1:
        expected = f"{wide[0]} alone: its images are not of the size of the other modes'"
        raise wrong_value("modes", list(settings.modes), expected)
    placed = None if placed_size is None else check_image_size("placed_size", placed_size)
    if seen is None:
        return dataclasses.replace(transform, resize=placed, crop=None), settings
    is_crop = wide == ["crop"]
    reach = settings.reach(seen)
    if placed is None:
        # An even number on each side keeps the rounding of the center crop.
        room = [2 * (step + step % 2) if is_crop else -2 * step for step in reach]
        placed = (seen[0] + room[0], seen[1] + room[1])
    if min(placed) < 1:
        raise wrong_value(
            "max_shift", max(reach), f"less than half of {seen}, the canvas that the model sees"
        )
    resize, crop = placed, None
    # A resize by the shorter side keeps the aspect ratio.
    if isinstance(transform.resize, int) and transform.crop is not None:
        resize, crop = max(*placed, transform.resize if is_crop else 1), placed
    window = {"crop_size" if is_crop else "canvas_size": seen}
    settings = dataclasses.replace(settings, shifts=settings.shifts_for(seen), **window)
    return dataclasses.replace(transform, resize=resize, crop=crop), settings
