"""What is said of a model beside its name: its size, weights and normalisation, and where it runs."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from teka.audit.adapters.preprocessing import Preprocessing
from teka.checks import check_flags, check_sizes
from teka.data import Normalize
from teka.errors import EXTERNAL_ERRORS, error_message, require, wrong_value
from teka.files import expand_user

Size = int | tuple[int, int] | None  # one side or (height, width); None leaves it to the model
RANDOM = "random"
M = TypeVar("M", bound=nn.Module)
_WITHIN = (
    "state_dict",
    "model_state_dict",
    "model",
)  # where training scripts put the weights of a checkpoint


@dataclass(frozen=True)
class LoadOptions:
    """How a model is to be read.

    >>> from teka.audit.adapters import Preprocessing, LoadOptions
    >>> transform, size = LoadOptions(input_size=224, mean=(0.5,), deviation=(0.25,)).fit(Preprocessing(in_channels=1))
    >>> size, transform.normalization
    ((224, 224), Normalize(mean=(0.5,), deviation=(0.25,)))

    Args:
        input_size: Size of the model's images, one side or (height, width), for models that take any.
        weights: A file of weights, safetensors or tensors of torch, of which nothing is unpickled; or "random", as they
            are drawn for training with seed 0. None takes those that the model comes with.
        num_classes: Number of classes that the model must have; it is made so where `weights` are given.
        mean: What is subtracted from intensities in [0, 1], one number or one for each channel; with `deviation`
            instead of what the model comes with.
        deviation: What they are divided by after that.
        blue_first: Whether the model takes blue, green, red.
        device: Where it runs; None is the CPU.
        data_dir: Folder with the data set's files, for loaders of models that know their data.
        trust: Allow files that contain a program, which can run any code or read and write any file with your
            rights: TorchScript and `torch.export`. Set it only for a file from a source whose scripts you would run.
        output_name: The output to measure of a model that has several, by its name, or its index in a tuple; None
            leaves the choice to `teka.audit.model_output.FIELDS`, and of an ONNX file takes "logits" or the first
            output of floating-point numbers.

    Raises:
        ValueError: No such file of weights, one of `mean` and `deviation` without the other, or one of wrong numbers.
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
            raise wrong_value(missing, None, "given, for the other of mean and deviation is")
        if self.mean is not None and self.deviation is not None:
            Normalize(*self._by_channel(max(len(self.mean), len(self.deviation))))

    @property
    def classes_made(self) -> dict[str, int]:
        """The number of classes as a keyword, where a model is to be made with one."""
        return (
            {}
            if self.num_classes is None or self.weights is None
            else {"num_classes": self.num_classes}
        )

    def fit(self, transform: Preprocessing) -> tuple[Preprocessing, tuple[int, int] | None]:
        """A model's preprocessing with what is said of it here, and the size of its images."""
        if self.mean is not None and self.deviation is not None:
            channels = transform.in_channels or max(len(self.mean), len(self.deviation))
            if transform.in_channels is None and channels == 1:
                expected = (
                    "one number for each channel, for the model does not say how many it takes"
                )
                raise wrong_value("mean", self.mean, expected)
            normalization = Normalize(*self._by_channel(channels))
            transform = replace(transform, in_channels=channels, normalization=normalization)
        if self.blue_first:
            transform = replace(transform, blue_first=True)
        return transform.resized_to(self.input_size)

    def _by_channel(self, channels: int) -> list[tuple[float, ...]]:
        """Mean and deviation of so many channels."""
        found = []
        for argument, given in (("mean", self.mean or ()), ("deviation", self.deviation or ())):
            if len(given) not in (1, channels):
                raise wrong_value(
                    argument, given, f"one number, or one for each of {channels} channels"
                )
            found.append(given * (channels if len(given) == 1 else 1))
        return found

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Within, what is drawn is drawn with seed 0, and what comes after is as without."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield

    def fill(self, module: M) -> M:
        """The module with the weights of the file, if there is one; each must be there, and none else."""
        if self.weights in (None, RANDOM):
            return module
        file = expand_user(self.weights)
        try:
            module.load_state_dict(read_weights(file))
        except EXTERNAL_ERRORS as error:
            expected = f"the weights of a {type(module).__name__} ({error_message(error)})"
            raise wrong_value("weights", str(file), expected) from error
        return module


DEFAULT_LOAD_OPTIONS = LoadOptions()  # nothing is said


def read_weights(file: Path) -> Mapping[str, Tensor]:
    """The tensors of a file by name: safetensors, or what `torch.save` wrote, itself or within a checkpoint."""
    if file.suffix == ".safetensors":
        safetensors: Any = require("safetensors.torch", "these weights need", "teka[audit]")
        return safetensors.load_file(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of TorchScript before it raises an error
        found = torch.load(file, map_location="cpu", weights_only=True)
    for name in _WITHIN:
        found = (
            found[name]
            if isinstance(found, Mapping) and isinstance(found.get(name), Mapping)
            else found
        )
    if not isinstance(found, Mapping) or not all(isinstance(one, Tensor) for one in found.values()):
        raise ValueError(f"it holds {type(found).__name__}, expected tensors by name")
    # What several processes trained has this before each name.
    return {name.removeprefix("module."): tensor for name, tensor in found.items()}
