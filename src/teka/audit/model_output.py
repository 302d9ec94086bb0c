"""Selection of the tensor that an audit measures from a model's output, and its kind.

A model may return a tensor, or a structure such as a dictionary or dataclass. `FIELD_READERS` lists
the fields of structures that an audit can use. `KINDS` lists the supported kinds of tensors, such
as logits or features. For all other outputs, an error is raised.
"""

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from teka.checks import check_stride
from teka.errors import unknown_name_error, wrong_value
from teka.precision import to_widest_dtype

Images = Float[Tensor, "batch channels *sizes"]
Boxes = Float[Tensor, "batch boxes numbers"]
Values = Shaped[Tensor, "batch values"]
Predictions = Int[Tensor, " batch"]
Sizes = Sequence[int]

MAX_BOXES = 300  # boxes per image, those with the highest scores
MIN_SCORE = 0.5  # minimum score of a detected object
# Minimum intersection over union at which boxes of a class show the same object, as in Ultralytics.
SAME_OBJECT = 0.7
YOLO_STRIDES = (8, 16, 32)  # pixels between neighboring boxes, on three grids
CLASS_TOKEN = re.compile(r"(^|\.)(cls|class)_?(token|embedding)s?(\.weight|\.data)?$")
EXACT_LABELS = 62  # maximum number of labels for which every set of labels has a unique code
SUM_TOLERANCE = 1e-3  # tolerance for the sum of probabilities in single precision


class ModelError(ValueError):
    """Error that is raised if a model fails or returns an output that cannot be audited.

    The attribute `responses` contains the results that were measured before the error, or None.

    >>> import torch
    >>> from teka.audit import ModelError, Movement, measure_responses
    >>> images = torch.rand(2, 1, 2, 3)
    >>> try:
    ...     measure_responses(lambda images: images.mean(), images, [(0, 0)], Movement("zero"))
    ... except ModelError as error:
    ...     print(str(error)[:79])
    the output of the model at shift (0, 0), images 0 to 1 has shape (), expected (
    """

    responses: Any = None


class SelectedOutput(NamedTuple):
    """Tensor that an audit measures, selected from a model's output.

    Args:
        values: Tensor (B, …).
        kind: Kind of the tensor, a name in `KINDS`, or "auto" if `infer_kind` still has to infer
            the kind from the shape and the values.
    """

    values: Tensor
    kind: str


class OutputSource(NamedTuple):
    """Model and images from which an output was computed.

    Args:
        images: The images that were passed to the model.
        module: The model, if it is a module.
        num_classes: Number of classes, if known.
    """

    images: Images
    module: nn.Module | None = None
    num_classes: int | None = None


# --- Selection of the measured field of a structured output


def upsample_segmentation(
    value: Any, source: OutputSource
) -> Float[Tensor, "batch classes *sizes"]:
    """Upsample a segmentation map to the size of the images with bilinear interpolation."""
    return interpolate(value, tuple(source.images.shape[2:]), mode="bilinear", align_corners=False)


def hidden_state_to_features(value: Any, source: OutputSource) -> Float[Tensor, "batch features"]:
    """Convert the hidden state of a model to one feature vector for each image.

    - For tokens (B, L, C), this is the class token if the model has one, and otherwise the mean
      over the tokens.
    - For a feature map (B, C, H, W), it is the mean over all positions. A map has the layout
      (B, H, W, C) if only its last axis has the `hidden_size` of the model's config.
    - For a tuple of feature maps, it is the mean of the last map.
    """
    state = as_tensor(value[-1] if isinstance(value, tuple) else value)
    module = source.module
    if state.ndim > 3:
        width = getattr(getattr(module, "config", None), "hidden_size", None)
        is_channels_last = state.shape[-1] == width != state.shape[1]
        state = state if is_channels_last else state.movedim(1, -1)
        return state.flatten(1, -2).mean(dim=1)
    if state.ndim < 3:
        return state
    if module is None:
        raise ValueError(
            "is a hidden state, which can be read only if a torch.nn.Module returns it"
        )
    has_class_token = any(CLASS_TOKEN.search(name) for name, _ in module.named_parameters())
    return state[:, 0] if has_class_token else state.mean(dim=1)


