"""Inputs of an audit: the images and labels for a model, and their description in the report."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from teka.audit.adapters.labels import match_labels
from teka.audit.adapters.loaded_model import LoadedModel, Size
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.caveats import Caveat, warn_about_other_scale, warn_about_resizing
from teka.audit.model_call import Model
from teka.audit.model_output import CLASSIFIERS, MULTILABEL
from teka.audit.movement import ImageSet
from teka.audit.settings import AuditSettings
from teka.checks import check_image_size, check_sizes
from teka.codec import encode
from teka.data import load, resize_bilinear
from teka.data.custom_images import is_picture_dataset, list_labeled_pictures, read_npz
from teka.data.dataset import draw_train_and_test_indices
from teka.data.load import NAMES, find_dataset_path
from teka.data.pictures import (
    GRAY_MODES,
    SUFFIXES,
    read_picture,
    read_picture_header,
    to_intensities,
)
from teka.errors import to_one_line, wrong_argument, wrong_value
from teka.files import check_existing_folder
from teka.reporting.formatting import format_size
from teka.reporting.tables import LONGEST_TEXT

_IMAGES_AT_ONCE = 256
UNSPLIT = " (the data has no separate test images)"


@dataclass(frozen=True)
class ImageOptions:
    """Options that select the images of an audit.

    Args:
        data: Data set with test images: digits, mnist, fashion-mnist, cifar10, a folder of
            pictures, a CSV file with the columns file and label, or an .npz file.
        data_dir: Folder with the files of the data set.
        images: Largest number of test images. They are drawn at random with --seed. 0 takes all.
        image_size: Size to which the images of the data set are resized when they are loaded: the
            side of a square, or [height,width].
        shift_before_resize: Shift images before they are resized to the model's input size, by
            pixels of the data. By default, they are shifted by pixels of the model's input.
        ignore_labels: Do not measure the accuracy, for example because the data and the model have
            different classes.
        placed_size: Size to which images are resized in the modes crop and canvas, before the
            window is cut out or before they are placed on the canvas. The default leaves room for
            every shift.
    """

    data: str
    data_dir: str | None = None
    images: int = 500
    image_size: Size = None
    shift_before_resize: bool = False
    ignore_labels: bool = False
    placed_size: Size = None

    @property
    def custom_path(self) -> Path | None:
        """Folder or file of custom data, or None for a built-in data set such as "mnist".

        Raises:
            ValueError: The folder `data_dir` for custom data does not exist.
        """
        if self.data in NAMES:
            return None
        if self.data_dir is not None:
            check_existing_folder("data_dir", self.data_dir)
        return find_dataset_path(self.data, self.data_dir)


class AuditImages(NamedTuple):
    """Test images for an audit in [0, 1], with the channels and the size that a model expects.

    Args:
        images: The images.
        labels: Class of each image, or None.
        num_classes: Number of classes of the data set.
        class_names: Names of the classes, or None.
        image_size: Size of the images in the data set, or None if they have several sizes.
        num_available: Number of images from which the images were drawn.
        description: Text such as "500 of 10,000 test images of mnist".
    """

    images: ImageSet
    labels: Int[Tensor, " images"] | None
    num_classes: int
    class_names: tuple[str, ...] | None
    image_size: tuple[int, int] | None
    num_available: int
    description: str


def load_audit_images(
    options: ImageOptions, transform: Preprocessing, seed: int = 0, held_out: bool = False
) -> AuditImages:
    """Draw test images of a data set, and convert them to the channels and the size of a model.

    The result keeps the order of the data set. If the data set has no separate test images, the
    images are drawn from all its images.

    Args:
        options: The data set, and the number and size of the images.
        transform: Preprocessing of the model.
        seed: Seed of the choice of images.
        held_out: If the data set has no separate test images, draw only from the fifth of its
            images that `teka.data.load` does not use for training.

    Raises:
        ValueError: The data cannot be read, or images have different sizes after preprocessing.
    """
    check_sizes({"seed": seed, "images": options.images}, least=0)
    source = _find_available_images(options)
    if not len(source.images):
        raise wrong_argument(f"the test images of {options.data}", "none", "at least one")
    available = torch.arange(len(source.images))
    kind = "test images"
    remark = source.remark
    if remark and held_out:
        available = draw_train_and_test_indices(len(source.images))[1]
        kind = "held-out images"
        remark = " (the fifth that training did not use)"
    elif remark:
        kind = "images"
    # Take the first of a permutation, so that a smaller number gives a subset.
    order = np.random.default_rng(seed).permutation(len(available))[: options.images or None]
    chosen = available[torch.from_numpy(np.sort(order))]
    is_gray = _is_gray(source.images[int(chosen[0])])
    if is_gray and transform.in_channels == 3:
        remark += ", gray repeated in 3 channels"
    elif transform.in_channels == 1 and not is_gray:
        remark += ", converted to gray"
    batches = []
    sizes = set()
    for name, batch in _read_batches(source.images, chosen, transform, options.image_size):
        sizes.add((batch.shape[2], batch.shape[3]))
        batches.append(transform.resize_images(batch))
        size, first = (tuple(images.shape[2:]) for images in (batches[-1], batches[0]))
        if size != first:
            actual = f"{first} and {size} ({name})"
            hint = (
                "The model does not declare the size of its input. Choose the size of its "
                "training, for example with --input-size 224."
            )
            raise wrong_argument("the images", actual, "all of one size", hint)
    return AuditImages(
        torch.cat(batches),
        None if source.labels is None else source.labels[chosen],
        source.num_classes,
        source.class_names,
        sizes.pop() if len(sizes) == 1 else None,
        len(available),
        f"{len(chosen):,} of {len(available):,} {kind} of {options.data}{remark}",
    )


def _is_gray(image: Tensor | Path) -> bool:
    if isinstance(image, Tensor):
        return len(image) == 1
    return read_picture_header(image)[0] in GRAY_MODES


def _read_batches(
    images: Tensor | Sequence[Path], chosen: Tensor, transform: Preprocessing, image_size: Size
) -> Iterator[tuple[str, Tensor]]:
    """Yield the chosen images in batches, each with a file name for error messages.

    A batch of images in memory has the name "". A picture file is a batch of its own. If the model
    accepts any number of channels, all pictures are read in color unless every file is gray.

    Args:
        images: All images in [0, 1], or the paths of their files.
        chosen: Indices of the images.
        transform: Preprocessing of the model.
        image_size: Size to which pictures are resized, or None.
    """
    if isinstance(images, Tensor):
        intensities = images[chosen].to(torch.float32)
        # Pass uint8 values if possible, because they are resized exactly as in the model's library.
        levels = (255 * intensities).round().to(torch.uint8)
        is_exact = torch.equal(to_intensities(levels), intensities)
        for batch in (levels if is_exact else intensities).split(_IMAGES_AT_ONCE):
            yield "", batch
        return
    files = [images[index] for index in chosen.tolist()]
    is_gray = transform.in_channels == 1
    if transform.in_channels is None:
        is_gray = all(map(_is_gray, files))
    for file in files:
        levels = read_picture(file, in_channels=1 if is_gray else 3)[None]
        yield file.name, levels if image_size is None else resize_bilinear(levels, image_size)


class _AvailableImages(NamedTuple):
    """Images from which an audit can draw, either in memory or as picture files.

    Args:
        remark: Remark for the report if the images are not test images, otherwise "".
        images: The images, or the paths of the files.
        labels: Class of each image, or None.
        num_classes: Number of classes.
        class_names: Names of the classes, or None.
    """

    remark: str
    images: Tensor | Sequence[Path]
    labels: Tensor | None = None
    num_classes: int = 0
    class_names: tuple[str, ...] | None = None


def _find_available_images(options: ImageOptions) -> _AvailableImages:
    data = options.data
    path = options.custom_path
    if path is None:
        dataset = load(data, data_dir=options.data_dir, image_size=options.image_size)
        test = dataset.test
        return _AvailableImages(
            "", test.images, test.labels, dataset.num_classes, dataset.class_names
        )
    if not is_picture_dataset(path):
        arrays = read_npz(path)
        remark, split = (UNSPLIT, arrays.train) if arrays.test is None else ("", arrays.test)
        split = split.to_intensities(options.image_size)
        return _AvailableImages(remark, split.images, split.labels, arrays.num_classes)
    if path.is_dir() and not any(map(Path.is_dir, files := sorted(path.iterdir()))):
        pictures = [file for file in files if file.suffix.lower() in SUFFIXES]
        if not pictures:
            hint = f"Pictures have names that end in {', '.join(sorted(SUFFIXES))}."
            raise wrong_argument(f"the pictures in {data}", "none", "one or more", hint)
        tables = [file for file in files if file.suffix.lower() == ".csv"]
        remark = f" (without labels; to use them, pass --data {tables[0]})" if tables else UNSPLIT
        return _AvailableImages(remark, pictures)
    parts, names = list_labeled_pictures(path)
    remark = "" if "test" in parts else UNSPLIT
    labeled = parts.get("test", parts["train"])
    labels = torch.tensor([label for _, label in labeled])
    files = [file for file, _ in labeled]
    return _AvailableImages(remark, files, labels, len(names), tuple(names))


def is_trained_on(model: LoadedModel, options: ImageOptions) -> bool:
    """Return True if teka trained the model on the custom data set from which images are drawn.

    An audit should then avoid the training images. Data sets are the same if they have the same
    path or the same name.
    """
    if options.custom_path is None or model.trained_on is None or model.trained_on in NAMES:
        return False
    known = find_dataset_path(model.trained_on, options.data_dir)
    is_same = known is not None and known.samefile(options.custom_path)
    return is_same or Path(model.trained_on).name == options.custom_path.resolve().name


MIN_PHOTOGRAPH_SIDE = 128  # pixels
_NUM_HEADERS = 20  # pictures


def choose_default_mode(options: ImageOptions) -> tuple[str, str]:
    """Choose the default mode of shifting for a data set, and return it with the reason.

    The mode is "crop" for large photographs, because it resembles a moving camera, and "circular"
    for other images.
    """
    if options.custom_path is None or not is_picture_dataset(options.custom_path):
        return "circular", "the images are not picture files"
    files: Any = _find_available_images(options).images
    sides = []
    for file in files[:: math.ceil(len(files) / _NUM_HEADERS)]:
        with contextlib.suppress(ValueError):  # damaged files are reported when they are read
            sides.append(min(read_picture_header(file)[1:]))
    limit = f"{MIN_PHOTOGRAPH_SIDE} pixels along the shorter side"
    if sides and np.median(sides) >= MIN_PHOTOGRAPH_SIDE:
        return "crop", f"most pictures have at least {limit}"
    return "circular", f"most pictures have fewer than {limit}"


@dataclass(frozen=True, eq=False)
class AuditInputs:
    """Model, images and settings of an audit.

    Args:
        model: The model.
        function: Function that is audited.
        images: Unshifted images in [0, 1], as the function takes them.
        labels: Labels as indices of the model's classes, or None.
        settings: Settings of the audit.
        audit_arguments: Further arguments of `teka.audit.audit`: class names, caveats, and facts
            about the model and the data for the report.
        description: Lines about the model, its images and the mode of shifting, for the terminal.
    """

    model: LoadedModel
    function: Model
    images: ImageSet
    labels: Int[Tensor, " images"] | None
    settings: AuditSettings
    audit_arguments: dict[str, Any]
    description: tuple[str, ...]


def prepare_audit_inputs(
    model: LoadedModel,
    options: ImageOptions,
    settings: AuditSettings,
    *,
    mode_note: str = "",
    held_out: bool | None = None,
    read: Callable[..., AuditImages] = load_audit_images,
) -> AuditInputs:
    """Load the images and labels for the audit of a model, and describe them for the report.

    Labels are converted to the classes of the model. Anything that limits the validity of the
    results, such as an unknown normalization, becomes a caveat.

    Args:
        model: The model.
        options: Options that select the images.
        settings: Settings of the audit.
        mode_note: Remark on the mode of shifting for the report.
        held_out: See `load_audit_images`. By default True if teka trained the model on the data.
        read: Function that loads the images. To share images between models, pass the same
            `functools.cache(load_audit_images)` for all models.
    """
    is_late = options.shift_before_resize
    # Digits have the size of their canvas, so they are not resized.
    is_sized_first = not is_late or options.data == "digits"
    takes_size = is_sized_first and not options.data.endswith(".npz")
    if options.image_size is None and model.loads_at_input_size and takes_size:
        options = replace(options, image_size=model.input_size)
    if is_late:
        function = model.resizing_function()
        transform = Preprocessing(model.in_channels)
    else:
        function = model.function
        transform, settings = choose_size_with_room_for_shifts(model, settings, options.placed_size)
    if held_out is None:
        held_out = is_trained_on(model, options)
    # Without normalization, models with the same input size can share images.
    resizing_only = replace(transform, normalization=None, blue_first=False)
    chosen = read(options, resizing_only, settings.seed, held_out)
    is_crop = list(settings.modes) == ["crop"] and not is_late and options.placed_size is None
    if is_crop and model.input_size is None:
        # The model may accept only some sizes, such as multiples of 32. Therefore it sees windows
        # of the size of the images, which are enlarged.
        sized = replace(model, transform=transform.resized_to(chosen.images.shape[2:]))
        transform, settings = choose_size_with_room_for_shifts(sized, settings)
        chosen = chosen._replace(images=transform.resize_images(chosen.images))
    if settings.output == "auto":
        settings = replace(settings, output=model.output)
    caveats = []
    unknown = ""
    if not model.declares_preprocessing:
        caveats.append(_preprocessing_caveat(is_gray=chosen.images.shape[1] == 1))
        unknown = "normalization unknown (see --mean)"
        if model.input_size is None:
            unknown = "normalization and input size unknown (see --mean and --input-size)"
    if chosen.image_size is not None:
        shifts = settings.shifts_for(tuple(chosen.images.shape[2:]))
        max_shift = max(max(map(abs, steps)) for steps in shifts)
        resizing = model.transform if is_late else transform
        caveats += warn_about_resizing(
            chosen.image_size,
            resizing.resized_size(chosen.image_size),
            before_resize=is_late,
            max_shift=max_shift,
        )
    caveats += warn_about_other_scale(model.transform.resize, transform.resize)
    labels = None
    names = model.class_names
    if chosen.labels is not None and not options.ignore_labels:
        if settings.output in MULTILABEL:
            message = (
                f"No accuracy was measured, because {model.name} predicts several labels for "
                f"an image, but {options.data} has one class for each."
            )
            caveats.append(Caveat("labels not used", "limits", message))
        elif settings.output in ("auto", *CLASSIFIERS):
            labels, matched = match_labels(
                chosen.labels, chosen.num_classes, chosen.class_names, model
            )
            caveats += matched
            if names is None and torch.equal(labels, chosen.labels):
                names = chosen.class_names
    preprocessing = transform.describe(chosen.image_size)
    data_facts = {
        "name": options.data,
        "image_size": encode(chosen.image_size),
        "used": chosen.description,
        "available_images": chosen.num_available,
        "preprocessing": preprocessing or "none",
        "data_class_names": encode(chosen.class_names),
    }
    if mode_note:
        data_facts["mode"] = mode_note
    model_facts = {**model.describe(), "shifted": f"{'before' if is_late else 'after'} resizing"}
    audit_arguments = {
        "class_names": names,
        "model_facts": model_facts,
        "data_facts": data_facts,
        "caveats": tuple(caveats),
    }
    kind = model.kind
    if model.module is not None:
        kind += f", {model_facts['parameters']:,} parameters"
    size = format_size(chosen.image_size) if chosen.image_size else "of several sizes"
    lines = {
        "Model": "; ".join(filter(None, (f"{model.name} ({kind})", unknown, model.note))),
        "Images": ", ".join(filter(None, (chosen.description, size, preprocessing))),
        "Mode": mode_note,
    }
    description = tuple(
        to_one_line(f"{title}: {text}", LONGEST_TEXT) for title, text in lines.items() if text
    )
    return AuditInputs(
        model, function, chosen.images, labels, settings, audit_arguments, description
    )


def _preprocessing_caveat(*, is_gray: bool) -> Caveat:
    # The message does not name the model, so that it is shown once for all models of a comparison.
    message = (
        "The model does not declare how its images are normalized, so it gets values from 0 to 1. "
        "If its accuracy is too low or all its predictions are the same, repeat the audit with the "
        "normalization of its training. Use --mean 0.5 --std 0.5 for values from −1 to 1, or "
        "--mean 0 --std 0.00392157 for values from 0 to 255."
    )
    if not is_gray:
        message += (
            " For the normalization of ImageNet, use --mean 0.485 0.456 0.406 --std 0.229 0.224 "
            "0.225. If the model expects the channels in the order blue, green, red, add --bgr."
        )
    return Caveat("unknown preprocessing", "limits", message)


def choose_size_with_room_for_shifts(
    model: LoadedModel, settings: AuditSettings, placed_size: Size = None
) -> tuple[Preprocessing, AuditSettings]:
    """Choose a size of the images that leaves room for shifts in the modes "crop" and "canvas".

    In mode "crop", a window of the model's input size moves over larger images. In mode "canvas",
    smaller images move over a canvas of the model's input size. Other modes need no room.

    Args:
        model: The model.
        settings: Settings of the audit.
        placed_size: Size of the images before the crop or on the canvas. By default the input size
            of the model plus (crop) or minus (canvas) the largest shift on both sides.

    Returns:
        The preprocessing that gives images this size, and the settings for these images.
    """
    transform = model.transform
    seen = model.input_size
    wide = [mode for mode in settings.modes if mode in ("crop", "canvas")]
    if not wide and placed_size is not None:
        expected = "None, because only modes crop and canvas use it"
        raise wrong_value("placed_size", placed_size, expected)
    if not wide or (seen is None and placed_size is None):
        return transform, settings
    if len(settings.modes) > 1:
        hint = "Other modes need another image size."
        raise wrong_value("modes", list(settings.modes), f"{wide[0]} alone", hint)
    size = None if placed_size is None else check_image_size("placed_size", placed_size)
    if seen is None:
        return replace(transform, resize=size, crop=None), settings
    is_crop = wide == ["crop"]
    largest = settings.largest_steps(seen)
    if size is None:
        # An even number on each side keeps the rounding of the center crop.
        room = [2 * (step + step % 2) if is_crop else -2 * step for step in largest]
        size = (seen[0] + room[0], seen[1] + room[1])
    if min(size) < 1:
        expected = f"less than half of {seen}, the canvas that the model sees"
        raise wrong_value("max_shift", max(largest), expected)
    resize = size
    crop = None
    # A resize by the shorter side keeps the aspect ratio.
    if isinstance(transform.resize, int) and transform.crop is not None:
        resize = max(*size, transform.resize if is_crop else 1)
        crop = size
    window = {"crop_size" if is_crop else "canvas_size": seen}
    settings = replace(settings, shifts=settings.shifts_for(seen), **window)
    return replace(transform, resize=resize, crop=crop), settings
