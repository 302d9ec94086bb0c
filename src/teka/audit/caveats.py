"""Checks for conditions that could make the results of an audit misleading or invalid."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from teka.audit.measure.outputs import LEAST_SCORE
from teka.audit.measure.responses import Responses
from teka.audit.model_call import Model, evaluate_model
from teka.audit.model_output import MULTILABEL
from teka.audit.movement import ImageSet, Movement, background_value
from teka.audit.shifts import CheckedShifts
from teka.audit.statistics.intervals import wilson_interval
from teka.checks import check_name, module_of
from teka.precision import relative_difference
from teka.reporting.formatting import write_share, write_size

SEVERITIES = {
    "invalidates": "These results are invalid",
    "limits": "Limited validity",
    "note": "Worth knowing",
}
"""Heading of the caveats of each severity, the most serious one first."""
FILLING_MODES = ("zero", "canvas")
# Relative differences that are rounding errors: between equal calls, and between different batch
# sizes, which change the order of summation.
REPEAT_ROUNDING = 1e-6
BATCH_ROUNDING = 1e-3
Sizes = Sequence[int]
Size = int | tuple[int, int] | None  # the shorter side, or height and width
WIDE_INTERVAL = 0.05  # half width of an interval that hides the effect of most shifts
BORDER_SHARE = 0.5  # minimum share of equal border pixels that are taken for background
# Share of equal predictions from which the effect of shifts is hidden.
COLLAPSED_SHARE = 0.9
FEW_IMAGES = 10  # from this number on, predictions of one class are suspicious even without labels


@dataclass(frozen=True)
class Caveat:
    """Warning about a condition that could make the results of an audit misleading.

    Args:
        name: Fixed name of the condition, such as "training mode".
        severity: "invalidates", "limits" or "note", see `SEVERITIES`.
        message: What was observed, with numbers, and what the user can do.
    """

    name: str
    severity: str
    message: str

    def __post_init__(self) -> None:
        check_name("severity", self.severity, SEVERITIES)


def validity(
    function: Model,
    images: ImageSet,
    responses: Sequence[Responses],
    repeat: float,
    *,
    batch_size: int,
    confidence: float = 0.95,
) -> Iterator[Caveat]:
    """Check if the results of an audit are valid, and yield a caveat for each problem.

    A caveat of severity "invalidates" means that no result is valid. The checks that call the model
    come last, so that the other caveats are known if a call fails.

    Args:
        function: The model, in evaluation mode.
        images: A few unshifted images as the model takes them.
        responses: The model's responses to all images at every shift, for each mode.
        repeat: Relative difference of two calls on the same images, from `noise_floor`.
        batch_size: Number of images per call.
        confidence: Confidence level of the interval that decides if there are too few images.
    """
    module = module_of(function)
    yield from non_determinism(repeat)
    yield from few_images(min(each.num_images for each in responses), confidence)
    if module is not None:
        yield from random_features(module)
    # A caveat that holds in several modes is listed once.
    by_name: dict[str, Caveat] = {}
    for each in responses:
        for caveat in (*collapsed_predictions(each), *no_better_than_chance(each)):
            by_name.setdefault(caveat.name, caveat)
    yield from by_name.values()
    if responses[0].predictions is None:
        yield from constant_output(function, images, responses[0].output, batch_size)
    yield from batch_dependence(function, images, repeat)


def training_mode(module: nn.Module) -> Iterator[Caveat]:
    """Report that a module was passed in training mode. An audit uses evaluation mode."""
    parts = [name or "the model itself" for name, part in module.named_modules() if part.training]
    if parts:
        message = (
            f"The model was in training mode ({len(parts)} of its parts, the first {parts[0]!r}). "
            "It was measured in evaluation mode, without dropout and with running statistics. Call "
            ".eval() before you use the model."
        )
        yield Caveat("training mode", "note", message)


def non_determinism(repeat: float) -> Iterator[Caveat]:
    """Report that two calls on the same images differ by the relative difference `repeat`."""
    if repeat > REPEAT_ROUNDING:
        message = (
            "The model is not deterministic: two calls on the same images differ by "
            f"{write_size(repeat)} of their size. A part of the model is random in each call, such "
            "as dropout or random features. Make it deterministic and audit again."
        )
        yield Caveat("non-determinism", "invalidates", message)


def few_images(num_images: int, confidence: float) -> Iterator[Caveat]:
    """Report that there are too few images to estimate an accuracy within ±5 points."""
    lower, upper = wilson_interval(round(0.9 * num_images), num_images, confidence)
    if upper - lower > 2 * WIDE_INTERVAL:
        message = (
            f"With {num_images} images, the interval of an accuracy of about 90 % is from "
            f"{write_share(lower)} to {write_share(upper)} %, so smaller differences between "
            "shifts or between models may be chance."
        )
        yield Caveat("too few images", "limits", message)


def random_features(module: nn.Module) -> Iterator[Caveat]:
    """Report layers whose attribute `equivariance` declares "in expectation" for shifts."""
    named = []
    for name, part in module.named_modules():
        declared = getattr(part, "equivariance", None)
        if isinstance(declared, Mapping) and declared.get("shift") == "in expectation":
            named.append(name)
    if named:
        message = (
            f"{len(named)} layers (the first {named[0]!r}) have relative positions inside random "
            "features. They are equivariant only on average over random draws, so a different draw "
            "gives different results."
        )
        yield Caveat("random features", "limits", message)


def batch_dependence(function: Model, images: ImageSet, noise: float) -> Iterator[Caveat]:
    """Report that the output for an image depends on the other images of its batch.

    The output for the first image alone is compared with its output in a batch of eight.

    Args:
        function: The model, in evaluation mode.
        images: A few unshifted images.
        noise: Relative difference of two equal calls, which is tolerated.
    """
    if len(images) < 2:
        return
    try:
        among = evaluate_model(function, images[:8].clone(), "on the first images")[:1]
        alone = evaluate_model(
            function, images[:1].clone(), "on the first image alone", tuple(among.shape)
        )
    except ValueError as error:  # the model may require a fixed batch size
        message = (
            "It is unknown if the output for an image depends on the other images of its batch, "
            f"because a call failed: {error}."
        )
        yield Caveat("batch not checked", "note", message)
        return
    # A detector without detections returns zeros, to which relative differences are undefined.
    difference = 0.0 if torch.equal(alone, among) else relative_difference(alone, among)
    if difference > max(BATCH_ROUNDING, 10 * noise):
        message = (
            "The output for an image depends on the other images of its batch: it changes by "
            f"{write_size(difference)} of its size if the image is evaluated alone. All results "
            "therefore depend on the batches."
        )
        parts = [
            name
            for name, part in (module_of(function) or nn.Module()).named_modules()
            if isinstance(part, _BatchNorm) and not part.track_running_stats
        ]
        if parts:
            layers = ", ".join(parts[:3])
            message += f" Batch normalization has no running statistics in {layers}."
        yield Caveat("batch statistics", "invalidates", message)


def constant_output(
    function: Model, images: ImageSet, output: str, batch_size: int
) -> Iterator[Caveat]:
    """Report that features, maps or boxes are the same for all images."""
    images = images if output == "boxes" else images[:8]
    batches = [batch.clone() for batch in images.split(batch_size)]
    outputs = torch.cat(
        [evaluate_model(function, batch, "on images that are not moved") for batch in batches]
    )
    differ = len(images) > 1 and not torch.equal(images[1:], images[:1].expand_as(images[1:]))
    if output == "boxes" and not bool((outputs[..., 4:] >= LEAST_SCORE).any()):
        message = (
            f"In {len(images)} unshifted images, no object has a score of {LEAST_SCORE} or more. A "
            "detector that finds nothing is consistent at every shift. Check its scores and the "
            "preprocessing of the images."
        )
        yield Caveat("no objects found", "invalidates", message)
    elif output == "segmentation" and len(classes := outputs.argmax(dim=1).unique()) == 1:
        message = (
            f"Every cell of {len(images)} images is of class {int(classes)}. An output that never "
            "changes is the same at every shift, even if the model ignores the image."
        )
        yield Caveat("constant predictor", "invalidates", message)
    elif differ and (outputs - outputs[:1]).abs().max() <= REPEAT_ROUNDING * outputs.abs().max():
        message = (
            f"The output is the same for all of {len(images)} different images. An output that "
            "never changes is the same at every shift, even if the model ignores the image."
        )
        yield Caveat("constant output", "invalidates", message)


def fill_value(images: ImageSet, movement: Movement) -> Iterator[Caveat]:
    """Report that the value that fills new pixels differs from the border of the images."""
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
            f"{write_share(float(share[channel]))} % of the border's pixels are {value:.3g} "
            f"(channel {channel}), but shifts fill new pixels with {float(fill[channel]):.3g}. "
            f"This creates an edge that real images do not have. Set background={value:.4g}, or "
            "audit before normalization."
        )
        yield Caveat("fill value", "limits", message)
    elif lowest < 0 and not fill.any():
        message = (
            f"The images have values from {lowest:.3g} to {highest:.3g}, so they seem to be "
            "normalized. Shifts fill new pixels with 0, which is then the mean color and not black."
        )
        yield Caveat("fill value", "note", message)


def collapsed_predictions(responses: Responses) -> Iterator[Caveat]:
    """Report that nearly all predictions of a classifier, or all labels, are one class.

    Shifts then hardly change the accuracy of any model.
    """
    if responses.predictions is None:
        return
    classes, counts = responses.predictions[responses.evaluated].unique(return_counts=True)
    top = int(classes[counts.argmax()])
    share = float(counts.max() / counts.sum())
    labels = responses.labels
    top_class = f"class {top}"
    if responses.output in MULTILABEL:  # predictions are codes of label sets
        top_class = "one set of labels"
    if labels is not None and len(labels.unique()) == 1:
        same = (
            "have one set of labels"
            if responses.output in MULTILABEL
            else f"are of class {int(labels[0])}"
        )
        message = (
            f"All {responses.num_images} images {same}. A model that always predicts this label is "
            "correct at every shift. Use images of all classes."
        )
        yield Caveat("one class", "limits", message)
    elif share >= COLLAPSED_SHARE:
        note = ""
        if labels is not None:
            label_share = write_share(float((labels == top).double().mean()))
            note = f", the label of {label_share} % of the images"
        message = (
            f"{write_share(share)} % of all predictions are {top_class}{note}. Predictions that "
            "never change are consistent at every shift, even if the model ignores the image."
        )
        name = "constant predictor" if len(classes) == 1 else "collapsed predictions"
        # A few images without labels may well be of one class.
        is_plausible = labels is None and responses.num_images < FEW_IMAGES
        yield Caveat(name, "limits" if is_plausible else "invalidates", message)


def no_better_than_chance(responses: Responses) -> Iterator[Caveat]:
    """Report that a classifier is not significantly better than the most common class."""
    labels = responses.labels
    correct = responses.correct
    if labels is None or correct is None:
        return
    commonest = float(labels.unique(return_counts=True)[1].max() / len(labels))
    accuracy = float(correct[responses.zero].double().mean())
    # Add two standard errors, so that most models at chance are reported.
    limit = commonest + 2 * (commonest * (1 - commonest) / len(labels)) ** 0.5
    # An accuracy of 100 % on few images is not chance.
    if commonest < 1 and accuracy < 1 and accuracy <= limit:
        kind = "set of labels" if responses.output in MULTILABEL else "class"
        message = (
            f"Unshifted, {write_share(accuracy)} % of {len(labels)} images are classified "
            f"correctly, which is not significantly more than the {write_share(commonest)} % of "
            f"always predicting the most common {kind}. Check that the model was trained on these "
            "classes and with the same preprocessing."
        )
        yield Caveat("no better than chance", "invalidates", message)


def unused_labels(responses: Responses) -> Iterator[Caveat]:
    """Report that labels were given for a model that is not a classifier."""
    if responses.predictions is None:
        message = (
            "Labels were given, but the output of the model was interpreted as "
            f"{responses.output}, not as that of a classifier, so no accuracy was measured. If the "
            "model is a classifier, set output, or choose the output that holds its logits."
        )
        yield Caveat("labels not used", "limits", message)


def single_values(responses: Responses) -> Iterator[Caveat]:
    """Report that one value per image was interpreted as the output of a binary classifier."""
    names = {
        "logits": ("logit", "0", "probabilities"),
        "probabilities": ("probability", "½", "logits"),
    }
    if responses.num_values == 1 and responses.output in names:
        kind, threshold, other = names[responses.output]
        message = (
            f"The model returns one value for each image, which was interpreted as the {kind} of "
            f"class 1 of two: class 1 is predicted above {threshold}. If this is wrong, set output "
            f"to {other} or to features."
        )
        yield Caveat("one value read as two classes", "note", message)


def multiples_of_stride(shifts: CheckedShifts, stride: Sizes) -> Iterator[Caveat]:
    """Report that all shifts are multiples of the model's stride, which hides aliasing."""
    between = any(step % side for shift in shifts for step, side in zip(shift, stride, strict=True))
    if max(stride) > 1 and any(map(any, shifts)) and not between:
        message = (
            "Every shift is a multiple of the model's grid of "
            f"{' × '.join(map(str, stride))} pixels, so the effect of shifts between these "
            "multiples, where aliasing occurs, was not measured. Add shifts of 1 pixel."
        )
        yield Caveat("phases unseen", "limits", message)