def convert_detr_boxes(logits: Tensor, pred_boxes: Tensor, source: OutputSource) -> Boxes:
    """Convert the outputs of a detector such as DETR to boxes in pixels, with a score per class.

    If there is one more logit than there are classes, the last logit stands for "no object", and
    the scores are the softmax of the logits (DETR, YOLOS). Otherwise, each score is the sigmoid of
    its logit (RT-DETR).

    Args:
        logits: Logits (B, M, K) of M boxes.
        pred_boxes: Centers and sizes (B, M, 4), relative to the image.
        source: The model and its input.
    """
    height, width = source.images.shape[2:]
    has_no_object = source.num_classes is not None and logits.shape[-1] == source.num_classes + 1
    scores = logits.softmax(dim=-1)[..., :-1] if has_no_object else logits.sigmoid()
    corners = _to_corners(pred_boxes)
    return torch.cat([corners * corners.new_tensor([width, height] * 2), scores], dim=-1)


def _to_corners(boxes: Tensor) -> Tensor:
    center, size = boxes.split(2, dim=-1)
    return torch.cat([center - size / 2, center + size / 2], dim=-1)


def convert_torchvision_detections(
    detections: Sequence[Mapping[str, Tensor]], source: OutputSource
) -> Boxes:
    """Convert the outputs of a torchvision detector to boxes in pixels, with a score per class.

    Args:
        detections: Dictionary of each image with the keys "boxes", "scores" and "labels".
        source: The model and its input.
    """
    labels = [0, *torch.cat([image["labels"] for image in detections]).tolist()]
    boxes = source.images.new_zeros(
        len(detections), MAX_BOXES, 4 + (source.num_classes or 1 + max(labels))
    )
    for row, image in zip(boxes, detections, strict=True):
        best = image["scores"].argsort(descending=True)[:MAX_BOXES]
        row[: len(best), :4] = image["boxes"][best]
        row[torch.arange(len(best)), 4 + image["labels"][best]] = image["scores"][best]
    return boxes


