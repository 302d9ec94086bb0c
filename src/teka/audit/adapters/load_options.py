"""Options for loading a model: its weights, input size, normalization and device."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from teka.audit.adapters.preprocessing import Preprocessing
from teka.checks import check_flags, check_image_size, check_sizes
from teka.data import Normalize
from teka.errors import EXTERNAL_ERRORS, error_message, require, wrong_value
from teka.files import expand_user

Size = int | tuple[int, int] | None  # one side or (height, width); None leaves it to the model
RANDOM = "random"
M = TypeVar("M", bound=nn.Module)
# Names under which training scripts store the weights in a checkpoint.
_NESTED_NAMES = ("state_dict", "model_state_dict", "model")


@dataclass(frozen=True)
class LoadOptions:
    """Options for loading a model.

    >>> from teka.audit.adapters import Preprocessing, LoadOptions
    >>> load_options = LoadOptions(input_size=224, mean=(0.5,), deviation=(0.25,))
    >>> transform = load_options.adapt_preprocessing(Preprocessing(in_channels=1))
    >>> transform.output_size, transform.normalization
    ((224, 224), Normalize(mean=(0.5,), deviation=(0.25,)))

    Args:
        input_size: Size of the model's input, one side or (height, width), for models that accept
            any size.
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
            a tuple. Default: chosen by `teka.audit.model_output.FIELDS`, and for an ONNX file
            "logits" or the first floating-point output.

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
            missing = "mean" if self.mean is None else "deviation"
            raise wrong_value(missing, None, "given, because mean and deviation belong together")

    @property
    def num_classes_argument(self) -> dict[str, int]:
        """Keyword argument that builds a model with the required number of classes, or none.

        A model with its own weights is built with its own number of classes.
        """
        if self.num_classes is None or self.weights is None:
            return {}
        return {"num_classes": self.num_classes}

    def adapt_preprocessing(self, transform: Preprocessing) -> Preprocessing:
        """Return the preprocessing with the input size and normalization of these options.

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
            transform = transform.resized_to(check_image_size("input_size", self.input_size))
        return replace(transform, blue_first=self.blue_first or transform.blue_first)

    @contextmanager
    def fixed_seed(self) -> Iterator[None]:
        """Return a context with random seed 0. The random state is restored afterwards."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield

    def load_weights(self, module: M) -> M:
        """Load the file of weights, if there is one, into a module, and return the module.

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
    """Return the tensors in a safetensors file or in a file of `torch.save`, by name.

    A checkpoint of `torch.save` may contain the weights under a name such as "state_dict".

    Raises:
        ValueError: The file contains other objects than tensors.
    """
    if file.suffix == ".safetensors":
        safetensors: Any = require("safetensors.torch", "these weights need", "teka[audit]")
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
