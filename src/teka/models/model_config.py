"""Configuration of a saved model: its class, sizes, options and training data."""

import inspect
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from teka.checks import check_sizes
from teka.codec import decode
from teka.errors import first_line_of_error, unknown_name_error, wrong_value
from teka.memory import MAX_IMAGE_PIXELS, TooManyElementsError, count_elements, memory_bytes
from teka.models.conv_performer import ConvPerformer
from teka.models.performer import Performer
from teka.models.performer_config import PerformerConfig

# Model classes by name. `register_model` adds classes.
MODELS: dict[str, type[nn.Module]] = {"conv_performer": ConvPerformer, "performer": Performer}
BASELINES_HINT = (
    "Baseline models need a checkout of teka. There, start commands with `python -m reproduction` "
    "instead of `teka`, or import `reproduction.baselines` first."
)
SIZES = ("image_size", "in_channels", "num_classes")
# Old names of options in files of earlier versions.
OLD_NAMES = {"self_attention": {"encoding": "position"}}


def register_model(name: str, model: type[nn.Module]) -> None:
    """Register a model class, so that training runs and saved models can refer to it by name.

    Args:
        name: Name of the model.
        model: Class that takes `image_size`, `in_channels`, `num_classes` and its options by name.

    Raises:
        ValueError: Another class has been registered under this name.
    """
    if MODELS.setdefault(name, model) is not model:
        raise wrong_value("name", name, "a name that no other model has")


def model_class(name: str) -> type[nn.Module]:
    """Return the model class that is registered under a name.

    Raises:
        ValueError: No model is registered under this name.
    """
    if not isinstance(name, str) or name not in MODELS:
        raise unknown_name_error("model", name, MODELS, BASELINES_HINT)
    return MODELS[name]


@cache
def options_class(model: str) -> type[Any]:
    """Create a dataclass whose fields are the options of a model class, with types and defaults.

    The options in the config of a saved model are checked against these fields.
    """
    kind = PerformerConfig if model == "performer" else model_class(model)
    options = []
    for name, parameter in inspect.signature(kind).parameters.items():
        if name not in SIZES:
            is_required = parameter.default is parameter.empty
            default = field() if is_required else field(default=parameter.default)
            options.append((name, parameter.annotation, default))
    options_type = make_dataclass(f"{kind.__name__}Options", options, frozen=True, kw_only=True)
    options_type.__doc__ = kind.__doc__
    return options_type


@dataclass(frozen=True)
class ModelConfig:
    """Configuration of a saved model as JSON data: its class, sizes, options and training data.

    The config is saved together with the weights, so that the model can be rebuilt from both.

    >>> import torch, teka
    >>> options = {"dim": 16, "depth": 1, "heads": 2, "patch_size": 4}
    >>> config = teka.models.ModelConfig("performer", (8, 12), 3, 5, options=options)
    >>> config.make_model()(torch.zeros(2, 3, 8, 12)).shape
    torch.Size([2, 5])

    Args:
        model: Name of the model class, a key of `teka.models.model_config.MODELS`.
        image_size: Pixels along each axis: height and width, or one to three axes for a Performer.
        in_channels: Number of channels of the images.
        num_classes: Number of logits.
        options: Options of the model by name. Missing options have their defaults. A tuple becomes
            a list. Modules, such as a custom stem, are not allowed.
        class_names: Name of each class, or None.
        pictures: Conversion of pictures to images, as fields of
            `teka.prediction.PictureSettings`, or None.
        facts: Other facts about the model, such as its training data and accuracy.

    Raises:
        ValueError: The model is unknown, an option is unknown or missing, or a value is not JSON
            data.
    """

    model: str
    image_size: tuple[int, ...]
    in_channels: int
    num_classes: int
    options: Mapping[str, object] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    pictures: Mapping[str, object] | None = None
    facts: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model_class(self.model)
        axes = (1, 2, 3) if self.model == "performer" else (2,)
        if not (isinstance(self.image_size, tuple) and len(self.image_size) in axes):
            raise wrong_value(
                "image_size", self.image_size, "height and width, whole numbers of at least 1"
            )
        check_sizes({f"image_size[{axis}]": side for axis, side in enumerate(self.image_size)})
        if math.prod(self.image_size) > MAX_IMAGE_PIXELS:
            raise wrong_value("image_size", self.image_size, f"at most {MAX_IMAGE_PIXELS:,} pixels")
        check_sizes({"in_channels": self.in_channels, "num_classes": self.num_classes})
        if isinstance(self.options, Mapping):
            old_names = OLD_NAMES.get(self.model, {})
            options = {
                old_names.get(name, name): list(value) if isinstance(value, tuple) else value
                for name, value in self.options.items()
            }
            object.__setattr__(self, "options", options)
        for argument in ("options", "pictures", "facts"):
            value = getattr(self, argument)
            if argument == "pictures" and value is None:
                continue
            if not (isinstance(value, Mapping) and _is_json(value)):
                hint = "Use only numbers, strings, booleans, None, lists and mappings."
                raise wrong_value(argument, value, "a mapping of names to JSON data", hint)
        decode(options_class(self.model), self.options, f"{self.model}.options")
        names = self.class_names
        if names is not None and not (
            isinstance(names, tuple)
            and len(names) == self.num_classes
            and all(isinstance(name, str) for name in names)
        ):
            raise wrong_value("class_names", names, f"{self.num_classes} strings, or None")

    @property
    def sizes(self) -> dict[str, Any]:
        """Arguments of the model class that depend on the data: image size, channels, classes."""
        return {name: getattr(self, name) for name in SIZES}

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes. Without `class_names`, the names are "0", "1", "2" and so on."""
        return self.class_names or tuple(map(str, range(self.num_classes)))

    def make_model(self, max_elements: int | None = None, *, warns: bool = False) -> nn.Module:
        """Build the model with initial weights on the CPU, in float32 and evaluation mode.

        The state of PyTorch's random number generators does not change.

        Args:
            max_elements: Largest allowed number of elements of all parameters. By default, the
                number that fits in memory.
            warns: Show the warnings of the model, for example about options without an effect.

        Raises:
            ValueError: The model does not take an option, or has more elements than allowed.
        """
        options = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.options.items()
        }

        def make() -> nn.Module:
            return model_class(self.model)(**self.sizes, **options)

        with torch.random.fork_rng(devices=[]), torch.device("cpu"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were shown when the model was trained
            try:
                count_elements(make, memory_bytes() // 4 if max_elements is None else max_elements)
                if warns:
                    warnings.simplefilter("default")
                model = make()
            except TooManyElementsError as error:
                sizes = self.sizes | dict(self.options)
                raise wrong_value(
                    "the size of the model", sizes, f"one that fits into memory, with no {error}"
                ) from error
            # The type of the error of an impossible size depends on where the size is used first.
            except (
                TypeError,
                RuntimeError,
                AttributeError,
                ArithmeticError,
                LookupError,
                RecursionError,
            ) as error:
                expected = f"options of {self.model} ({first_line_of_error(error)})"
                raise wrong_value("options", dict(self.options), expected) from error
        return model.float().eval()


def _is_json(value: Mapping[str, object]) -> bool:
    """Return True if JSON can represent a mapping exactly."""
    try:
        return json.loads(json.dumps(dict(value), allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        return False