def is_yolo_output(values: Tensor, images: Images) -> bool:
    """Return True if an output looks like that of a YOLO detector, version 8 or later.

    Such an output has the shape (B, 4 + classes, boxes), with one box for each cell of the three
    grids of YOLO, and scores from 0 to 1.
    """
    if values.ndim != 3 or images.ndim != 4 or values.shape[1] < 5:
        return False
    grids = ([-(-side // stride) for side in images.shape[2:]] for stride in YOLO_STRIDES)
    scores = values[:, 4:]
    is_score = (scores >= 0) & (scores <= 1)
    return values.shape[2] == sum(map(math.prod, grids)) and bool(is_score.all())


def convert_yolo_boxes(values: Float[Tensor, "batch numbers boxes"]) -> Boxes:
    """Convert the output of a YOLO detector to boxes in pixels, with a score per class.

    YOLO finds most objects several times. Therefore, all scores of a box become 0 if another box of
    the same class has a higher score and overlaps it with an intersection over union above 0.7
    (Fast NMS, Bolya et al. 2019, arXiv:1904.02689).

    Args:
        values: Centers and sizes in pixels, followed by the scores of the classes, for each box.
    """
    boxes = torch.cat([_to_corners(values[:, :4].mT), values[:, 4:].mT], dim=-1)
    for image in boxes:
        score, kind = image[:, 4:].max(dim=1)
        order = score.argsort(descending=True)[: int((score >= MIN_SCORE).sum())]
        shares = intersection_over_union(image[order, :4], image[order, :4])
        is_same = (shares > SAME_OBJECT) & (kind[order, None] == kind[order])
        image[order[is_same.triu(diagonal=1).any(dim=0)], 4:] = 0
    return boxes


def intersection_over_union(
    boxes: Float[Tensor, "first 4"], others: Float[Tensor, "second 4"]
) -> Float[Tensor, "first second"]:
    """Return the intersection over union of each pair of boxes, or 0 for boxes without area."""
    low = torch.maximum(boxes[:, None, :2], others[:, :2])
    high = torch.minimum(boxes[:, None, 2:], others[:, 2:])
    shared = (high - low).clamp(min=0).prod(dim=-1)
    areas = [(each[:, 2:] - each[:, :2]).clamp(min=0).prod(dim=-1) for each in (boxes, others)]
    union = areas[0][:, None] + areas[1] - shared
    return torch.where(union > 0, shared / union, 0.0)


class FieldReader(NamedTuple):
    """Rule for reading the tensor that an audit measures from fields of a structured output.

    Args:
        names: Names of the fields that the output must have.
        kind: Kind of the resulting tensor, a name in `KINDS` or "auto".
        read: Function that takes the values of the fields and an `OutputSource`, and returns the
            tensor. By default, it returns the value of the only field.
    """

    names: tuple[str, ...]
    kind: str
    read: Callable[..., Tensor] = lambda value, source: as_tensor(value)


# The first rule whose fields are all present is used.
FIELD_READERS = (
    FieldReader(("logits", "pred_boxes"), "boxes", convert_detr_boxes),
    FieldReader(("logits",), "auto"),
    FieldReader(("out",), "segmentation", upsample_segmentation),
    FieldReader(("image_embeds",), "features"),
    FieldReader(("pooler_output",), "features"),
    FieldReader(("cls_token_value",), "features"),
    FieldReader(("last_hidden_state",), "features", hidden_state_to_features),
    FieldReader(("feature_maps",), "features", hidden_state_to_features),
)
DETECTION = {"boxes", "scores", "labels"}
FIELD_NAMES = tuple(dict.fromkeys(name for field in FIELD_READERS for name in field.names))
EXPECTED_OUTPUT = f"one tensor, or one of the fields {', '.join(FIELD_NAMES)}"


def select_output(result: object, source: OutputSource, name: str | None = None) -> SelectedOutput:
    """Select the tensor to measure from a model's output.

    Args:
        result: Output of the model: a tensor or an array, or a dictionary, dataclass, tuple or list
            of tensors.
        source: The model and its input.
        name: Name of the field, or its index in a tuple. By default, the first rule of
            `FIELD_READERS` whose fields are all present is used.

    Raises:
        ValueError: The output does not have the named field or any supported field. The message
            lists the fields that the output has.
    """
    fields = output_fields(result)
    if name is None:
        values, kind = _select_field(result, fields, source)
    elif fields is None or name not in fields:
        hint = f"The output of the model {describe_output(result)}."
        raise ModelError(str(unknown_name_error("output_name", name, fields or (), hint)))
    else:
        values = as_tensor(fields[name])
        kind = "auto"
    # Restore the batch axis if the model removed it for a single image. Turn (B,) into (B, 1).
    if len(source.images) == 1 and (values.ndim == 0 or len(values) != 1):
        values = values[None]
    if kind == "auto" and is_yolo_output(values, source.images):
        return SelectedOutput(convert_yolo_boxes(values), "boxes")
    return SelectedOutput(values[:, None] if values.ndim == 1 else values, kind)


def _select_field(
    result: Any, fields: Mapping[str, object] | None, source: OutputSource
) -> tuple[Tensor, str]:
    if fields is None:
        return as_tensor(result), "auto"
    if isinstance(result, list) and all(
        isinstance(image, Mapping) and image.keys() >= DETECTION for image in result
    ):
        return convert_torchvision_detections(result, source), "boxes"
    present = {key: value for key, value in fields.items() if value is not None}
    for field in FIELD_READERS:
        if present.keys() >= set(field.names):
            return field.read(*(present[key] for key in field.names), source), field.kind
    tensors = [value for value in present.values() if isinstance(value, Tensor | np.ndarray)]
    if len(tensors) != 1:
        hint = "; output_name chooses one of several" if tensors else ""
        raise ValueError(f"{describe_output(result)}, expected {EXPECTED_OUTPUT}{hint}")
    return as_tensor(tensors[0]), "auto"


def as_tensor(value: object) -> Tensor:
    """Return a tensor or NumPy array as a tensor, or raise an error if it is not dense and real."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        try:
            value = torch.tensor(array.astype(array.dtype.newbyteorder("=")))
        except TypeError:
            raise ValueError(f"is an array of {array.dtype}, expected real numbers") from None
    if not isinstance(value, Tensor):
        raise ValueError(f"{describe_output(value)}, expected {EXPECTED_OUTPUT}")
    device = value.device.type
    if value.layout != torch.strided or value.is_nested or value.is_quantized or device == "meta":
        raise ValueError(
            f"is a tensor of layout {value.layout} on {device}, expected a dense tensor"
        )
    if value.is_complex():
        raise ValueError(f"is of {value.dtype}, expected real values")
    return value


def describe_output(result: object) -> str:
    """Describe the type of an output for error messages, as a clause that follows "the output".

    An example is "is a dict of 'logits' (torch.float32 of shape (2, 10))".
    """
    fields = output_fields(result)
    kind = type(result).__name__
    if result is None or isinstance(result, Tensor | np.ndarray):
        return f"is {_describe_field(result)}"
    if fields is None:
        return f"is of type {kind}"
    names = [f"{key!r} ({_describe_field(value)})" for key, value in fields.items()]
    more = " …" if len(names) > 8 else ""
    return f"is a {kind} of {', '.join(names[:8])}{more}" if names else f"is an empty {kind}"


def _describe_field(value: object) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return "None" if value is None else type(value).__name__


def output_fields(result: object) -> dict[str, object] | None:
    """Return the fields of a structured output: a dictionary, tuple, list, dataclass or object.

    The keys are the names of the fields, or their indices in a tuple or list. For an output without
    fields, such as a tensor, return None.
    """
    if isinstance(result, Tensor | np.ndarray | np.generic | nn.Module | str | bytes | type):
        return None
    if isinstance(result, Mapping):
        return {str(key): value for key, value in result.items()}
    if isinstance(result, tuple | list):
        names = getattr(result, "_fields", map(str, range(len(result))))  # of a named tuple
        return dict(zip(names, result, strict=True))
    names = FIELD_NAMES
    if dataclasses.is_dataclass(result):
        names = [field.name for field in dataclasses.fields(result)]
    return {name: getattr(result, name) for name in names if hasattr(result, name)} or None


# --- Kinds of output tensors


def _vector_length(values: Tensor) -> int:
    """Return n if an output contains a vector of n values for each image, and 0 otherwise.

    Axes of size 1 are ignored, so that (B, n, 1, 1) is such an output too.
    """
    sizes = [size for size in values.shape[1:] if size != 1]
    return 0 if len(sizes) > 1 else math.prod(sizes)


def _is_vector(values: Tensor, image_size: Sizes) -> bool:
    return _vector_length(values) > 0


def _is_map(values: Tensor, image_size: Sizes) -> bool:
    """Return True if an output has the axes of a map: (B, C, *S), as the images have."""
    return values.ndim == 2 + len(image_size)


def _has_integer_stride(values: Tensor, image_size: Sizes) -> bool:
    """Return True if an output is a map whose stride, the pixels per cell, is a whole number."""
    return _is_map(values, image_size) and not any(map(operator.mod, image_size, values.shape[2:]))


def _is_in_unit_interval(values: Tensor, image_size: Sizes) -> bool:
    return _is_vector(values, image_size) and bool(((values >= 0) & (values <= 1)).all())


def _are_probabilities(values: Tensor, image_size: Sizes) -> bool:
    """Return True if an output contains one value in [0, 1] per image, or several that sum to 1."""
    if not _is_in_unit_interval(values, image_size):
        return False
    sums = to_widest_dtype(values).flatten(1).sum(dim=1)
    tolerance = max(SUM_TOLERANCE, 2 * torch.finfo(values.dtype).eps)
    return _vector_length(values) == 1 or bool(((sums - 1).abs() <= tolerance).all())


def _predict_class(values: Values, threshold: float) -> Predictions:
    """Return the class with the largest value. A single value above the threshold means class 1."""
    return values.argmax(dim=1) if values.shape[1] > 1 else (values[:, 0] > threshold).long()


def _to_class_indices(values: Values) -> Predictions:
    """Convert the output (B, 1) of a model that returns classes to integers (B,)."""
    if (values < 0).any():
        smallest = int(values.min())
        raise ValueError(
            f"the output of the model holds the class {smallest}, expected classes of at least 0"
        )
    return values[:, 0].long()


def logits_to_log_probabilities(values: Values) -> Float[Tensor, "batch classes"]:
    """Convert logits to log probabilities. A single logit belongs to class 1 of two classes."""
    logits = to_widest_dtype(values)
    return (logits if logits.shape[1] > 1 else pad(logits, (1, 0))).log_softmax(dim=1)


def probabilities_to_log_probabilities(values: Values) -> Float[Tensor, "batch classes"]:
    """Convert probabilities to their logarithms. A single value belongs to class 1 of two."""
    shares = to_widest_dtype(values)
    shares = shares if shares.shape[1] > 1 else torch.cat([1 - shares, shares], dim=1)
    # Clamp zeros to the smallest normal float32, so that divergences stay finite.
    return shares.clamp(min=torch.finfo(torch.float32).tiny).log().log_softmax(dim=1)


def encode_label_sets(labels: Shaped[Tensor, "batch labels"]) -> Predictions:
    """Encode the set of labels of each image as one integer, so that sets are easy to compare.

    With up to 62 labels, the integer is the sum of 2^k over the labels k of the image, so different
    sets have different integers. With more labels, fixed random integers replace the powers of two,
    and the sum is taken modulo 2^62.

    Args:
        labels: Matrix of 0 and 1 with a row for each image and a column for each label.
    """
    num_labels = labels.shape[1]
    weights = 2 ** torch.arange(min(num_labels, EXACT_LABELS))
    if num_labels > EXACT_LABELS:
        generator = torch.Generator().manual_seed(0)
        weights = torch.randint(2**EXACT_LABELS, (num_labels,), generator=generator)
    return (labels.long() * weights.to(labels.device)).sum(dim=1) & (2**EXACT_LABELS - 1)


class OutputKind(NamedTuple):
    """Kind of output that a model returns, such as logits, features or boxes.

    Args:
        expected: Description of a valid output, for error messages.
        accepts: Function that takes an output and the spatial sizes of the images, and returns True
            if the output may be of this kind. The dtype is checked separately.
        predict: Function that returns the predicted classes, for classifiers.
        log_probabilities: Function that returns the log probabilities of the classes, or None if
            the output does not determine them.
    """

    expected: str
    accepts: Callable[[Tensor, Sizes], bool]
    predict: Callable[[Values], Predictions] | None = None
    log_probabilities: Callable[[Values], Tensor] | None = None


KINDS = {
    "dense": OutputKind(
        "a floating-point map for each image, shape (batch, channels, *sizes)", _is_map
    ),
    "classes": OutputKind(
        "the class of each image as a whole number, shape (batch,)",
        lambda values, image_size: _vector_length(values) == 1,
        _to_class_indices,
    ),
    "multilabel_probabilities": OutputKind(
        "a probability from 0 to 1 for each image and label, shape (batch, labels)",
        _is_in_unit_interval,
        lambda values: encode_label_sets(values > 0.5),
    ),
    "multilabel": OutputKind(
        "a floating-point logit for each image and label, shape (batch, labels)",
        _is_vector,
        lambda values: encode_label_sets(values > 0),
    ),
    "probabilities": OutputKind(
        "probabilities (batch, classes) that sum to 1, or one probability for each image",
        _are_probabilities,
        partial(_predict_class, threshold=0.5),
        probabilities_to_log_probabilities,
    ),
    "logits": OutputKind(
        "a floating-point logit for each image and class, (batch, classes) or (batch,)",
        _is_vector,
        partial(_predict_class, threshold=0.0),
        logits_to_log_probabilities,
    ),
    "features": OutputKind("(batch, …) of floating-point numbers", lambda values, image_size: True),
    "segmentation": OutputKind(
        "a floating-point map of logits, (batch, classes, *sizes) with two or more classes",
        lambda values, image_size: _is_map(values, image_size) and values.shape[1] > 1,
    ),
    "boxes": OutputKind(
        "four coordinates and class scores of each box, shape (batch, boxes, 4 + classes)",
        lambda values, image_size: (
            values.ndim == 3 and values.shape[2] > 4 and len(image_size) == 2
        ),
    ),
}
OUTPUT_CHOICES = ("auto", *KINDS)
MAPS = ("dense", "segmentation")
MULTILABEL = ("multilabel", "multilabel_probabilities")
CLASSIFIERS = tuple(name for name, kind in KINDS.items() if kind.predict is not None)
# Kinds of output that should not change under a shift.
INVARIANT_OUTPUTS = tuple(name for name in KINDS if name not in (*MAPS, "boxes"))


def _choose_kind(values: Tensor, image_size: Sizes, has_stride: bool, label_axes: int) -> str:
    """Guess the kind of an output from its shape and values."""
    if not values.is_floating_point():
        return "classes"
    is_dense = _has_integer_stride(values, image_size) and max(values.shape[2:]) > 1
    if is_dense or (has_stride and _is_map(values, image_size)):
        return "dense"
    length = _vector_length(values)
    if not length:
        return "features"
    if _are_probabilities(values, image_size) and not (length == 1 and label_axes == 2):
        return "probabilities"
    if label_axes < 2:
        return "logits"
    return "multilabel_probabilities" if _is_in_unit_interval(values, image_size) else "multilabel"


def infer_kind(
    values: Tensor,
    image_size: Sizes,
    kind: str = "auto",
    stride: int | Sequence[int] | None = None,
    label_axes: int = 0,
) -> tuple[str, tuple[int, ...] | None]:
    """Return the kind of an output, such as "logits", and its stride if it is a map.

    The stride is the number of image pixels per cell of the map.

    Args:
        values: Output (B, …) for a batch of images.
        image_size: Spatial sizes of the images.
        kind: Requested kind, a name in `KINDS`, or "auto" to infer it from shape and values.
        stride: Stride of the map. By default, the size of the images divided by the size of the
            map.
        label_axes: Number of axes of the labels: 0 without labels, 1 for classes, 2 for
            multi-label targets.

    Raises:
        ValueError: The output does not fit the requested kind, or it fits no kind.
    """
    expected = "floating-point numbers (batch, …), or a whole number for the class of each image"
    if kind == "auto":
        kind = _choose_kind(values, image_size, stride is not None, label_axes)
    else:
        expected = f"{KINDS[kind].expected}, because the requested kind is {kind!r}"
    # Only classes are whole numbers.
    is_right_dtype = values.is_floating_point() == (kind != "classes")
    if not (is_right_dtype and KINDS[kind].accepts(values, image_size)):
        raise ValueError(f"the output of the model {describe_output(values)}, expected {expected}")
    shape = tuple(values.shape)
    if kind not in MAPS:
        if stride is not None:
            expected = f"None, since an output of shape {shape} is not a dense one"
            raise wrong_value("stride", stride, expected)
        return kind, None
    if stride is not None:
        return kind, check_stride(stride, len(image_size))
    if not _has_integer_stride(values, image_size):
        expected = f"sizes that divide {tuple(image_size)}, those of the images; or give stride"
        raise ValueError(f"the output of the model has shape {shape}, expected {expected}")
    return kind, tuple(map(operator.floordiv, image_size, shape[2:]))


def flatten_vectors(values: Tensor, kind: str) -> Tensor:
    """Reshape an output with one vector for each image, such as logits, to (B, n)."""
    is_vector = kind in CLASSIFIERS or (kind == "features" and _vector_length(values) > 0)
    return values.flatten(1) if is_vector else values


def predict(values: Tensor, kind: str) -> Predictions:
    """Return the class that a classifier predicts for each image, given its output.

    A multi-label classifier predicts a set of labels, which is encoded with `encode_label_sets`.

    Raises:
        ValueError: The model is not a classifier.
    """
    row = KINDS[kind]
    if row.predict is None:
        raise wrong_value("the output of the model", kind, f"one of {', '.join(CLASSIFIERS)}")
    return row.predict(flatten_vectors(values, kind))


def predict_with_probability(
    values: Tensor, kind: str
) -> tuple[Float[Tensor, " batch"], Predictions]:
    """Return the predicted class of each image and its probability, given a classifier's output.

    Returns:
        Probabilities (B,) and classes (B,). If the output does not determine the probabilities of
        the classes, they are 1.
    """
    row = KINDS[kind]
    classes = predict(values, kind)
    if row.log_probabilities is None:
        return torch.ones(len(classes), dtype=torch.float64), classes
    logarithms = row.log_probabilities(flatten_vectors(values, kind))
    return logarithms.gather(1, classes[:, None]).exp()[:, 0], classes


def num_classes_of(num_outputs: int | None) -> int | None:
    """Return the number of classes of a classifier from its number of outputs: 2 for one output."""
    return 2 if num_outputs == 1 else num_outputs
