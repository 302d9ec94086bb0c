"""What could make an audit mislead. Each check yields what it finds, without being asked for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from teka.audit.images import background_value
from teka.audit.measure.boxes import LEAST_SCORE
from teka.audit.measure.responses import Responses
from teka.audit.model_call import Model, evaluate_model, module_of, relative_difference
from teka.audit.model_output import MULTILABEL
from teka.audit.movement import Movement
from teka.audit.statistics.intervals import wilson_interval
from teka.checks import check_name
from teka.errors import wrong_value
from teka.reporting.formatting import write_share, write_size

SEVERITIES = {
    "invalidates": "These results are invalid",
    "limits": "Limited validity",
    "note": "Worth knowing",
}
"""What each means to a reader, the gravest first."""
FILLING_MODES = ("zero", "canvas")
# Relative differences that are rounding: of two equal calls, and of batches of other sizes, summed in another order.
REPEAT_ROUNDING, BATCH_ROUNDING = 1e-6, 1e-3
Sizes = Sequence[int]
Size = int | tuple[int, int] | None  # the shorter side, or height and width
WIDE_INTERVAL = 0.05  # an interval wider than ± that hides what most shifts do
BORDER_SHARE = 0.5  # of the border's pixels, from which on one value is the images' background
COLLAPSED_SHARE = (
    0.9  # of all answers; so many alike are few enough of another to hide any effect of shifts
)


@dataclass(frozen=True)
class Caveat:
    """Something that could make an audit mislead."""

    name: str  # a few words that stay the same from audit to audit, such as "training mode"
    severity: str  # one of `SEVERITIES`
    message: str  # what was found and what to do, in plain words, with the numbers

    def __post_init__(self) -> None:
        check_name("severity", self.severity, SEVERITIES)


def validity(
    function: Model,
    images: Float[Tensor, "images channels *sizes"],
    responses: Sequence[Responses],
    repeat: float,
    *,
    batch_size: int,
    confidence: float = 0.95,
) -> Iterator[Caveat]:
    """Check the validity of a model's responses.

    `audit`, the command line and `assert_consistent` all use these checks. A caveat of severity "invalidates" voids
    every number. The checks that call the model come last.

    Args:
        function: The model, in evaluation mode.
        images: A few images, not moved, as the model takes them.
        responses: The model's responses to all images at every shift, for each mode.
        repeat: The relative difference of two calls on the same images, as `noise_floor` measures it.
        batch_size: Images for one call.
        confidence: Confidence of the interval that tells whether the images are too few.
    """
    module, output = module_of(function), responses[0].output
    yield from non_determinism(repeat)
    yield from few_images(min(one.num_images for one in responses), confidence)
    if module is not None:
        yield from random_features(module)
    if responses[0].predictions is not None:
        found: dict[str, Caveat] = {}
        for one in responses:
            for caveat in (*collapse(one), *chance(one)):
                found.setdefault(
                    caveat.name, caveat
                )  # one that holds in several modes is described once
        yield from found.values()
    else:
        yield from constant_output(function, images, output, batch_size)
    yield from batch_mates(function, images, repeat)


def training_mode(module: nn.Module) -> Iterator[Caveat]:
    """A part of a module was handed over in training mode; an audit measures it in evaluation."""
    parts = [name or "the model itself" for name, part in module.named_modules() if part.training]
    if parts:
        message = (
            f"The model came in training mode ({len(parts)} of its parts, the first {parts[0]!r}). It was measured in "
            "evaluation mode, without dropout and with the running statistics, and set back afterwards; call .eval() "
            "where you use it."
        )
        yield Caveat("training mode", "note", message)


def non_determinism(repeat: float) -> Iterator[Caveat]:
    """The model is not deterministic: two calls on the same images differ by this relative difference."""
    if repeat > REPEAT_ROUNDING:
        message = (
            f"The model is not deterministic: two calls on the same images differ by {write_size(repeat)} of their "
            "size. Something is drawn anew at each call, such as dropout or random features. Fix the random draw and "
            "audit again."
        )
        yield Caveat("non-determinism", "invalidates", message)


def few_images(num_images: int, confidence: float) -> Iterator[Caveat]:
    """An accuracy of so many images is known to five points only, or worse."""
    lower, upper = wilson_interval(round(0.9 * num_images), num_images, confidence)
    if upper - lower > 2 * WIDE_INTERVAL:
        message = (
            f"With {num_images} images an accuracy of about 90 % is known from {write_share(lower)} to "
            f"{write_share(upper)} %, so smaller differences between shifts, or between models, may be chance."
        )
        yield Caveat("too few images", "limits", message)


def random_features(module: nn.Module) -> Iterator[Caveat]:
    """Layers say of themselves, in `equivariance`, that they follow shifts only on average over their draws."""
    declared = [
        (name, getattr(part, "equivariance", None)) for name, part in module.named_modules()
    ]
    named = [
        name
        for name, kinds in declared
        if isinstance(kinds, Mapping) and kinds.get("shift") == "in expectation"
    ]
    if named:
        message = (
            f"{len(named)} layers (the first {named[0]!r}) have relative positions inside random features: they are "
            "equivariant on average over draws, and not for the draw that was audited. Another draw gives other "
            "numbers."
        )
        yield Caveat("random features", "limits", message)


def batch_mates(
    function: Model, images: Float[Tensor, "images channels *sizes"], noise: float
) -> Iterator[Caveat]:
    """The output for an image depends on its batch: alone it differs from that among the first eight, beyond noise."""
    if len(images) < 2:
        return
    try:
        among = evaluate_model(function, images[:8].clone(), "on the first images")[:1]
        alone = evaluate_model(
            function, images[:1].clone(), "on the first image alone", tuple(among.shape)
        )
    except ValueError as error:  # of a model that takes batches of one size only
        message = (
            f"Whether the output for an image depends on its batch could not be checked: {error}."
        )
        yield Caveat("batch not checked", "note", message)
        return
    # A detector that finds nothing gives zeros, which have no size to divide by.
    difference = 0.0 if torch.equal(alone, among) else relative_difference(alone, among)
    if difference > max(BATCH_ROUNDING, 10 * noise):
        modules = function.named_modules() if isinstance(function, nn.Module) else ()
        parts = [
            name
            for name, part in modules
            if isinstance(part, _BatchNorm) and not part.track_running_stats
        ]
        why = (
            f" It has batch normalisation without running statistics ({', '.join(parts[:3])})."
            if parts
            else ""
        )
        message = (
            f"The output for an image depends on its batch: evaluated alone it changes by {write_size(difference)} of "
            f"its size. Every number here then depends on which images shared a batch.{why}"
        )
        yield Caveat("batch statistics", "invalidates", message)


def constant_output(
    function: Model, images: Float[Tensor, "images channels *sizes"], output: str, batch_size: int
) -> Iterator[Caveat]:
    """Features, maps or boxes do not depend on the images, so that they are the same at every shift as well."""
    images = images if output == "boxes" else images[:8]
    batches = [batch.clone() for batch in images.split(batch_size)]
    found = torch.cat(
        [evaluate_model(function, batch, "on images that are not moved") for batch in batches]
    )
    differ = len(images) > 1 and not torch.equal(images[1:], images[:1].expand_as(images[1:]))
    if output == "boxes" and not bool((found[..., 4:] >= LEAST_SCORE).any()):
        message = (
            f"In {len(images)} images that are not moved, no object has a score of {LEAST_SCORE} or more. A detector "
            "that finds nothing agrees with itself at every shift. Check its scores, and the images' preprocessing."
        )
        yield Caveat("no objects found", "invalidates", message)
    elif output == "segmentation" and len(classes := found.argmax(dim=1).unique()) == 1:
        message = (
            f"Every cell of {len(images)} images is of class {int(classes)}. An output that never changes is the same "
            "at every shift, whatever the model sees."
        )
        yield Caveat("constant predictor", "invalidates", message)
    elif differ and float((found - found[:1]).abs().max()) <= REPEAT_ROUNDING * float(
        found.abs().max()
    ):
        message = (
            f"The output is the same for all of {len(images)} different images. An output that never changes is the "
            "same at every shift, whatever the model sees."
        )
        yield Caveat("constant output", "invalidates", message)


def fill_value(
    images: Float[Tensor, "images channels height width"], movement: Movement
) -> Iterator[Caveat]:
    """The border of the images has mostly one value, and it is another than what shifts bring in."""
    if movement.mode not in FILLING_MODES:
        return
    edges = (images[:, :, 0], images[:, :, -1], images[:, :, :, 0], images[:, :, :, -1])
    border = torch.cat([edge.transpose(0, 1).flatten(1) for edge in edges], dim=1)
    fill = background_value(images, movement.background).flatten().expand(images.shape[1])
    commonest = border.mode(dim=1).values
    share = (border == commonest[:, None]).double().mean(dim=1)
    wrong = (share >= BORDER_SHARE) & (commonest != fill)
    lowest, highest = map(float, torch.aminmax(images))
    if wrong.any():
        channel = int(wrong.int().argmax())
        value = float(commonest[channel])
        message = (
            f"{write_share(float(share[channel]))} % of the border's pixels are {value:.3g} (channel {channel}), but "
            f"shifts bring in {float(fill[channel]):.3g}: a seam that no image has. Give background={value:.4g}, or "
            "audit before normalisation."
        )
        yield Caveat("fill value", "limits", message)
    elif lowest < 0 and not fill.any():
        message = (
            f"The images have values from {lowest:.3g} to {highest:.3g}, so they seem to be normalised, and shifts "
            "bring in 0, which after normalisation is not black but the mean colour."
        )
        yield Caveat("fill value", "note", message)


def collapse(responses: Responses) -> Iterator[Caveat]:
    """A flat curve that says nothing: nearly all answers are one class, or all images are."""
    if responses.predictions is None:
        raise wrong_value("responses.output", responses.output, "'logits'")
    found, counts = responses.predictions[responses.evaluated].unique(return_counts=True)
    top, share = int(found[counts.argmax()]), float(counts.max() / counts.sum())
    labels, top_class = responses.labels, f"class {top}"
    if responses.output in MULTILABEL:  # whose sets of labels are codes
        top_class = "one set of labels"
    if labels is not None and len(labels.unique()) == 1:
        same = (
            "have one set of labels"
            if responses.output in MULTILABEL
            else f"are of class {int(labels[0])}"
        )
        message = (
            f"All {responses.num_images} images {same}. A model that always predicts it is right at every shift; look "
            "at all classes beside this."
        )
        yield Caveat("one class", "limits", message)
    elif share >= COLLAPSED_SHARE:
        of_it = None if labels is None else write_share(float((labels == top).double().mean()))
        of_class = "" if of_it is None else f", and {of_it} % of the images are of it"
        message = (
            f"{write_share(share)} % of all answers are {top_class}{of_class}. Answers that never change are "
            "consistent at every shift, whatever the model sees."
        )
        yield Caveat(
            "constant predictor" if len(found) == 1 else "collapsed predictions",
            "invalidates",
            message,
        )


def chance(responses: Responses) -> Iterator[Caveat]:
    """A classifier is no better than the commonest class."""
    labels, correct = responses.labels, responses.correct
    if labels is None or correct is None:
        return
    commonest = float(labels.unique(return_counts=True)[1].max() / len(labels))
    accuracy = float(correct[responses.zero].double().mean())
    # Two standard errors, so that a model at chance is not missed by luck. Few images that are all right are no chance.
    if (
        commonest < 1
        and accuracy < 1
        and accuracy <= commonest + 2 * (commonest * (1 - commonest) / len(labels)) ** 0.5
    ):
        kind = "set of labels" if responses.output in MULTILABEL else "class"
        message = (
            f"Unshifted, {write_share(accuracy)} % of {len(labels)} images are answered correctly, which is not "
            f"significantly more than the {write_share(commonest)} % of always answering the commonest {kind}. Is the "
            "model trained on these classes, and are the images prepared as in its training?"
        )
        yield Caveat("no better than chance", "invalidates", message)


def unused_labels(responses: Responses) -> Iterator[Caveat]:
    """Labels were given for an output that is not that of a classifier."""
    if responses.predictions is None:
        message = (
            f"Labels were given, but the output of the model was read as {responses.output}, not as that of a "
            "classifier, so no accuracy was measured. If the model is a classifier, say so by the setting output, or "
            "choose the output that holds its logits."
        )
        yield Caveat("labels not used", "limits", message)


def single_values(asked: str, responses: Responses) -> Iterator[Caveat]:
    """One value for each image was read as a classifier's without having been said to be."""
    if (
        asked == "auto"
        and responses.num_values == 1
        and responses.output in ("logits", "probabilities")
    ):
        kind, threshold = (
            ("probability", "½") if responses.output == "probabilities" else ("logit", "0")
        )
        other = "logits" if responses.output == "probabilities" else "probabilities"
        message = (
            f"The model gives one value for each image, which was read as the {kind} of class 1 of two: class 1 is "
            f"predicted above {threshold}. If it is something else, set output to {other} or to features."
        )
        yield Caveat("one value read as two classes", "note", message)


