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
from teka.audit.model_call import output_kind_of, weights_hash
from teka.audit.model_output import Source, num_classes_of, select_output
from teka.codec import encode
from teka.errors import EXTERNAL_ERRORS, error_message, wrong_value

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
        declares_preprocessing: Whether the preprocessing is that of the model's training. If not,
            an audit warns about it.

    >>> import torch
    >>> from teka.audit.adapters import LoadedModel
    >>> model = torch.nn.Conv2d(3, 8, 3)
    >>> loaded = LoadedModel("edges", "factory", model, model, in_channels=3)
    >>> loaded.function(torch.rand(2, 3, 8, 8)).shape, loaded.describe()["parameters"]
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
    declares_preprocessing: bool = True

    def with_placement(self) -> "LoadedModel":
        """Return the model as a function of images of any size, with `transform.place` included."""
        function = _compose(self.transform.place, self.function, _keep)
        return replace(self, function=function, input_size=None, in_channels=None)

    def with_output(self, name: str) -> "LoadedModel":
        """Return the model with one of its outputs, by name or by index in a tuple."""

        def choose(output: object, images: Tensor) -> Tensor:
            return select_output(output, Source(images, self.module), name=name).values

        if isinstance(self.function, WrappedModule):
            function = WrappedModule(self.function.before, self.function.model, choose)
        else:
            function = _compose(lambda images: images, self.function, choose)
        known = {} if name == "logits" else {"class_names": None, "num_classes": None}
        return replace(self, function=function, output="auto", **known)

    def describe(self) -> dict[str, object]:
        """Return the properties that a report stores, ready for JSON."""
        names = ("name", "kind", "input_size", "in_channels", "num_classes", "note")
        facts = {name: encode(getattr(self, name)) for name in names}
        parameters = None
        if self.module is not None:
            parameters = sum(parameter.numel() for parameter in self.module.parameters())
        return {**facts, "parameters": parameters, "weights_sha256": self.weights_hash}


Before = Callable[[Tensor], object]
After = Callable[[Any, Tensor], object]


def _keep(output: object, images: Tensor) -> object:
    return output


class WrappedModule(nn.Module):
    """Module with a step before it and a selection of its output.

    Args:
        before: Function from images to the model's input.
        model: The model.
        after: Function from the output and the images to the output that is measured.
        output_kind: Kind of the output, for `output="auto"`. By default that of `model`.
    """

    def __init__(
        self, before: Before, model: nn.Module, after: After, output_kind: str | None = None
    ) -> None:
        super().__init__()
        self.output_kind = output_kind or output_kind_of(model)
        self.before = before
        self.model = model
        self.after = after
        # Keep the model's mode, because a wrapper must not hide that it is in training mode.
        self.training = model.training

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> object:
        """Return the selected output of the model for images in [0, 1]."""
        return self.after(self.model(self.before(images)), images)


def _compose(before: Before, function: Callable, after: After) -> Callable[[Tensor], object]:
    # Layers can be examined only if the function is a module.
    if isinstance(function, nn.Module):
        return WrappedModule(before, function, after)
    return lambda images: after(function(before(images)), images)


def wrap_module(
    module: nn.Module,
    name: str,
    kind: str,
    transform: Preprocessing,
    input_size: tuple[int, int] | None,
    device: torch.device | str | None,
    *,
    output: str = "auto",
    takes_lists: bool = False,
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
        output: Kind of the output. "auto" is for classifiers and unknown models.
        takes_lists: Whether the module takes a list of images instead of a batch.
        **known: Further fields of `LoadedModel`.
    """
    module = module if device is None else module.to(device)
    num_outputs = known.get("num_classes")
    if output == "auto" and num_outputs == 1:
        known |= {"num_classes": num_classes_of(num_outputs), "class_names": None}

    def before(images: Tensor) -> object:
        normalized = transform.normalize(images)
        return list(normalized) if takes_lists else normalized

    def after(result: Any, images: Tensor) -> object:
        # The kind of other fields than logits follows from their names when they are measured.
        has_logits = hasattr(result, "logits") or (
            isinstance(result, Mapping) and "logits" in result
        )
        if output == "auto" and not has_logits:
            return result
        return select_output(result, Source(images, module, num_outputs), kind=output).values

    return LoadedModel(
        name,
        kind,
        WrappedModule(before, module, after, output),
        module,
        input_size,
        transform.in_channels,
        transform=transform,
        weights_hash=weights_hash(module),
        output=output,
        **known,
    )


@contextmanager
def read_as(model: str, expected: str) -> Iterator[None]:
    """Return a context that turns errors of a library into a ValueError of one line."""
    try:
        yield
    except EXTERNAL_ERRORS as error:
        raise wrong_value("model", model, f"{expected} ({error_message(error)})") from error


@contextmanager
def tensors_only(model: str, expected: str) -> Iterator[None]:
    """Return a context in which `torch.load` reads tensors only, with errors as in `read_as`."""
    before = os.environ.get(_TENSORS_ONLY)
    os.environ[_TENSORS_ONLY] = "1"
    try:
        with read_as(model, expected):
            yield
    finally:
        del os.environ[_TENSORS_ONLY]
        if before is not None:
            os.environ[_TENSORS_ONLY] = before


def read_class_names(labels: object) -> tuple[str, ...] | None:
    """Return the class names of `id2label` in a config.

    The result is None if there are no names or only the defaults LABEL_0, LABEL_1 and so on.
    """
    if not isinstance(labels, Mapping) or not labels:
        return None
    by_index = {str(index): str(name) for index, name in labels.items()}
    indices = [str(index) for index in range(len(by_index))]
    if set(by_index) != set(indices) or all(by_index[i] == f"LABEL_{i}" for i in indices):
        return None
    return tuple(by_index[index] for index in indices)
