"""Caveats of an audit: warnings about conditions that make its results invalid or misleading."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from teka.audit.measure.responses import Responses
from teka.audit.model_call import Model, evaluate_in_batches, output_difference
from teka.audit.model_output import KINDS, MIN_SCORE, MULTILABEL, Sizes, flatten_vectors
from teka.audit.movement import ImageSet, Movement, background_to_tensor
from teka.audit.shifts import CheckedShifts
from teka.audit.statistics.intervals import wilson_interval
from teka.checks import check_name, find_owning_module
from teka.reporting.formatting import format_number, format_share, format_size

SEVERITIES = {
    "invalidates": "These results are invalid",
    "limits": "Limited validity",
    "note": "Worth knowing",
}
"""Headings under which a report lists the caveats, from the most to the least severe ones."""
READ_AS_CLASSES = "one value read as two classes"
READ_AS_LOGITS = "probabilities read as logits"
READ_AS_FEATURES = "output read as features"
# Names of the caveats that the kind of the output was guessed. A verdict mentions them first.
GUESSED_KINDS = (READ_AS_CLASSES, READ_AS_LOGITS, READ_AS_FEATURES)
# Relative differences up to these values count as rounding errors: between two identical calls, and
# between calls with different batch sizes, which change the order of summation.
REPEAT_ROUNDING = 1e-6
BATCH_ROUNDING = 1e-3
Size = int | tuple[int, int] | None  # the shorter side, or height and width
WIDE_INTERVAL = 0.05  # half width above which an interval hides the effect of most shifts
BORDER_SHARE = 0.5  # minimum share of border pixels that must be equal to count as background
# Above this share of equal predictions, shifts have hardly any visible effect.
COLLAPSED_SHARE = 0.9
# With at least this many images, equal predictions are suspicious even without labels.
FEW_IMAGES = 10
# Images whose probabilities differ by at most this value are the same for a classifier.
MIN_SPREAD = 1e-3


@dataclass(frozen=True)
class Caveat:
    """Warning that the results of an audit may be invalid or misleading.

    Args:
        name: Short name of the problem, such as "training mode".
        severity: "invalidates", "limits" or "note", see `SEVERITIES`.
        message: Description of the problem, with the measured numbers and advice for the user.
    """

    name: str
    severity: str
    message: str

    def __post_init__(self) -> None:
        check_name("severity", self.severity, SEVERITIES)


def warn_about_training_mode(module: nn.Module) -> Iterator[Caveat]:
    """Warn if the model was passed in training mode, because an audit uses evaluation mode."""
    parts = [name or "the model itself" for name, part in module.named_modules() if part.training]
    if parts:
        yield Caveat(
            "training mode",
            "note",
            f"The model was in training mode ({len(parts)} of its parts, the first {parts[0]!r}). "
            "The audit used evaluation mode: no dropout, and batch normalization with running "
            "statistics. Call .eval() before you use the model.",
        )


def warn_about_nondeterminism(repeat: float) -> Iterator[Caveat]:
    """Warn if two calls of the model on the same images give different outputs.

    Args:
        repeat: Relative difference between the outputs of the two calls.
    """
    if repeat > REPEAT_ROUNDING:
        yield Caveat(
            "non-determinism",
            "invalidates",
            "The model is not deterministic: the outputs of two calls on the same images differ by "
            f"{format_number(repeat)} of their size. Find the part that is random in each call, "
            "such as dropout or random features, make it deterministic, and audit again.",
        )


def warn_about_few_images(num_images: int, confidence: float) -> Iterator[Caveat]:
    """Warn if there are too few images to estimate an accuracy within ±5 percentage points."""
    lower, upper = wilson_interval(round(0.9 * num_images), num_images, confidence)
    if upper - lower > 2 * WIDE_INTERVAL:
        yield Caveat(
            "too few images",
            "limits",
            f"With only {num_images} image{'' if num_images == 1 else 's'}, the confidence "
            f"interval of an accuracy of 90 % is from {format_share(lower)} to "
            f"{format_share(upper)} %. Differences between shifts or between models that are "
            "smaller than this may be chance. Use more images.",
        )


def warn_about_random_features(module: nn.Module) -> Iterator[Caveat]:
    """Warn about layers that are equivariant only on average over the draws of random features.

    Such layers have the attribute `equivariance = {"shift": "in expectation"}`.
    """
    named = []
    for name, part in module.named_modules():
        declared = getattr(part, "equivariance", None)
        if isinstance(declared, Mapping) and declared.get("shift") == "in expectation":
            named.append(name)
    if named:
        yield Caveat(
            "random features",
            "limits",
            f"{len(named)} layers (the first {named[0]!r}) apply random features to positions. "
            "They are equivariant to shifts only on average over random draws of these features, "
            "so a different draw gives different results.",
        )


def warn_about_batch_dependence(
    function: Model, images: ImageSet, noise: float
) -> Iterator[Caveat]:
    """Warn if the output for an image depends on the other images of its batch.

    The check evaluates the first image alone and in a batch of up to eight images, and compares the
    two outputs.

    Args:
        function: The model, in evaluation mode.
        images: A few unshifted images.
        noise: Relative difference between the outputs of two calls on the same images. Differences
            up to ten times this value are ignored.
    """
    if len(images) < 2:
        return
    try:
        among = evaluate_in_batches(function, images[:8], "on the first images", batch_size=8)[:1]
        alone = evaluate_in_batches(function, images[:1], "on the first image alone", batch_size=1)
        difference = output_difference(alone, among)
    except ValueError as error:  # the model may require a fixed batch size
        yield Caveat(
            "batch not checked",
            "note",
            "The audit could not check whether the output for an image depends on the other images "
            f"of its batch, because a call of the model failed: {error}.",
        )
        return
    if difference > max(BATCH_ROUNDING, 10 * noise):
        message = (
            "The output for an image depends on the other images of its batch. If the image is "
            f"evaluated alone, the output changes by {format_number(difference)} of its size. All "
            "results therefore depend on how images are grouped into batches."
        )
        parts = [
            name
            for name, part in (find_owning_module(function) or nn.Module()).named_modules()
            if isinstance(part, _BatchNorm) and not part.track_running_stats
        ]
        if parts:
            message += f" Batch normalization has no running statistics in {', '.join(parts[:3])}."
        yield Caveat("batch statistics", "invalidates", message)


def warn_about_constant_output(
    images: ImageSet, outputs: Tensor, kind: str, class_names: Sequence[str] | None
) -> Iterator[Caveat]:
    """Warn if a model that is not a classifier returns the same output for different images.

    The warning also covers detectors that find no objects, and segmentations with only one class.
    """
    if kind == "boxes" and not bool((outputs[..., 4:] >= MIN_SCORE).any()):
        yield Caveat(
            "no objects found",
            "invalidates",
            f"In {len(images)} unshifted images, no object has a score of {MIN_SCORE} or more. "
            "A detector that finds nothing gives the same result at every shift. Check the scores "
            "and the preprocessing of the images.",
        )
    elif kind == "segmentation" and len(classes := outputs.argmax(dim=1).unique()) == 1:
        yield Caveat(
            "constant predictor",
            "invalidates",
            f"Every pixel of {len(images)} images is of {_describe_class(classes, class_names)}. A "
            "model that ignores the image also gives the same output at every shift.",
        )
    elif (images != images[:1]).any() and (
        (outputs - outputs[:1]).abs().max() <= REPEAT_ROUNDING * outputs.abs().max()
    ):
        yield Caveat(
            "constant output",
            "invalidates",
            f"The output is the same for {len(images)} different images. A model that ignores the "
            "image also gives the same output at every shift.",
        )


def _describe_class(index: Tensor, class_names: Sequence[str] | None) -> str:
    number = int(index)
    # A model may have more classes than the data names.
    name = dict(enumerate(class_names or ())).get(number, str(number))
    return f"class {number}" if name == str(number) else f"class {number} ({name})"


def warn_about_fill_value(images: ImageSet, movement: Movement) -> Iterator[Caveat]:
    """Warn if shifts fill pixels with a value that differs from the background of the images.

    The most common value of the border pixels is taken as the background. A different fill value
    creates an edge that moves with the image.
    """
    if movement.mode not in ("zero", "canvas"):
        return
    edges = [images.select(axis, index) for axis in (2, 3) for index in (0, -1)]
    border = torch.cat([edge.transpose(0, 1).flatten(1) for edge in edges], dim=1)
    fill = background_to_tensor(images, movement.background).flatten().expand(images.shape[1])
    commonest = border.mode(dim=1).values
    share = (border == commonest[:, None]).double().mean(dim=1)
    wrong = (share >= BORDER_SHARE) & (commonest != fill)
    lowest, highest = map(float, torch.aminmax(images))
    if wrong.any():
        channel = int(wrong.int().argmax())
        value = float(commonest[channel])
        yield Caveat(
            "fill value",
            "limits",
            f"{format_share(float(share[channel]))} % of the border's pixels are {value:.3g} "
            f"(channel {channel}), but shifts fill new pixels with {float(fill[channel]):.3g}. "
            "The shifted images have an edge that real images do not have. To avoid it, set "
            f"background={value:.4g}, or audit images before normalization.",
        )
    elif lowest < 0 and not fill.any():
        yield Caveat(
            "fill value",
            "note",
            f"The images have values from {lowest:.3g} to {highest:.3g}. They seem to be "
            "normalized, so shifts fill new pixels with the mean color, which is 0, instead of "
            "black.",
        )


def warn_about_equal_predictions(
    responses: Responses, outputs: Tensor, class_names: Sequence[str] | None = None
) -> Iterator[Caveat]:
    """Warn if a classifier almost always predicts the same class, or if all labels are equal.

    In both cases, the accuracy hardly changes under shifts, even if the model is sensitive to them.
    Equal predictions make the results invalid, unless the images may well show a single class:
    with labels, if most labels are equal to the prediction; without labels, if there are few images
    or the probabilities differ between the images.

    Args:
        responses: Errors and predictions of the model at every shift.
        outputs: Outputs of the model for a few unshifted images.
        class_names: Name of each class, or None.
    """
    if responses.predictions is None:
        return
    classes, counts = responses.predictions[responses.evaluated].unique(return_counts=True)
    top = classes[counts.argmax()]
    share = float(counts.max() / counts.sum())
    labels = responses.labels

    def describe(prediction: Tensor) -> str:
        if responses.output in MULTILABEL:  # predictions are codes of label sets
            return "one set of labels"
        return _describe_class(prediction, class_names)

    if labels is not None and len(labels.unique()) == 1:
        yield Caveat(
            "one class",
            "limits",
            f"Every image has the label {describe(labels[0])}. A model that ignores the image and "
            "always predicts this label is correct at every shift. Use images of several classes.",
        )
    elif share >= COLLAPSED_SHARE:
        name = "constant predictor" if len(classes) == 1 else "collapsed predictions"
        message = f"{format_share(share)} % of all predictions are {describe(top)}"
        if labels is None:
            probabilities = KINDS[responses.output].log_probabilities
            values = flatten_vectors(outputs, responses.output)
            values = values if probabilities is None else probabilities(values).exp()
            is_varied = float((values - values[:1]).abs().max()) > MIN_SPREAD
            is_plausible = is_varied or responses.num_images < FEW_IMAGES
            name = "one predicted class" if is_plausible else name
        else:
            label_share = float((labels == top).double().mean())
            is_plausible = label_share >= COLLAPSED_SHARE
            message += f", the label of {format_share(label_share)} % of the images"
        message += (
            ". Such a model is consistent at every shift, even if it ignores the image. Add images "
            "of other classes. If there already are some, check the preprocessing."
        )
        yield Caveat(name, "limits" if is_plausible else "invalidates", message)


def warn_about_chance_accuracy(responses: Responses) -> Iterator[Caveat]:
    """Warn if a classifier is not significantly better than always predicting the same class."""
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
        yield Caveat(
            "no better than chance",
            "invalidates",
            f"Unshifted, {format_share(accuracy)} % of {len(labels)} images are classified "
            f"correctly. Always predicting the most common {kind} would be correct for "
            f"{format_share(commonest)} %, so the model is not significantly better. Check that "
            "the model was trained on these classes and with the same preprocessing.",
        )


def warn_about_unused_labels(responses: Responses) -> Iterator[Caveat]:
    """Warn that the audit ignores the labels because the model is not a classifier."""
    if responses.predictions is None:
        yield Caveat(
            "labels not used",
            "limits",
            "The labels were not used, because the output of the model was interpreted as "
            f"{responses.output}. No accuracy was measured. If the model is a classifier, set "
            "output to the kind of its output, such as logits, or select the field of its logits.",
        )


def warn_about_guessed_kind(responses: Responses, outputs: Tensor) -> Iterator[Caveat]:
    """Warn if the kind of the output was guessed, and another kind is plausible too.

    There are three such cases: a single value for each image, values from 0 to 1 that do not sum
    to 1, and outputs with several axes.
    """
    names = {
        "logits": ("logit", "0", "probabilities"),
        "probabilities": ("probability", "½", "logits"),
    }
    if responses.output in names and outputs.flatten(1).shape[1] == 1:
        kind, threshold, other = names[responses.output]
        yield Caveat(
            READ_AS_CLASSES,
            "note",
            "The model returns one value for each image. The audit treats the model as a binary "
            f"classifier and the value as the {kind} of class 1: class 1 is predicted above "
            f"{threshold}. If this is wrong, set output to {other} or to features.",
        )
    elif responses.output == "logits" and bool(((outputs >= 0) & (outputs <= 1)).all()):
        yield Caveat(
            READ_AS_LOGITS,
            "limits",
            "All outputs are from 0 to 1, but do not sum to 1 for an image. The audit treats them "
            "as logits, so the class with the largest value is predicted. If an image can have "
            "several labels, set output to multilabel_probabilities.",
        )
    elif responses.output == "features" and outputs.ndim > 2:
        yield Caveat(
            READ_AS_FEATURES,
            "limits",
            f"The output for an image has shape {tuple(outputs.shape[1:])}. The audit treats it as "
            "features, which should not change under shifts. If the output contains positions, "
            "correct changes count as errors. For a detector, convert the output to boxes (four "
            "corner coordinates and class scores in each row), and set output to boxes.",
        )


def warn_about_missed_aliasing(shifts: CheckedShifts, stride: Sizes) -> Iterator[Caveat]:
    """Warn if all shifts are multiples of the model's stride, because aliasing is then invisible.

    A strided layer moves its output by whole cells at such shifts, even if it breaks equivariance
    at all other shifts.

    Args:
        shifts: All shifts of the audit.
        stride: Largest stride of a layer along each axis, in pixels of the image.
    """
    between = any(step % side for shift in shifts for step, side in zip(shift, stride, strict=True))
    if max(stride) > 1 and any(map(any, shifts)) and not between:
        yield Caveat(
            "phases unseen",
            "limits",
            f"Every shift is a multiple of the model's stride of {format_size(stride)} pixels. "
            "Aliasing has an effect only at other shifts, so the audit did not measure it. Add "
            "shifts of 1 pixel.",
        )


def warn_about_other_scale(model_size: Size, audit_size: Size) -> Iterator[Caveat]:
    """Warn if images are resized to another size than in normal use of the model.

    An audit may do so to make room for shifts. It changes the size of the objects in the images.

    Args:
        model_size: Size to which images are resized in normal use of the model.
        audit_size: Size to which the audit resizes images.
    """
    if model_size is not None and audit_size is not None and model_size != audit_size:
        yield Caveat(
            "other scale",
            "note",
            f"To make room for the shifts, the audit resized images to {format_size(audit_size)} "
            f"instead of {format_size(model_size)}. Objects therefore have a different size in the "
            "audit than in normal use, even in unshifted images.",
        )


def warn_about_resizing(
    image_size: Sizes, seen_size: Sizes, *, before_resize: bool, max_shift: int | float
) -> Iterator[Caveat]:
    """Warn if images were resized, because a shift then has another length in the original images.

    Args:
        image_size: Size of the images in the data set.
        seen_size: Size of the model's input.
        before_resize: Whether images were shifted before they were resized.
        max_shift: Largest shift in pixels.
    """
    if tuple(image_size) == tuple(seen_size):
        return
    original = format_size(image_size)
    resized = format_size(seen_size)
    ratio = seen_size[-1] / image_size[-1]
    message = (
        f"Images of {original} were resized to {resized} and then shifted: a shift of "
        f"{max_shift:g} pixel{'' if max_shift == 1 else 's'} is {max_shift / ratio:.3g} pixels of "
        "the original images."
    )
    if before_resize:
        message = (
            f"Images of {original} were shifted and then resized to {resized}: one pixel of a "
            f"shift is {ratio:.3g} pixels for the model. Resizing a shifted image is not exactly "
            "the same as shifting a resized image, so even an equivariant model may change its "
            "output."
        )
    yield Caveat("resize", "note", message)
