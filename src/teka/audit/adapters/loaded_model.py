"""Loaded models with their preprocessing, and the options for loading them."""

import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from teka.audit.adapters.preprocessing import Images, Preprocessing
from teka.audit.model_call import Model, output_kind_of, weights_hash
from teka.audit.model_output import (
    OutputSource,
    num_classes_of,
    output_fields,
    select_output,
    upsample_segmentation,
)
from teka.checks import check_flags, check_sizes
from teka.codec import encode
from teka.data import Normalize
from teka.errors import EXTERNAL_ERRORS, error_message, require, wrong_value
from teka.files import expand_user
from teka.memory import count_parameters

Size = int | tuple[int, int] | None  # one side or (height, width); None leaves it to the model
RANDOM = "random"
M = TypeVar("M", bound=nn.Module)
# Names under which training scripts store the weights in a checkpoint.
_NESTED_NAMES = ("state_dict", "model_state_dict", "model")
_TENSORS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
Before = Callable[[Tensor], Any]
After = Callable[[Any, Tensor], object]


@dataclass(frozen=True)
class LoadOptions:
    """Options for loading a model.

    >>> from teka.audit.adapters import Preprocessing, LoadOptions
    >>> load_options = LoadOptions(input_size=224, mean=(0.5,), deviation=(0.25,))
    >>> transform = load_options.adapt_preprocessing(Preprocessing(in_channels=1))
    >>> transform.output_size, transform.normalization
    ((224, 224), Normalize(mean=(0.5,), deviation=(0.25,)))

    Args:
        input_size: Size of the model's input, the side of a square or [height,width], for models
            that accept any size.
        weights: File of weights (of safetensors or `torch.save`, tensors only), or "random" for a
            random initialization with seed 0. Default: the model's own weights.
        num_classes: Number of classes that the model must have. If `weights` is given, the model is
            built with this number.
        mean: Mean that is subtracted from intensities in [0, 1]: one number, or one for each
            channel. Mean and standard deviation replace the model's own normalization.
        deviation: Standard deviation by which intensities are then divided: one number, or one for
            each channel.
        blue_first: Whether the model expects the channels blue, green, red.
        device: Device of the model. Default: the CPU.
        data_dir: Folder of the data set's files, for loaders of models that know their data.
        trust: Allow files of TorchScript and `torch.export`. Such a file contains a program that
            can run any code with your rights. Set it only for a file from a source whose scripts
            you would run.
        output_name: Output to measure of a model with several outputs, by its name or its index in
            a tuple. Default: chosen by `teka.audit.model_output.FIELD_READERS`, and for an ONNX
            file "logits" or the first floating-point output.

    Raises:
        ValueError: The file of weights does not exist, only one of `mean` and `deviation` is given,
            or a value is invalid.
    """

    input_size: Size = None
    weights: str | Path | None = None
    num_classes: int | None = None
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    blue_first: bool = False
    device: torch.device | str | None = None
    data_dir: str | None = None
    trust: bool = False
    output_name: str | None = None

    def __post_init__(self) -> None:
        check_sizes({"num_classes": self.num_classes}, or_none=True)
        check_flags({"trust": self.trust})
        if self.weights not in (None, RANDOM) and not expand_user(self.weights).is_file():
            raise wrong_value("weights", str(self.weights), f"an existing file, or {RANDOM!r}")
        if (self.mean is None) != (self.deviation is None):
            names = ("mean", "deviation") if self.mean is None else ("deviation", "mean")
            raise wrong_value(names[0], None, f"given together with {names[1]}")

    @property
    def num_classes_argument(self) -> dict[str, int]:
        """Keyword arguments for the constructor of a model: `num_classes`, or none.

        A model with its own pretrained weights is built without this argument, because the weights
        fit only its own number of classes.
        """
        if self.num_classes is None or self.weights is None:
            return {}
        return {"num_classes": self.num_classes}

    def adapt_preprocessing(self, transform: Preprocessing) -> Preprocessing:
        """Replace the size and normalization in a preprocessing by those that the user chose.

        Args:
            transform: Preprocessing that the model declares.

        Raises:
            ValueError: `mean` or `deviation` does not fit the number of channels.
        """
        if self.mean is not None and self.deviation is not None:
            channels = transform.in_channels or max(len(self.mean), len(self.deviation))
            for argument in ("mean", "deviation"):
                if len(getattr(self, argument)) not in (1, channels):
                    expected = f"one number, or one for each of {channels} channels"
                    raise wrong_value(argument, getattr(self, argument), expected)
            if transform.in_channels is None and channels == 1:
                hint = "The model does not declare its number of channels."
                raise wrong_value("mean", self.mean, "one number for each channel", hint)
            # A single number is for all channels.
            mean = (self.mean * channels)[:channels]
            deviation = (self.deviation * channels)[:channels]
            normalization = Normalize(mean, deviation)
            transform = replace(transform, in_channels=channels, normalization=normalization)
        if self.input_size is not None:
            transform = transform.resized_to(self.input_size)
        return replace(transform, blue_first=self.blue_first or transform.blue_first)

    @contextmanager
    def fixed_seed(self) -> Iterator[None]:
        """Use random seed 0 inside a `with` statement, and restore the random state afterwards."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield

    def load_weights(self, module: M) -> M:
        """Load the weights from the user's file into a module, and return the module.

        Without a file of weights, the module does not change.

        Raises:
            ValueError: The file cannot be read, or its names or shapes differ from the module's.
        """
        if self.weights in (None, RANDOM):
            return module
        file = expand_user(self.weights)
        try:
            module.load_state_dict(read_weights(file))
        except EXTERNAL_ERRORS as error:
            expected = f"the weights of a {type(module).__name__} ({error_message(error)})"
            raise wrong_value("weights", str(file), expected) from error
        return module


DEFAULT_LOAD_OPTIONS = LoadOptions()


def read_weights(file: Path) -> Mapping[str, Tensor]:
    """Read weights from a safetensors file or a `torch.save` file, as tensors by name.

    In a `torch.save` file, the weights may be nested under a key such as "state_dict".

    Raises:
        ValueError: The file contains other objects than tensors.
    """
    if file.suffix == ".safetensors":
        safetensors = require("safetensors.torch", "these weights need", "teka[audit]")
        return safetensors.load_file(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about TorchScript before it raises an error
        content = torch.load(file, map_location="cpu", weights_only=True)
    for name in _NESTED_NAMES:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    is_mapping = isinstance(content, Mapping)
    if not is_mapping or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"it holds {type(content).__name__}, expected tensors by name")
    # DistributedDataParallel adds this prefix.
    return {name.removeprefix("module."): tensor for name, tensor in content.items()}


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """Model for an audit, with its preprocessing and a description for the report.

    Args:
        name: Name for display.
        kind: Origin, such as "transformers", "timm", "torchvision", "onnx" or "factory".
        function: The model as a function of images (B, C, H, W) in [0, 1]. It is a module if
            possible, so that its layers can be examined.
        module: The original module, or None.
        class_names: Names of the classes, or None if unknown.
        num_classes: Number of classes, or None if unknown.
        transform: Preprocessing of images. The function normalizes images but does not resize them.
        weights_hash: SHA-256 of the weights, or None.
        note: Remark for the user on how the model was loaded.
        output: Kind of the output, as in `teka.audit.AuditSettings`.
        loads_at_input_size: Whether data sets are loaded at the input size and with 8 bits per
            channel, as in training.
        trained_on: Name or path of the data set on which this library trained the model.
        declares_preprocessing: Whether the model declares the preprocessing of its training. If
            not, an audit warns about it.

    >>> import torch
    >>> from teka.audit.adapters import LoadedModel, Preprocessing
    >>> model = torch.nn.Conv2d(3, 8, 3)
    >>> loaded = LoadedModel("edges", "factory", model, model, transform=Preprocessing(3))
    >>> loaded.function(torch.rand(2, 3, 8, 8)).shape, loaded.describe()["parameters"]
    (torch.Size([2, 8, 6, 6]), 224)
    """

    name: str
    kind: str
    function: Model
    module: nn.Module | None = None
    class_names: tuple[str, ...] | None = None
    num_classes: int | None = None
    transform: Preprocessing = field(default_factory=Preprocessing)
    weights_hash: str | None = None
    note: str = ""
    output: str = "auto"
    loads_at_input_size: bool = False
    trained_on: str | None = None
    declares_preprocessing: bool = True

    @property
    def input_size(self) -> tuple[int, int] | None:
        """Height and width of the input, or None for any size."""
        return self.transform.output_size

    @property
    def in_channels(self) -> int | None:
        """Number of input channels, or None if unknown."""
        return self.transform.in_channels

    def resizing_function(self) -> Model:
        """Return a function that resizes images of any size and then runs the model on them."""
        return wrap_function(self.function, before=self.transform.resize_images)

    def with_output(self, name: str) -> "LoadedModel":
        """Return a copy of the model whose function returns only one of the model's outputs.

        Args:
            name: Name of the output, or its index if the model returns a tuple.
        """

        def choose(output: object, images: Tensor) -> Tensor:
            return select_output(output, OutputSource(images, self.module), name).values

        known = {} if name == "logits" else {"class_names": None, "num_classes": None}
        function = wrap_function(self.function, after=choose)
        return replace(self, function=function, output="auto", **known)

    def describe(self) -> dict[str, object]:
        """Return the facts about the model for a report, as JSON data."""
        names = ("name", "kind", "input_size", "in_channels", "num_classes", "note")
        facts = {name: encode(getattr(self, name)) for name in names}
        parameters = None if self.module is None else count_parameters(self.module)
        return {**facts, "parameters": parameters, "weights_sha256": self.weights_hash}


class WrappedModule(nn.Module):
    """Module that preprocesses images, calls a model and postprocesses its output.

    A module that wraps another `WrappedModule` adds its functions to those of the other module.
    The names of all layers then have the prefix "model." only once.

    Args:
        model: The model.
        before: Function that maps images to the model's input.
        after: Function that maps the model's output and the images to the output that is measured.
        output_kind: Kind of the output, for `output="auto"`. Default: that of `model`.
    """

    def __init__(
        self, model: nn.Module, before: Before, after: After, output_kind: str | None = None
    ) -> None:
        super().__init__()
        self.output_kind = output_kind or output_kind_of(model)
        self.wrappers = ((before, after),)
        if isinstance(model, WrappedModule):
            self.wrappers = (*model.wrappers, *self.wrappers)
            model = model.model
        self.model = model
        # Keep the model's mode, because a wrapper must not hide that it is in training mode.
        self.training = model.training

    def forward(self, images: Images) -> object:
        """Preprocess images in [0, 1], call the model, and return its postprocessed output."""
        inputs = [images]
        for before, _ in reversed(self.wrappers):
            inputs.append(before(inputs[-1]))
        output = self.model(inputs.pop())
        for _, after in self.wrappers:
            output = after(output, inputs.pop())
        return output


def wrap_function(
    function: Model,
    before: Before = lambda images: images,
    after: After = lambda output, images: output,
) -> Model:
    """Add preprocessing and postprocessing to a model, which may be a module or any function.

    A module becomes a `WrappedModule`, so that its layers can still be examined.

    Args:
        function: The model.
        before: Function that maps images to the model's input.
        after: Function that maps the model's output and the images to the new output.
    """
    if isinstance(function, nn.Module):
        return WrappedModule(function, before, after)
    return lambda images: after(function(before(images)), images)


def loaded_model_from_module(
    module: nn.Module,
    name: str,
    kind: str,
    transform: Preprocessing,
    load_options: LoadOptions,
    *,
    is_declared: bool = True,
    output: str = "auto",
    takes_lists: bool = False,
    **known: Any,
) -> LoadedModel:
    """Create a `LoadedModel` from a PyTorch module and the preprocessing of its images.

    The function of the result normalizes images, calls the module, and selects the output to
    measure.

    Args:
        module: The module.
        name: Name for display.
        kind: Origin, such as "timm".
        transform: Preprocessing of images.
        load_options: Input size, normalization, device and output, which override the model's.
        is_declared: Whether the model declares the preprocessing of its training.
        output: Kind of the output. "auto" is for classifiers and unknown models.
        takes_lists: Whether the module takes a list of images instead of a batch.
        **known: Further fields of `LoadedModel`.
    """
    module = module if load_options.device is None else module.to(load_options.device)
    transform = load_options.adapt_preprocessing(transform)
    num_outputs = known.get("num_classes")
    if output == "auto" and num_outputs == 1:
        known |= {"num_classes": num_classes_of(num_outputs), "class_names": None}

    def before(images: Tensor) -> object:
        normalized = transform.normalize(images)
        return list(normalized) if takes_lists else normalized

    def after(result: Any, images: Tensor) -> object:
        has_logits = "logits" in (output_fields(result) or ())
        # If there are no logits, the fields of the output are needed later, to find its kind.
        if load_options.output_name is not None or (output == "auto" and not has_logits):
            return result
        source = OutputSource(images, module, num_outputs)
        values = select_output(result, source).values
        return upsample_segmentation(values, source) if output == "segmentation" else values

    return LoadedModel(
        name,
        kind,
        WrappedModule(module, before, after, output),
        module,
        transform=transform,
        weights_hash=weights_hash(module),
        output=output,
        declares_preprocessing=is_declared or load_options.mean is not None,
        **known,
    )


@contextmanager
def safe_loading(model: str, expected: str) -> Iterator[None]:
    """Protect the loading of a model by another library, in a `with` statement.

    Inside the statement, `torch.load` unpickles only tensors, so that no code in a file is run. Any
    error of the library becomes a one-line ValueError, which says what was expected.

    Args:
        model: Name of the model for the error message.
        expected: Description of the models that can be loaded, for the error message.
    """
    previous = os.environ.get(_TENSORS_ONLY)
    os.environ[_TENSORS_ONLY] = "1"
    try:
        yield
    except EXTERNAL_ERRORS as error:
        raise wrong_value("model", model, f"{expected} ({error_message(error)})") from error
    finally:
        os.environ.pop(_TENSORS_ONLY, None)
        if previous is not None:
            os.environ[_TENSORS_ONLY] = previous


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Hide log messages, warnings and progress bars of libraries inside a `with` statement."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def read_class_names(labels: object) -> tuple[str, ...] | None:
    """Return the class names in the field `id2label` of a transformers config.

    If there are no names, or only default names such as LABEL_0, the result is None.

    Args:
        labels: Value of the field, which maps class indices to names.
    """
    if not isinstance(labels, Mapping):
        return None
    by_index = {str(index): str(name) for index, name in labels.items()}
    names = [by_index.get(str(index)) for index in range(len(by_index))]
    if None in names or all(name == f"LABEL_{index}" for index, name in enumerate(names)):
        return None
    return tuple(map(str, names))
