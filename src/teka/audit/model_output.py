"""Tables of model outputs: the tensor that an audit measures, and its kind.

`FIELDS` determines which field of a structured output (a dictionary, a dataclass, a tuple) is
measured. `KINDS` determines what a tensor represents, such as logits or features. An output that
neither table describes is an error.
"""

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import interpolate

from teka.checks import check_stride
from teka.errors import did_you_mean, wrong_value
from teka.precision import to_widest_dtype

Images = Float[Tensor, "batch channels *sizes"]
Boxes = Float[Tensor, "batch boxes numbers"]
Values = Shaped[Tensor, "batch values"]
Predictions = Int[Tensor, " batch"]
Sizes = Sequence[int]
Stride = tuple[int, ...] | None

MAX_BOXES = 300  # boxes per image, those with the highest scores
CLASS_TOKEN = re.compile(r"(^|\.)(cls|class)_?(token|embedding)s?(\.weight|\.data)?$")
EXACT_LABELS = 62  # maximum number of labels for which every set of labels has a unique code
SUM_TOLERANCE = 1e-3  # tolerance for the sum of probabilities in single precision


class SelectedOutput(NamedTuple):
    """Tensor (B, …) of an output that is measured, and its kind.

    The kind "auto" means that shape and values determine the kind.
    """

    values: Tensor
    kind: str = "auto"


@dataclass(frozen=True)
class Source:
    """Model and input images that are needed to interpret an output.

    Args:
        images: The images that the model was called with.
        module: The model, if it is a module.
        num_classes: Number of classes, if known.
    """

    images: Images
    module: nn.Module | None = None
    num_classes: int | None = None


# --- Which field of a structured output is measured


def read_tensor(value: Any, source: Source) -> Tensor:
    """Return the field as a tensor."""
    return as_tensor(value)


def read_vector(value: Any, source: Source) -> Float[Tensor, "batch features"]:
    """Return the features of each image as one vector."""
    return as_tensor(value).flatten(1)


def read_maps(value: Any, source: Source) -> Float[Tensor, "batch classes *sizes"]:
    """Return logits for every pixel, interpolated bilinearly to the size of the images."""
    return interpolate(
        value, size=tuple(source.images.shape[2:]), mode="bilinear", align_corners=False
    )


def read_hidden_state(value: Any, source: Source) -> Float[Tensor, "batch features"]:
    """Return one feature vector per image from a hidden state.

    For tokens (B, L, C) it is the class token if the architecture has one, else the mean over all
    tokens. For maps it is the mean over all positions. Maps are (B, C, H, W), or (B, H, W, C) if
    only the last axis has the `hidden_size` of the model's config.
    """
    state = as_tensor(value)
    if state.ndim < 3:
        return state
    if state.ndim > 3:
        width = getattr(getattr(source.module, "config", None), "hidden_size", None)
        is_channels_last = state.shape[-1] == width != state.shape[1]
        return (
            state.flatten(1, -2).mean(dim=1) if is_channels_last else state.flatten(2).mean(dim=2)
        )
    if source.module is None:
        raise ValueError("is a hidden state of an unknown architecture, expected a known module")
    return state[:, 0] if has_class_token(source.module) else state.mean(dim=1)


def read_feature_maps(value: Any, source: Source) -> Float[Tensor, "batch features"]:
    """Return the last feature map (B, C, H, W) of a backbone, averaged over its positions."""
    return as_tensor(value[-1]).flatten(2).mean(dim=2)


def read_queries(logits: Tensor, pred_boxes: Tensor, source: Source) -> Boxes:
    """Return boxes in pixels with scores, from the outputs of a DETR-like detector.

    If there is one logit more than classes, it stands for "no object" (DETR, YOLOS), and scores
    are a softmax. Otherwise each logit gives an independent score (RT-DETR).

    Args:
        logits: Logits (B, M, K) of M boxes.
        pred_boxes: Centers and sizes (B, M, 4), relative to the image.
        source: The model and its input.
    """
    height, width = source.images.shape[2:]
    has_no_object = source.num_classes is not None and logits.shape[-1] == source.num_classes + 1
    scores = logits.softmax(dim=-1)[..., :-1] if has_no_object else logits.sigmoid()
    center, half = pred_boxes[..., :2], pred_boxes[..., 2:] / 2
    corners = torch.cat([center - half, center + half], dim=-1)
    return torch.cat([corners * corners.new_tensor([width, height] * 2), scores], dim=-1)