def other_scale(usual: Size, placed: Size) -> Iterator[Caveat]:
    """Report that the audit resized images to another size than the model's own transform.

    Args:
        usual: Size in the model's own transform.
        placed: Size in the audit, which leaves room for shifts.
    """
    if usual is not None and placed is not None and usual != placed:
        usual_size, audit_size = (
            f"a shorter side of {size}" if isinstance(size, int) else " × ".join(map(str, size))
            for size in (usual, placed)
        )
        message = (
            f"To make room for the shifts, images were resized to {audit_size}. The model's own "
            f"transform resizes to {usual_size}. Even unshifted images therefore had a different "
            "scale than in normal use."
        )
        yield Caveat("other scale", "note", message)


def resized(
    image_size: Sizes, seen_size: Sizes, *, before_resize: bool, max_shift: int | float
) -> Iterator[Caveat]:
    """Report that images were resized, so that pixels of the data and of the model differ.

    Args:
        image_size: Size of the images in the data set.
        seen_size: Size of the model's input.
        before_resize: Whether images were shifted before they were resized.
        max_shift: Largest shift in pixels.
    """
    if tuple(image_size) == tuple(seen_size):
        return
    original, resized_to = (" × ".join(map(str, size)) for size in (image_size, seen_size))
    ratio = seen_size[-1] / image_size[-1]
    message = (
        f"Images of {original} were resized to {resized_to} and then shifted: a shift of "
        f"{max_shift:g} pixels is {max_shift / ratio:.3g} pixels of the original images."
    )
    if before_resize:
        message = (
            f"Images of {original} were shifted and then resized to {resized_to}: one pixel of a "
            f"shift is {ratio:.3g} pixels for the model, and resizing does not commute exactly "
            "with shifts."
        )
    yield Caveat("resize", "note", message)
