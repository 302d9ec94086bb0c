"""A model under audit: a function of pictures in [0, 1], and what is known of it."""

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
    """A task of a model, with the kind of its output as in `teka.audit.AuditSettings`."""

    words: str
    output: str
    takes_lists: bool = False  # of images, in place of batches


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
    """A model under audit, as a function of images (B, C, H, W) in [0, 1], which is a module wherever it has one.

    >>> import torch
    >>> from teka.audit.adapters import LoadedModel
    >>> model = torch.nn.Conv2d(3, 8, 3)
    >>> subject = LoadedModel("edges", "factory", model, model, in_channels=3)
    >>> subject.function(torch.rand(2, 3, 8, 8)).shape, subject.describe()["parameters"]
    (torch.Size([2, 8, 6, 6]), 224)
    """

    name: str  # what to call it
    kind: str  # what it was read from, such as "transformers", "timm", "torchvision", "onnx" or "factory"
    function: Callable[[Tensor], object]
    module: nn.Module | None = None  # the model's, if it is one
    input_size: tuple[int, int] | None = None  # of its images; None if it takes any
    in_channels: int | None = None  # None if that is not known
    class_names: tuple[str, ...] | None = None
    num_classes: int | None = None  # None if that is not known
    transform: Preprocessing = field(
        default_factory=Preprocessing
    )  # of images before the function, and within it
    weights_hash: str | None = None  # SHA-256, if the weights can be read
    note: str = ""  # what else a reader should know of how it was read, a sentence
    output: str = "auto"  # as of `teka.audit.AuditSettings`
    loads_at_input_size: bool = False  # in whole levels, as its training had the data sets
    trained_on: str | None = None  # name or path of the data set on which this library trained it

    def taking_unplaced_images(self) -> "LoadedModel":
        """The same model as a function of images as the data have them: `transform.place` becomes a part of it."""
        function, place = self.function, self.transform.place
        # Layers can be looked into only if the function is a module.
        is_module = isinstance(function, nn.Module)
        placing = (
            WrappedModule(place, function) if is_module else lambda images: function(place(images))
        )
        return replace(self, function=placing, input_size=None, in_channels=None)

    def choosing_output(self, name: str) -> "LoadedModel":
        """The same model, of whose outputs the one of this name is measured, or of this index in a tuple."""

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
        """What a report keeps of the model, ready for JSON."""
        kept = ("name", "kind", "input_size", "in_channels", "num_classes", "note")
        parameters = (
            None if self.module is None else sum(one.numel() for one in self.module.parameters())
        )
        facts = {name: encode(getattr(self, name)) for name in kept}
        return {**facts, "parameters": parameters, "weights_sha256": self.weights_hash}


class WrappedModule(nn.Module):
    """A model with a step before it, and what is measured taken out of what it returns to images."""

    def __init__(
        self,
        before: Callable[[Tensor], object],
        model: nn.Module,
        after: Callable[[Any, Tensor], object] = lambda output, images: output,
    ) -> None:
        super().__init__()
        self.before, self.model, self.after = before, model, after
        # The mode is the model's own: a wrapper must not hide that it was left in training mode.
        self.training = model.training

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> object:
        """What the model says of images in [0, 1]."""
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
    """The subject of a module, moved to the device, with its normalisation before it; what else is known is a field."""
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
    """What a library raises within, which depends on what is missing or damaged, is one line of what was expected."""
    try:
        yield
    except EXTERNAL_ERRORS as error:
        raise wrong_value("model", model, f"{expected} ({error_message(error)})") from error


@contextmanager
def tensors_only(model: str, kind: str) -> Iterator[None]:
    """Every `torch.load` within reads tensors only, whatever its caller asked for; what is raised is one line."""
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
    """The names of `id2label` in a config, unless there are none or the library's own LABEL_0, LABEL_1 and so on."""
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
