"""Model under audit: a function of images in [0, 1], with its properties."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.model_call import weights_hash
from teka.audit.model_output import Source, num_classes_of, select_output
from teka.codec import encode
from teka.errors import EXTERNAL_ERRORS, error_message, wrong_value


@dataclass(frozen=True)
class Task:
    """Task of a model, with the kind of its output for `teka.audit.AuditSettings`.

    Args:
        words: The model in words, for messages.
        output: Kind of the output.
        takes_lists: Whether the model takes a list of images instead of a batch.
    """

    words: str
    output: str
    takes_lists: bool = False


CLASSIFIER = Task("an image classifier", "auto")
MULTILABEL_CLASSIFIER = Task("an image classifier", "multilabel")
REGRESSOR = Task("a regression model", "features")
SEGMENTER = Task("a model of semantic segmentation", "segmentation")
ENCODER = Task("an encoder of images", "features")
DETECTOR = Task("a detector of objects", "boxes")
LIST_DETECTOR = Task("a detector of objects", "boxes", takes_lists=True)
_TENSORS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """Model under audit, as a function of images (B, C, H, W) in [0, 1].

    Args:
        name: Name for display.
        kind: Origin, such as "transformers", "timm", "torchvision", "onnx" or "factory".
        function: The model. It is a module if possible, so that its layers can be examined.
        module: The original module, or None.
        input_size: Size of the input, or None for any size.
        in_channels: Number of input channels, or None if unknown.
        class_names: Names of the classes, or None if unknown.
        num_classes: Number of classes, or None if unknown.
        transform: Preprocessing of images, before and within the function.
        weights_hash: SHA-256 of the weights, or None.
        note: Remark for the reader on how the model was loaded.
        output: Kind of the output, as in `teka.audit.AuditSettings`.
        loads_at_input_size: Whether data sets are loaded at the input size and with 8 bits per
            channel, as in training.
        trained_on: Name or path of the data set on which this library trained the model.

    >>> import torch
    >>> from teka.audit.adapters import LoadedModel
    >>> model = torch.nn.Conv2d(3, 8, 3)
    >>> subject = LoadedModel("edges", "factory", model, model, in_channels=3)
    >>> subject.function(torch.rand(2, 3, 8, 8)).shape, subject.describe()["parameters"]
    (torch.Size([2, 8, 6, 6]), 224)
    """

    name: str
    kind: str
    function: Callable[[Tensor], object]
    module: nn.Module | None = None
    input_size: tuple[int, int] | None = None
    in_channels: int | None = None
    class_names: tuple[str, ...] | None = None
    num_classes: int | None = None
    transform: Preprocessing = field(default_factory=Preprocessing)
    weights_hash: str | None = None
    note: str = ""
    output: str = "auto"
    loads_at_input_size: bool = False
    trained_on: str | None = None

    def taking_unplaced_images(self) -> "LoadedModel":
        """Return the model as a function of images of any size, with `transform.place` included."""
        function, place = self.function, self.transform.place
        # Layers can be examined only if the function is a module.
        is_module = isinstance(function, nn.Module)
        placing = (
            WrappedModule(place, function) if is_module else lambda images: function(place(images))
        )
        return replace(self, function=placing, input_size=None, in_channels=None)

    def choosing_output(self, name: str) -> "LoadedModel":
        """Return the model with one of its outputs, by name or by index in a tuple."""

        def choose(output: object, images: Tensor) -> Tensor:
            return select_output(output, Source(images, self.module), name=name).values

        function = self.function
        if isinstance(function, WrappedModule):
            chosen = WrappedModule(function.before, function.model, choose)
        elif isinstance(function, nn.Module):
            chosen = WrappedModule(lambda images: images, function, choose)
        else:
            chosen = lambda images: choose(function(images), images)  # noqa: E731
        known = {} if name == "logits" else {"class_names": None, "num_classes": None}
        return replace(self, function=chosen, output="auto", **known)

    def describe(self) -> dict[str, object]:
        """Return the properties that a report stores, ready for JSON."""
        kept = ("name", "kind", "input_size", "in_channels", "num_classes", "note")
        parameters = (
            None if self.module is None else sum(p.numel() for p in self.module.parameters())
        )
        facts = {name: encode(getattr(self, name)) for name in kept}
        return {**facts, "parameters": parameters, "weights_sha256": self.weights_hash}


class WrappedModule(nn.Module):
    """Module with a step before it and a selection of its output.

    Args:
        before: Function from images to the model's input.
        model: The model.
        after: Function from the output and the images to the output that is measured.
    """

    def __init__(
        self,
        before: Callable[[Tensor], object],
        model: nn.Module,
        after: Callable[[Any, Tensor], object] = lambda output, images: output,
    ) -> None:
        super().__init__()
        self.before = before
        self.model = model
        self.after = after
        # Keep the model's mode, because a wrapper must not hide that it is in training mode.
        self.training = model.training

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> object:
        """Return the selected output of the model for images in [0, 1]."""
        return self.after(self.model(self.before(images)), images)


def wrap_module(
    module: nn.Module,
    name: str,
    kind: str,
    transform: Preprocessing,
    input_size: tuple[int, int] | None,
    device: torch.device | str | None,
    task: Task = CLASSIFIER,
    **known: Any,
) -> LoadedModel:
    """Return a module as a `LoadedModel`, on the device and with its normalization included.

    Args:
        module: The module.
        name: Name for display.
        kind: Origin, such as "timm".
        transform: Preprocessing of images.
        input_size: Size of the input, or None for any size.
        device: Device of the module. Default: where it is.
        task: Task of the model.
        **known: Further fields of `LoadedModel`.
    """
    module = module if device is None else module.to(device)
    known |= {"transform": transform, "weights_hash": weights_hash(module), "output": task.output}
    num_outputs = known.get("num_classes")
    if task is CLASSIFIER and num_outputs == 1:
        known |= {"num_classes": num_classes_of(num_outputs), "class_names": None}

    def read(output: Any, images: Tensor) -> object:
        if task is CLASSIFIER and not _has_logits(output):
            return output
        return select_output(output, Source(images, module, num_outputs), kind=task.output).values

    def before(images: Tensor) -> object:
        normal = transform.normalize(images)
        return list(normal) if task.takes_lists else normal

    function = WrappedModule(before, module, read)
    return LoadedModel(name, kind, function, module, input_size, transform.in_channels, **known)


def _has_logits(output: object) -> bool:
    return "logits" in output if isinstance(output, Mapping) else hasattr(output, "logits")


@contextmanager
def read_as(model: str, expected: str) -> Iterator[None]:
    """Return a context that turns errors of a library into a ValueError of one line."""
    try:
        yield
    except EXTERNAL_ERRORS as error:
        raise wrong_value("model", model, f"{expected} ({error_message(error)})") from error


@contextmanager
def tensors_only(model: str, kind: str) -> Iterator[None]:
    """Return a context in which `torch.load` reads tensors only, with errors as in `read_as`."""
    before = os.environ.get(_TENSORS_ONLY)
    os.environ[_TENSORS_ONLY] = "1"
    try:
        with read_as(model, kind):
            yield
    finally:
        if before is None:
            del os.environ[_TENSORS_ONLY]
        else:
            os.environ[_TENSORS_ONLY] = before


def read_class_names(labels: object) -> tuple[str, ...] | None:
    """Return the class names of `id2label` in a config.

    The result is None if there are no names or only the defaults LABEL_0, LABEL_1 and so on.
    """
    by_place = (
        {str(label): str(name) for label, name in labels.items()}
        if isinstance(labels, Mapping)
        else {}
    )
    places = [str(place) for place in range(len(by_place))]
    if (
        not by_place
        or set(by_place) != set(places)
        or by_place == {place: f"LABEL_{place}" for place in places}
    ):
        return None
    return tuple(by_place[place] for place in places)
