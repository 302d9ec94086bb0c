"""What an audit needs, from a model and the name of data: a function, images as it takes them, and facts of both."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from teka.checks import check_image_size, check_name, check_sizes
from teka.data import load, resize_bilinear
from teka.data.custom_images import find_pictures, has_pictures, read_npz
from teka.data.dataset import hold_out_test
from teka.data.load import NAMES, class_names, find_path
from teka.data.pictures import GRAY_MODES, read_header, read_picture, to_intensities
from teka.errors import wrong_argument, wrong_value

_IMAGES_AT_ONCE = 256


# Names of the audited images in reports, by their part of the data set.
PARTS = {
    "test": ("test images", ""),
    "all": ("images", " (no test part declared)"),
    "held out": ("held-out images", " (the fifth that training did not use)"),
}


@dataclass(frozen=True, eq=False)
class AuditImages:
    """Some of the `num_available` images of a data set, in [0, 1], with channels and size as wanted."""

    name: str
    images: Float[Tensor, "images channels height width"]
    labels: Int[Tensor, " images"]
    num_classes: int
    class_names: tuple[str, ...] | None
    image_size: (
        tuple[int, int] | None
    )  # as the data have them; None if the pictures have several sizes
    num_available: int
    part: str  # one of `PARTS`

    @property
    def words(self) -> str:
        """State the number of images and the part of the data that they come from."""
        kind, remark = PARTS[self.part]
        return f"{len(self.images):,} of {self.num_available:,} {kind} of {self.name}{remark}"


def load_images(
    data: str,
    transform: Preprocessing,
    data_dir: str | Path | None = None,
    image_size: Size = None,
    num_images: int | None = None,
    seed: int = 0,
    held_out: bool = False,
) -> AuditImages:
    """Load test images of what `teka.data.load` takes, with a model's channels and size, in the order of the data.

    Of a folder or a file that declares no test part all images are taken, or with `held_out` the fifth that
    `teka.data.load` holds out for test.
    """
    path = None if data in NAMES else find_path(data, data_dir)
    if path is not None and has_pictures(path):
        parts, names = find_pictures(path)
        part = "test" if "test" in parts else "held out" if held_out else "all"
        found = parts["test" if part == "test" else "all"]
        if part == "held out":
            found = [found[index] for index in hold_out_test(len(found))[1].tolist()]
        chosen = [found[one] for one in _choose(len(found), num_images, seed)]
        images, size = read_pictures([file for file, _ in chosen], transform, image_size)
        labels = torch.tensor([label for _, label in chosen])
        return AuditImages(data, images, labels, len(names), tuple(names), size, len(found), part)
    if path is not None:
        read = read_npz(path)
        part = "test" if read.test is not None else "held out" if held_out else "all"
        test = read.train if part == "all" else read.with_test().test
        if test is None or not len(test):
            raise wrong_argument(f"the test images of {data}", "none", "at least one")
        test = test.to_intensities(image_size)
        num_classes, names = read.num_classes, None
    else:
        dataset = load(data, data_dir=data_dir, image_size=image_size)
        test, part, num_classes, names = (
            dataset.test,
            "test",
            dataset.num_classes,
            class_names(data),
        )
    split = test.take(torch.tensor(_choose(len(test), num_images, seed)))
    images = split.images.to(torch.float32)
    levels = (255 * images).round().to(torch.uint8)
    images = levels if torch.equal(to_intensities(levels), images) else images
    placed = torch.cat([transform.place(part) for part in images.split(_IMAGES_AT_ONCE)])
    size = (images.shape[2], images.shape[3])
    return AuditImages(data, placed, split.labels, num_classes, names, size, len(test), part)


def is_trained_on(subject: LoadedModel, data: str, data_dir: str | Path | None = None) -> bool:
    """Return True if this library trained the model on a folder or a file of the user's, and this is that or a copy."""
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
    # The first of a permutation, so that fewer are part of more.
    return sorted(np.random.default_rng(seed).permutation(available)[:num_images].tolist())