def phases_unseen(shifts: Sequence[Sequence[int | float]], stride: Sizes) -> Iterator[Caveat]:
    """The model's coarsest grid is coarser than one pixel, and every shift a multiple of it: aliasing goes unseen."""
    between = any(step % side for shift in shifts for step, side in zip(shift, stride, strict=True))
    if max(stride) > 1 and any(map(any, shifts)) and not between:
        message = (
            f"Every shift is a multiple of the model's grid of {' × '.join(map(str, stride))} pixels: what happens in "
            "between, where patches cut the image elsewhere, was not looked at. Add shifts of 1 pixel."
        )
        yield Caveat("phases unseen", "limits", message)


def other_scale(usual: Size, placed: Size) -> Iterator[Caveat]:
    """Images were resized to another size than the model's own transform does, to make room for the shifts."""
    if usual is not None and placed is not None and usual != placed:
        own, came = (
            f"a shorter side of {size}" if isinstance(size, int) else " × ".join(map(str, size))
            for size in (usual, placed)
        )
        message = (
            f"So that there is room for the shifts, images were resized to {came}, where the model's own transform "
            f"resizes to {own}: also unshifted, it saw them at another scale than in use."
        )
        yield Caveat("other scale", "note", message)


def resized(
    image_size: Sizes, seen_size: Sizes, *, before_resize: bool, max_shift: int | float
) -> Iterator[Caveat]:
    """Images were resized for the model after or before a shift, so that its pixels are not those of the images."""
    if tuple(image_size) == tuple(seen_size):
        return
    (came, seen), ratio = (
        (" × ".join(map(str, one)) for one in (image_size, seen_size)),
        seen_size[-1] / image_size[-1],
    )
    message = (
        f"Images of {came} were resized to {seen} and then shifted: a shift of {max_shift:g} pixels is "
        f"{max_shift / ratio:.3g} pixels of the images as they came."
    )
    if before_resize:
        message = (
            f"Images of {came} were shifted and then resized to {seen}: one pixel of a shift is {ratio:.3g} pixels for "
            "the model, and resizing itself is no exact translation of them."
        )
    yield Caveat("resize", "note", message)
