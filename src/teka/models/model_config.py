"""What a model file says of its model, beside the weights: enough to build it, and facts about it."""

import inspect
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from teka.checks import MAX_SIZE, check_name, check_sizes
from teka.codec import decode
from teka.errors import first_line, require, wrong_value
from teka.memory import MAX_IMAGE_PIXELS, TooManyElementsError, count_elements, memory_bytes
from teka.models.performer_config import PerformerConfig

# The class of each model by name, imported at first use because baselines belong to the experiments.
# Every class takes (image_size, in_channels, num_classes) and its own options by name.
_BASELINES = "teka.experiments.baselines"
MODELS = {
    "performer": ("teka.models.performer", "Performer"),
    "alexnet": (_BASELINES, "AlexNet"),
    "vgg16": (_BASELINES, "VGG16"),
    "resnet18": (_BASELINES, "ResNet18"),
    "linformer": (_BASELINES, "Linformer"),
    "routing_transformer": (_BASELINES, "RoutingTransformer"),
    "self_attention": (_BASELINES, "SelfAttentionNetwork"),
}
SIZES = ("image_size", "in_channels", "num_classes")
OLD_NAMES = {
    "self_attention": {"encoding": "position"}
}  # options that files of an older teka have by another name


def model_class(name: str) -> type[nn.Module]:
    """Return the class of a model of `MODELS`.

    Raises:
        ValueError: An unknown name.
        ImportError: The module of the model is not installed.
    """
    check_name("model", name, MODELS)
    module, attribute = MODELS[name]
    return getattr(require(module, f"the model {name!r} needs", "teka"), attribute)


@cache
def options_class(model: str) -> type[Any]:
    """Return a frozen dataclass of the options of a model, without its sizes."""
    kind = model_class(model)
    if model == "performer":
        options = [(one.name, one.type, one.default) for one in fields(PerformerConfig)]
    else:
        parameters = inspect.signature(kind).parameters.values()
        options = [(one.name, one.annotation, one.default) for one in parameters]
    declared = []
    for name, annotation, default in options:
        if name not in SIZES:
            is_required = default in (MISSING, inspect.Parameter.empty)
            declared.append((name, annotation, field() if is_required else field(default=default)))
    name = f"{kind.__name__}Options"
    options_type = make_dataclass(name, declared, frozen=True, kw_only=True)
    options_type.__doc__ = kind.__doc__
    return options_type


@dataclass(frozen=True)
class ModelConfig:
    """A model by name, sizes and options, and what is known of it; all of it plain JSON, which `teka.codec` writes.

    >>> import torch, teka
    >>> options = {"dim": 16, "depth": 1, "heads": 2, "patch_size": 4}
    >>> config = teka.models.ModelConfig("performer", (8, 12), in_channels=3, num_classes=5, options=options)
    >>> config.make_model()(torch.zeros(2, 3, 8, 12)).shape
    torch.Size([2, 5])

    Args:
        model: A name of `teka.models.model_config.MODELS`.
        image_size: Pixels along each axis of its images, height and width but for a Performer of signals or volumes.
        in_channels: Channels of its images.
        num_classes: Number of its logits.
        options: The model's own options by name; those left out are at their defaults. A tuple becomes a list, which is
            what JSON has. A module or another object, such as a stem of one's own, cannot be written down.
        class_names: A name for each class, if they have any.
        pictures: How pictures become the model's images, as `teka.prediction.PictureSettings` reads it.
        facts: What else is known: provenance, data, accuracy.

    Raises:
        ValueError: An unknown model, options that it does not take or lacks, or something that is not plain JSON.
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
        check_name("model", self.model, MODELS)
        axes = (1, 2, 3) if self.model == "performer" else (2,)
        if not (isinstance(self.image_size, tuple) and len(self.image_size) in axes):
            raise wrong_value(
                "image_size", self.image_size, "height and width, whole numbers of at least 1"
            )
        check_sizes(
            {f"image_size[{axis}]": side for axis, side in enumerate(self.image_size)},
            most=MAX_SIZE,
        )
        if math.prod(self.image_size) > MAX_IMAGE_PIXELS:
            raise wrong_value("image_size", self.image_size, f"at most {MAX_IMAGE_PIXELS:,} pixels")
        check_sizes({"in_channels": self.in_channels, "num_classes": self.num_classes})
        if isinstance(self.options, Mapping):
            old = OLD_NAMES.get(self.model, {})
            named = {
                old.get(name, name): list(one) if isinstance(one, tuple) else one
                for name, one in self.options.items()
            }
            object.__setattr__(self, "options", named)
        for argument in ("options", "pictures", "facts"):
            value = getattr(self, argument)
            if not (isinstance(value, Mapping) and _is_json(value)) and (argument, value) != (
                "pictures",
                None,
            ):
                expected = "a mapping of names to plain JSON: numbers, strings, lists, mappings"
                raise wrong_value(argument, value, expected)
        decode(options_class(self.model), self.options, f"options of {self.model}")
        names = self.class_names
        if names is not None and not (
            isinstance(names, tuple)
            and len(names) == self.num_classes
            and all(isinstance(name, str) for name in names)
        ):
            raise wrong_value("class_names", names, f"{self.num_classes} strings, or None")

    def make_model(self, most: int | None = None) -> nn.Module:
        """The model on the CPU in float32, in evaluation mode, with new weights; torch's random state stays as it was.

        A ValueError if it does not take its options, or has more than `most` numbers, by default all that memory holds.
        """
        options = {
            name: tuple(one) if isinstance(one, list) else one for name, one in self.options.items()
        }

        def make() -> nn.Module:
            kind = model_class(self.model)
            return kind(self.image_size, self.in_channels, self.num_classes, **options)

        with torch.random.fork_rng(devices=[]), torch.device("cpu"), warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # what is to be said of the model was said when it was trained
            try:
                count_elements(make, memory_bytes() // 4 if most is None else most)
                made = make()
            except TooManyElementsError as error:
                sizes = {name: getattr(self, name) for name in SIZES} | dict(self.options)
                raise wrong_value(
                    "the size of the model", sizes, f"a smaller one; it has {error}"
                ) from error
            # What an impossible size raises depends on where it is used first.
            except (
                TypeError,
                RuntimeError,
                AttributeError,
                ArithmeticError,
                LookupError,
                RecursionError,
            ) as error:
                expected = f"options of {self.model} ({first_line(error)})"
                raise wrong_value("options", dict(self.options), expected) from error
        return made.float().eval()


def _is_json(value: Mapping[str, object]) -> bool:
    try:
        return json.loads(json.dumps(dict(value), allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        return False