def read_detections(detections: Sequence[Mapping[str, Tensor]], source: Source) -> Boxes:
    """Return boxes with scores, from the outputs of a torchvision detector.

    Args:
        detections: "boxes", "scores" and "labels" of each image.
        source: The model and its input.
    """
    largest = max(
        [int(image["labels"].max()) for image in detections if len(image["labels"])], default=0
    )
    num_classes = source.num_classes or 1 + largest
    boxes = source.images.new_zeros(len(detections), MAX_BOXES, 4 + num_classes)
    for row, image in zip(boxes, detections, strict=True):
        best = image["scores"].argsort(descending=True)[:MAX_BOXES]
        row[: len(best), :4] = image["boxes"][best]
        row[torch.arange(len(best)), 4 + image["labels"][best]] = image["scores"][best]
    return boxes


@dataclass(frozen=True)
class Field:
    """Row of `FIELDS`: fields of a structured output, and how they are read.

    Args:
        names: Names of the fields.
        kind: Kind of their content.
        read: Function that returns the tensor to measure.
        on_request: Whether the row is used only if its kind is requested.
    """

    names: tuple[str, ...]
    kind: str
    read: Callable[..., Tensor]
    on_request: bool = False


# The first row whose fields are all present is used.
FIELDS = (
    Field(("logits", "pred_boxes"), "boxes", read_queries),
    Field(("logits",), "segmentation", read_maps, on_request=True),
    Field(("logits",), "auto", read_tensor),
    Field(("out",), "segmentation", read_maps),
    Field(("image_embeds",), "features", read_vector),
    Field(("pooler_output",), "features", read_vector),
    Field(("cls_token_value",), "features", read_vector),
    Field(("last_hidden_state",), "features", read_hidden_state),
    Field(("feature_maps",), "features", read_feature_maps),
)
DETECTION = {"boxes", "scores", "labels"}
_FIELD_NAMES = dict.fromkeys(name for field in FIELDS for name in field.names)
EXPECTED_OUTPUT = f"one tensor, or one of the fields {', '.join(_FIELD_NAMES)}"


def has_class_token(module: nn.Module) -> bool:
    """Return True if a parameter of the module has the name of a class token."""
    return any(CLASS_TOKEN.search(name) for name, _ in module.named_parameters())


def select_output(
    result: object, source: Source, *, kind: str = "auto", name: str | None = None
) -> SelectedOutput:
    """Return the tensor (B, …) of a model's output that is measured, by the table `FIELDS`.

    Args:
        result: Output of the model: a tensor or array, or a dictionary, dataclass, tuple or list
            of them.
        source: The model and its input.
        kind: Requested kind. "auto" selects it by the table.
        name: Name of the field, or its index in a tuple. Default: selected by the table.

    Raises:
        ValueError: The output has no such field, or no field of the table. The message lists the
            fields of the output.
    """
    fields = _fields_of(result)
    if name is not None:
        return SelectedOutput(
            _with_batch_axis(as_tensor(_choose(fields, result, name)), len(source.images))
        )
    if fields is None:
        return SelectedOutput(_with_batch_axis(as_tensor(result), len(source.images)))
    detections: Any = result if isinstance(result, list) else []
    if detections and all(
        isinstance(image, Mapping) and image.keys() >= DETECTION for image in detections
    ):
        return SelectedOutput(read_detections(detections, source), "boxes")
    present = {key: value for key, value in fields.items() if value is not None}
    for field in FIELDS:
        is_asked = (
            kind == field.kind
            if field.on_request
            else kind in ("auto", field.kind) or field.kind == "auto"
        )
        if is_asked and all(key in present for key in field.names):
            values = field.read(*(present[key] for key in field.names), source)
            return SelectedOutput(_with_batch_axis(values, len(source.images)), field.kind)
    tensors = [value for value in present.values() if isinstance(value, Tensor | np.ndarray)]
    if len(tensors) != 1:
        hint = "; output_name chooses one of several" if tensors else ""
        raise ValueError(f"{describe(result)}, expected {EXPECTED_OUTPUT}{hint}")
    return SelectedOutput(_with_batch_axis(as_tensor(tensors[0]), len(source.images)))