def read_pictures(
    files: Sequence[Path], transform: Preprocessing, image_size: Size = None
) -> tuple[Float[Tensor, "images channels height width"], tuple[int, int] | None]:
    """Pictures as a model takes them, of unknown channels gray if all files are; and their size, if it is one."""
    channels = transform.in_channels
    is_gray = (
        all(read_header(file)[0] in GRAY_MODES for file in files)
        if channels is None
        else channels == 1
    )
    images, sizes = [], set()
    for path in files:
        levels = read_picture(path, in_channels=1 if is_gray else 3)[None]
        levels = levels if image_size is None else resize_bilinear(levels, image_size)
        sizes.add((levels.shape[2], levels.shape[3]))
        images.append(transform.place(levels))
        if images[-1].shape != images[0].shape:
            came, first = (tuple(image.shape[2:]) for image in (images[-1], images[0]))
            raise wrong_value(
                f"the size of {path}",
                came,
                f"{first}, that of {files[0]}, or image_size, or input_size",
            )
    return torch.cat(images), sizes.pop() if len(sizes) == 1 else None


PHOTOGRAPH_SIDE = 128  # pixels
_NUM_HEADERS = 20  # pictures


def usual_mode(data: str, data_dir: str | Path | None = None) -> tuple[str, str]:
    """Return the mode in which data are shifted unless another is asked for, and the reason in words.

    It is "crop" for a folder of pictures of which most have at least `PHOTOGRAPH_SIDE` pixels along the shorter side,
    because that is what moving a camera does, and "circular" for all else.
    """
    path = None if data in NAMES else find_path(data, data_dir)
    if path is None or not has_pictures(path):
        return "circular", "a data set of arrays"
    parts = find_pictures(path)[0]
    files = [file for file, _ in parts.get("test", next(iter(parts.values())))]
    places = np.linspace(0, len(files) - 1, min(len(files), _NUM_HEADERS)).round().astype(int)
    sides = []
    for place in places:
        with contextlib.suppress(ValueError):  # reading the picture says what is wrong with it
            sides.append(min(read_header(files[place])[1:]))
    if sides and float(np.median(sides)) >= PHOTOGRAPH_SIDE:
        return (
            "crop",
            f"most pictures have at least {PHOTOGRAPH_SIDE} pixels along the shorter side",
        )
    return (
        "circular",
        f"most pictures have fewer than {PHOTOGRAPH_SIDE} pixels along the shorter side",
    )


RESIZING = (
    "before",
    "after",
)  # whether images are shifted before or after the resize to the model's size


