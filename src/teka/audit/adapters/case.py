"""What an audit needs, from a model and the name of data: a function, images as it takes them, and facts of both."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.adapters.images import AuditImages, load_images
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.subject import Size, Subject
from teka.audit.caveats import Caveat, resized
from teka.audit.settings import AuditSettings
from teka.checks import check_name, height_and_width
from teka.errors import wrong_value

RESIZING = ("before", "after")
"""Whether images are shifted before or after the resize to the model's size."""


@dataclass(frozen=True, eq=False)
class AuditCase:
    """A model, the images in [0, 1] that its function is shown, before any shift, and what to say of both."""

    subject: Subject
    function: Callable[[Tensor], object]
    images: Float[Tensor, "images channels height width"]
    labels: Int[Tensor, " images"] | None  # as the model counts its classes
    class_names: tuple[str, ...] | None
    settings: AuditSettings
    model_facts: dict[str, object]
    data_facts: dict[str, object]
    caveats: tuple[Caveat, ...]
    description: str


def make_case(
    subject: Subject,
    data: str,
    settings: AuditSettings,
    *,
    data_dir: str | Path | None = None,
    image_size: Size = None,
    num_images: int | None = None,
    placed_size: Size = None,
    shift: str = "after",
    labelled: bool = True,
) -> AuditCase:
    """Load the images that a model is audited with, and say how.

    At most `num_images` test images are loaded at `image_size`. With `shift` "after" they are brought to the model's
    size and then shifted, by its own pixels; with "before" they are shifted as the data have them, and resized by the
    function. In modes `crop` and `canvas` they are placed as `place_for_modes` says. Labels of other classes than the
    model's cannot be used (`labelled`).
    """
    check_name("shift", shift, RESIZING)
    if image_size is None and subject.loads_at_input_size and not data.endswith(".npz"):
        image_size = subject.input_size
    before = shift == "before"
    transform, audited = Preprocessing(subject.transform.in_channels), subject.taking_unplaced_images()
    if not before:
        transform, settings = place_for_modes(subject, settings, placed_size)
        audited = subject
    chosen = load_images(
        data, transform, data_dir=data_dir, image_size=image_size, num_images=num_images, seed=settings.seed
    )
    caveats: tuple[Caveat, ...] = ()
    done = ""
    if chosen.image_size is not None:
        largest = max(max(map(abs, step)) for step in settings.shifts_for(tuple(chosen.images.shape[2:])))
        scaled = (subject.transform if before else transform).resized_size(chosen.image_size)
        caveats = tuple(resized(chosen.image_size, scaled, before_resize=before, max_shift=largest))
        done = transform.describe(chosen.image_size)
    names = subject.class_names or (chosen.class_names if subject.num_classes in (None, chosen.num_classes) else None)
    return AuditCase(
        subject,
        audited.function,
        chosen.images,
        match_labels(chosen.labels, chosen.num_classes, chosen.class_names, subject) if labelled else None,
        names,
        settings,
        {**subject.describe(), "shifted": f"{shift} resizing"},
        {
            "name": chosen.name,
            "image_size": None if chosen.image_size is None else list(chosen.image_size),
            "test_images": chosen.num_available,
            "preprocessing": done or "none",
            "data_class_names": None if chosen.class_names is None else list(chosen.class_names),
        },
        caveats,
        _describe(subject, chosen, done),
    )


def place_for_modes(
    subject: Subject, settings: AuditSettings, placed_size: Size = None
) -> tuple[Preprocessing, AuditSettings]:
    """How images are placed before they are shifted; and the settings with the sizes of window and canvas.

    In modes `crop` and `canvas` the model's size is that of the window or canvas, and the images are larger, or
    smaller, by room for every shift, or of `placed_size`.
    """
    transform, size = subject.transform, subject.input_size
    wide = [mode for mode in settings.modes if mode in ("crop", "canvas")]
    if not wide and placed_size is not None:
        raise wrong_value("placed_size", placed_size, "None, but for modes crop and canvas")
    if not wide or (size is None and placed_size is None):
        return transform, settings
    if len(settings.modes) > 1:
        expected = f"{wide[0]} alone: its images are not of the size of the other modes'"
        raise wrong_value("modes", list(settings.modes), expected)
    placed = None if placed_size is None else height_and_width("placed_size", placed_size)
    if size is None:
        return dataclasses.replace(transform, resize=placed, crop=None), settings
    is_crop, reach = wide == ["crop"], settings.reach(size)
    if placed is None:
        sign = 1 if is_crop else -1
        placed = (size[0] + 2 * sign * reach[0], size[1] + 2 * sign * reach[1])
    if min(placed) < 1:
        raise wrong_value("max_shift", max(reach), f"less than half of {size}, the canvas that the model sees")
    resize, crop = placed, None
    if isinstance(transform.resize, int) and transform.crop is not None:  # whose pictures keep their shape
        resize, crop = max(*placed, transform.resize if is_crop else 1), placed
    return (
        dataclasses.replace(transform, resize=resize, crop=crop),
        dataclasses.replace(
            settings, shifts=settings.shifts_for(size), **{"crop_size" if is_crop else "canvas_size": size}
        ),
    )


def match_labels(
    labels: Int[Tensor, " images"], num_classes: int, class_names: Sequence[str] | None, subject: Subject
) -> Int[Tensor, " images"]:
    """The labels as places among a model's logits.

    Where both have names and every name of the data's is one of the model's, they are matched by name; else label k is
    the model's class k, if it has as many classes as the data.
    """
    known = subject.class_names
    if known is not None and class_names is not None and set(class_names) <= set(known):
        places = torch.tensor([known.index(name) for name in class_names])
        return places[labels]
    if subject.num_classes not in (None, num_classes):
        expected = f"{subject.num_classes}, the classes of {subject.name}, or names that are among its own"
        raise wrong_value("the number of the data's classes", num_classes, expected)
    return labels


def _describe(subject: Subject, chosen: AuditImages, done: str) -> str:
    parameters = subject.describe()["parameters"]
    size = "" if parameters is None else f", {parameters:,} parameters"
    came = "of several sizes" if chosen.image_size is None else f"{chosen.image_size[0]} × {chosen.image_size[1]}"
    images = f"{len(chosen.images):,} of {chosen.num_available:,} test images of {chosen.name}, {came}"
    note = f" ({subject.note})" if subject.note else ""
    return f"{subject.name} ({subject.kind}{size}) on {images}{f', {done}' if done else ''}{note}"