def as_tensor(value: object) -> Tensor:
    """Return a tensor or NumPy array as a dense tensor of real values."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        try:
            value = torch.tensor(array.astype(array.dtype.newbyteorder("=")))
        except TypeError:
            raise ValueError(f"is an array of {array.dtype}, expected real numbers") from None
    if not isinstance(value, Tensor):
        raise ValueError(f"{describe(value)}, expected {EXPECTED_OUTPUT}")
    if (
        value.layout != torch.strided
        or value.is_nested
        or value.is_quantized
        or value.device.type == "meta"
    ):
        raise ValueError(
            f"is a tensor of layout {value.layout} on {value.device.type}, expected a dense tensor"
        )
    if value.is_complex():
        raise ValueError(f"is of {value.dtype}, expected real values")
    return value


def describe(result: object) -> str:
    """Describe an output for error messages: "is a dict of 'a' (torch.float32 of shape (2,))"."""
    fields = _fields_of(result)
    if isinstance(result, Tensor | np.ndarray):
        return f"is {_describe_field(result)}"
    if result is None:
        return "is None"
    kind = type(result).__name__
    if fields is None:
        return f"is of type {kind}"
    named = [f"{key!r} ({_describe_field(value)})" for key, value in fields.items()]
    return (
        f"is a {kind} of {', '.join(named[:8])}{' …' * (len(named) > 8)}"
        if named
        else f"is an empty {kind}"
    )


def _describe_field(value: object) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return "None" if value is None else type(value).__name__


def _fields_of(result: object) -> dict[str, object] | None:
    """Return the fields of a structured output by name or index, or None for other outputs."""
    if isinstance(result, Tensor | np.ndarray | np.generic | nn.Module | str | bytes | type):
        return None
    if isinstance(result, Mapping):
        return {str(key): value for key, value in result.items()}
    if isinstance(result, tuple | list):
        named: dict[str, object] = result._asdict() if hasattr(result, "_asdict") else {}  # pyright: ignore
        return named or {str(index): value for index, value in enumerate(result)}
    if dataclasses.is_dataclass(result):
        return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    known = {name for field in FIELDS for name in field.names}
    return {name: getattr(result, name) for name in sorted(known) if hasattr(result, name)} or None


def _choose(fields: Mapping[str, object] | None, result: object, name: str) -> object:
    if fields is None or name not in fields:
        names = ", ".join(map(repr, fields or ())) or "none, because it " + describe(result)
        raise wrong_value(
            "output_name",
            name,
            f"one of the model's outputs: {names}{did_you_mean(name, fields or ())}",
        )
    return fields[name]


def _with_batch_axis(values: Tensor, num_images: int) -> Tensor:
    """Add the batch axis that a model removed for a single image, and turn (B,) into (B, 1)."""
    if num_images == 1 and (values.ndim == 0 or len(values) != 1):
        values = values[None]
    return values[:, None] if values.ndim == 1 else values


# --- What a tensor stands for


@dataclass(frozen=True)
class OutputFacts:
    """Properties of an output that determine its kind.

    Args:
        values: The output (B, …).
        seen: Spatial sizes of the images.
        has_stride: Whether a stride was given.
        label_axes: Number of axes of the labels: 0 without labels, 1 for classes, 2 for
            multi-label targets.
    """

    values: Tensor
    seen: tuple[int, ...]
    has_stride: bool = False
    label_axes: int = 0

    @property
    def is_floating(self) -> bool:
        """True if the values are floating-point numbers."""
        return self.values.is_floating_point()

    @property
    def num_values(self) -> int:
        """Number of values per image if at most one axis is larger than 1, else 0."""
        sizes = [size for size in self.values.shape[1:] if size != 1]
        return 0 if len(sizes) > 1 else math.prod(sizes)

    @property
    def is_map(self) -> bool:
        """True if there is one axis for channels and one for each spatial axis of the images."""
        return self.is_floating and self.values.ndim == 2 + len(self.seen)

    @property
    def divides(self) -> bool:
        """True if the output is a map whose sizes divide those of the images."""
        return self.is_map and not any(map(operator.mod, self.seen, self.values.shape[2:]))

    @cached_property
    def in_unit_interval(self) -> bool:
        """True if all values lie within [0, 1]."""
        return self.is_floating and bool(((self.values >= 0) & (self.values <= 1)).all())

    @cached_property
    def sums_to_one(self) -> bool:
        """True if the values of every image lie within [0, 1] and sum to 1."""
        if not self.in_unit_interval:
            return False
        sums = to_widest_dtype(self.values).flatten(1).sum(dim=1)
        return bool(
            ((sums - 1).abs() <= max(SUM_TOLERANCE, 2 * torch.finfo(self.values.dtype).eps)).all()
        )


def classes_of_logits(values: Values) -> Predictions:
    """Return the class of the largest logit. A single logit z means class 1 if z > 0, else 0."""
    return values.argmax(dim=1) if values.shape[1] > 1 else (values[:, 0] > 0).long()


def classes_of_probabilities(values: Values) -> Predictions:
    """Return the class of the largest probability. A single p means class 1 if p > ½, else 0."""
    return values.argmax(dim=1) if values.shape[1] > 1 else (values[:, 0] > 0.5).long()


def classes_of_indices(values: Values) -> Predictions:
    """Return the classes of a model that outputs class indices."""
    if (values < 0).any():
        raise ValueError(
            f"the output of the model holds the class {int(values.min())}, "
            "expected classes of at least 0"
        )
    return values[:, 0].long()


def sets_of_logits(values: Values) -> Predictions:
    """Return the code of the set of labels with a logit above 0."""
    return encode_label_sets(values > 0)


def sets_of_probabilities(values: Values) -> Predictions:
    """Return the code of the set of labels with a probability above ½."""
    return encode_label_sets(values > 0.5)


def logits_to_log_probabilities(values: Values) -> Float[Tensor, "batch classes"]:
    """Return the log probability of every class. A single logit z stands for logits (0, z)."""
    logits = to_widest_dtype(values)
    return (
        logits if logits.shape[1] > 1 else torch.cat([torch.zeros_like(logits), logits], dim=1)
    ).log_softmax(dim=1)


def probabilities_to_log_probabilities(values: Values) -> Float[Tensor, "batch classes"]:
    """Return the log probability of every class. A single p stands for (1 − p, p)."""
    shares = to_widest_dtype(values)
    shares = shares if shares.shape[1] > 1 else torch.cat([1 - shares, shares], dim=1)
    # Clamp zeros to the smallest normal float32, so that divergences stay finite.
    return shares.clamp(min=torch.finfo(torch.float32).tiny).log().log_softmax(dim=1)


def encode_label_sets(labels: Shaped[Tensor, "batch labels"]) -> Predictions:
    """Encode each set of labels as an integer, so that equal sets have equal codes.

    Up to 62 labels, the code is the sum of 2^k over the labels k of the set. For more labels, the
    powers are replaced by fixed random integers, modulo 2^62.

    Args:
        labels: Rows of 0 and 1, one column for each label.
    """
    num_labels = labels.shape[1]
    if num_labels <= EXACT_LABELS:
        weights = 2 ** torch.arange(num_labels)
    else:
        weights = torch.randint(
            2**EXACT_LABELS, (num_labels,), generator=torch.Generator().manual_seed(0)
        )
    return (labels.long() * weights.to(labels.device)).sum(dim=1) & (2**EXACT_LABELS - 1)


def _always(facts: OutputFacts) -> bool:
    return True


def _never(facts: OutputFacts) -> bool:
    return False


@dataclass(frozen=True)
class OutputKind:
    """Row of `KINDS`: a kind of output, and how to recognize and interpret it.

    Args:
        name: Name of the kind.
        expected: Description of a valid output, for error messages.
        accepts: Function that returns True if an output may be of this kind.
        is_inferred: Function that returns True if "auto" selects the kind for an accepted output.
        predict: Function that returns the predicted classes, for classifiers.
        log_probabilities: Function that returns the log probabilities of the classes, if the
            output defines them.
        is_vector: Whether axes of size 1 are ignored.
    """

    name: str
    expected: str
    accepts: Callable[[OutputFacts], bool]
    is_inferred: Callable[[OutputFacts], bool] = _never
    predict: Callable[[Values], Predictions] | None = None
    log_probabilities: Callable[[Values], Tensor] | None = None
    is_vector: bool = False


def _has_label_sets(facts: OutputFacts) -> bool:
    return facts.label_axes == 2


# "auto" selects the first row that accepts an output and is inferred for it.
KINDS = (
    OutputKind(
        "dense",
        "maps (batch, channels, one size for each axis of the images)",
        lambda facts: facts.is_map,
        lambda facts: facts.has_stride or (facts.divides and max(facts.values.shape[2:]) > 1),
    ),
    OutputKind(
        "classes",
        "(batch,) of whole numbers, the class predicted for each image",
        lambda facts: not facts.is_floating and facts.num_values == 1,
        _always,
        classes_of_indices,
        is_vector=True,
    ),
    OutputKind(
        "multilabel_probabilities",
        "(batch, labels) of floating-point numbers in [0, 1], a probability for each label",
        lambda facts: facts.in_unit_interval and facts.num_values > 0,
        lambda facts: _has_label_sets(facts) and not facts.sums_to_one,
        sets_of_probabilities,
        is_vector=True,
    ),
    OutputKind(
        "multilabel",
        "(batch, labels) of floating-point numbers, a logit for each label",
        lambda facts: facts.is_floating and facts.num_values > 0,
        lambda facts: _has_label_sets(facts) and not facts.sums_to_one,
        sets_of_logits,
        is_vector=True,
    ),
    OutputKind(
        "probabilities",
        "(batch, classes) in [0, 1] that sum to 1, or (batch,) in [0, 1]",
        lambda facts: (
            facts.in_unit_interval
            and facts.num_values > 0
            and (facts.num_values == 1 or facts.sums_to_one)
        ),
        _always,
        classes_of_probabilities,
        probabilities_to_log_probabilities,
        is_vector=True,
    ),
    OutputKind(
        "logits",
        "(batch, classes) of floating-point numbers, or (batch,) with one logit for each image",
        lambda facts: facts.is_floating and facts.num_values > 0,
        _always,
        classes_of_logits,
        logits_to_log_probabilities,
        is_vector=True,
    ),
    OutputKind(
        "features", "(batch, …) of floating-point numbers", lambda facts: facts.is_floating, _always
    ),
    OutputKind(
        "segmentation",
        "maps of logits (batch, two or more classes, one size for each axis of the images)",
        lambda facts: facts.is_map and facts.values.shape[1] > 1,
    ),
    OutputKind(
        "boxes",
        "(batch, boxes, 4 + classes) of floating-point numbers, boxes in images of two axes",
        lambda facts: (
            facts.is_floating
            and facts.values.ndim == 3
            and facts.values.shape[2] > 4
            and len(facts.seen) == 2
        ),
    ),
)
ANY_OUTPUT = (
    "floating-point numbers (batch, …), or whole numbers (batch,), which are the classes predicted"
)
ANY_CLASSIFIER = "the output of a classifier, floating-point numbers (batch, classes), or (batch,)"
KIND_BY_NAME = {kind.name: kind for kind in KINDS}
OUTPUTS = tuple(KIND_BY_NAME)
OUTPUT_CHOICES = ("auto", *OUTPUTS)
MAPS = ("dense", "segmentation")
MULTILABEL = ("multilabel", "multilabel_probabilities")
CLASSIFIERS = tuple(kind.name for kind in KINDS if kind.predict is not None)
WITH_PROBABILITIES = tuple(kind.name for kind in KINDS if kind.log_probabilities is not None)
# Kinds of output that should not change under a shift.
STILL = tuple(name for name in OUTPUTS if name not in (*MAPS, "boxes"))


def infer_kind(
    values: Tensor,
    seen: Sizes,
    kind: str = "auto",
    stride: int | Sequence[int] | None = None,
    label_axes: int = 0,
    among: Iterable[str] = OUTPUTS,
) -> tuple[str, Stride]:
    """Return the kind of an output, by the table `KINDS`, and the stride of maps.

    Args:
        values: Output (B, …) for a batch of images.
        seen: Spatial sizes of the images.
        kind: Requested kind. "auto" selects it by the table.
        stride: Pixels between neighboring cells of a map. Default: the size of the images divided
            by that of the map.
        label_axes: Number of axes of the labels, 0 without labels.
        among: Allowed kinds.

    Raises:
        ValueError: The output is not of an allowed kind.
    """
    facts = OutputFacts(values, tuple(seen), stride is not None, label_axes)
    if kind != "auto" and kind not in among:
        raise wrong_value("the output of the model", kind, f"one of {', '.join(among)}")
    named = [row for row in KINDS if row.name in among] if kind == "auto" else [KIND_BY_NAME[kind]]
    inferred = next(
        (row for row in named if row.accepts(facts) and (kind != "auto" or row.is_inferred(facts))),
        None,
    )
    if inferred is None:
        expected = f"{named[0].expected}, since it is said to be {kind!r}"
        if kind == "auto":
            expected = ANY_OUTPUT if len(named) == len(KINDS) else ANY_CLASSIFIER
        raise ValueError(f"the output of the model {describe(values)}, expected {expected}")
    if inferred.name not in MAPS:
        if stride is not None:
            raise wrong_value(
                "stride",
                stride,
                f"None, since an output of shape {tuple(values.shape)} is not a dense one",
            )
        return inferred.name, None
    if stride is not None:
        return inferred.name, check_stride(stride, len(facts.seen))
    if not facts.divides:
        expected = f"sizes that divide {facts.seen}, those of the images; or give stride"
        raise ValueError(
            f"the output of the model has shape {tuple(values.shape)}, expected {expected}"
        )
    return inferred.name, tuple(map(operator.floordiv, facts.seen, values.shape[2:]))


def arrange(values: Tensor, kind: str) -> Tensor:
    """Reshape the output of a classifier to (B, n), and return other outputs unchanged."""
    is_pooled = kind == "features" and values.shape[2:].numel() == 1
    return values.flatten(1) if KIND_BY_NAME[kind].is_vector or is_pooled else values


def predict(values: Tensor, kind: str) -> Predictions:
    """Return the predictions of a classifier: classes, or codes of label sets.

    Raises:
        ValueError: Outputs of this kind are not those of a classifier.
    """
    row = KIND_BY_NAME[kind]
    if row.predict is None:
        raise wrong_value("the output of the model", kind, f"one of {', '.join(CLASSIFIERS)}")
    return row.predict(arrange(values, kind))


def predict_with_probability(
    values: Tensor, kind: str
) -> tuple[Float[Tensor, " batch"], Predictions]:
    """Return the probability of the predicted class (1 if unknown), and the predicted class."""
    row, classes = KIND_BY_NAME[kind], predict(values, kind)
    if row.log_probabilities is None:
        return torch.ones(len(classes), dtype=torch.float64), classes
    logarithms = row.log_probabilities(arrange(values, kind))
    return logarithms.gather(1, classes[:, None]).exp()[:, 0], classes


def num_classes_of(num_outputs: int | None) -> int | None:
    """Return the number of classes of a classifier. A single output means two classes."""
    return 2 if num_outputs == 1 else num_outputs