@dataclass(frozen=True, eq=False)
class AuditInputs:
    """A model, the images in [0, 1] that its function is shown, before any shift, and what to say of both."""

    subject: LoadedModel
    function: Callable[[Tensor], object]
    images: Float[Tensor, "images channels height width"]
    labels: Int[Tensor, " images"] | None  # as the model counts its classes
    settings: AuditSettings
    known: dict[str, Any]  # further arguments of `teka.audit.audit`
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
    shift: str = "after",
    labelled: bool = True,
    held_out: bool | None = None,
    read: Callable[..., AuditImages] = load_images,
) -> AuditInputs:
    """Load the images that a model is audited with, shifted "before" or "after" their resize, and describe both.

    Of data without a test part all images are taken, or with `held_out` the fifth that training holds out; by default
    that is done for a model that was trained on the data. Several models share the images if `read` is one
    `functools.cache(load_images)` for all.
    """
    check_name("shift", shift, RESIZING)
    # The size of digits is that of their canvas: there is no resize before which they could be shifted.
    is_sized_first = shift == "after" or data == "digits"
    if (
        image_size is None
        and subject.loads_at_input_size
        and is_sized_first
        and not data.endswith(".npz")
    ):
        image_size = subject.input_size
    if before := shift == "before":
        transform, audited = (
            Preprocessing(subject.transform.in_channels),
            subject.taking_unplaced_images(),
        )
    else:
        (transform, settings), audited = place_for_modes(subject, settings, placed_size), subject
    held_out = is_trained_on(subject, data, data_dir) if held_out is None else held_out
    chosen = read(
        data, transform.placing, data_dir, image_size, num_images, settings.seed, held_out
    )
    caveats, done = [], transform.describe(chosen.image_size)
    if chosen.image_size is not None:
        largest = max(
            max(map(abs, step)) for step in settings.shifts_for(tuple(chosen.images.shape[2:]))
        )
        scaled = (subject.transform if before else transform).resized_size(chosen.image_size)
        caveats = list(resized(chosen.image_size, scaled, before_resize=before, max_shift=largest))
    if not before:
        caveats += other_scale(subject.transform.resize, transform.resize)
    if settings.output == "auto":
        settings = dataclasses.replace(settings, output=subject.output)
    if labelled and settings.output in MULTILABEL:
        labelled = False
        message = f"{subject.name} predicts several labels for an image, but {data} has one class for each image"
        caveats.append(
            Caveat("labels not used", "limits", f"{message}, so no accuracy was measured.")
        )
    labelled = labelled and settings.output in ("auto", *CLASSIFIERS)
    labels, names = None, subject.class_names
    if labelled:
        labels, matched = match_labels(
            chosen.labels, chosen.num_classes, chosen.class_names, subject
        )
        caveats += matched
        if names is None and torch.equal(labels, chosen.labels):
            names = chosen.class_names
    data_facts = {
        "name": chosen.name,
        "image_size": None if chosen.image_size is None else list(chosen.image_size),
        "used": chosen.words,
        "available_images": chosen.num_available,
        "preprocessing": done or "none",
        "data_class_names": None if chosen.class_names is None else list(chosen.class_names),
    }
    model_facts = subject.describe()
    parameters = (
        "" if model_facts["parameters"] is None else f", {model_facts['parameters']:,} parameters"
    )
    came = (
        "of several sizes" if chosen.image_size is None else " × ".join(map(str, chosen.image_size))
    )
    note = f" ({subject.note})" if subject.note else ""
    model_facts["shifted"] = f"{shift} resizing"
    return AuditInputs(
        subject,
        audited.function,
        chosen.images,
        labels,
        settings,
        {
            "class_names": names,
            "model_facts": model_facts,
            "data_facts": data_facts,
            "caveats": tuple(caveats),
        },
        f"{subject.name} ({subject.kind}{parameters}) on {chosen.words}, {came}{f', {done}' if done else ''}{note}",
    )


def place_for_modes(
    subject: LoadedModel, settings: AuditSettings, placed_size: Size = None
) -> tuple[Preprocessing, AuditSettings]:
    """How images are placed before shifts, with room for these in modes `crop` and `canvas`; and the settings."""
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
    is_crop, reach = wide == ["crop"], settings.reach(seen)
    if placed is None:
        # By an even number on each side, so that where the middle begins is rounded as without it.
        room = [2 * (step + step % 2) if is_crop else -2 * step for step in reach]
        placed = (seen[0] + room[0], seen[1] + room[1])
    if min(placed) < 1:
        raise wrong_value(
            "max_shift", max(reach), f"less than half of {seen}, the canvas that the model sees"
        )
    resize, crop = placed, None
    if (
        isinstance(transform.resize, int) and transform.crop is not None
    ):  # whose pictures keep their shape
        resize, crop = max(*placed, transform.resize if is_crop else 1), placed
    window = {"crop_size" if is_crop else "canvas_size": seen}
    settings = dataclasses.replace(settings, shifts=settings.shifts_for(seen), **window)
    return dataclasses.replace(transform, resize=resize, crop=crop), settings
