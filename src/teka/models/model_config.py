"""What a model file says of its model, beside the weights: enough to build it, and facts about it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from teka.checks import LARGEST, check_name, is_whole
from teka.errors import unknown_name, wrong_value
from teka.memory import LARGEST_IMAGE, TooManyNumbersError, count_numbers, memory_bytes
from teka.models.models import MODELS

SIZES = ("image_size", "in_channels", "num_classes")


@dataclass(frozen=True)
class ModelConfig:
    """A model by name, sizes and options, and what is known of it; all of it plain JSON.

    Args:
        model: A name of `teka.models.MODELS`.
        image_size: Height and width of its images in pixels.
        in_channels: Channels of its images.
        num_classes: Number of its logits.
        options: The model's own options by name; those left out are at their defaults. A tuple becomes a list, which
            is what JSON has. An option that is a module or another object, such as a stem of one's own, cannot be
            written down.
        class_names: A name for each class, if they have any.
        pictures: How pictures become the model's images, as `teka.prediction.PictureSettings` reads it.
        facts: What else is known: provenance, data, accuracy.

    Raises:
        ValueError: An unknown model or option, an option that the model needs and is not given, a size that is not a
            positive whole number, another number of class names, or something that is not plain JSON.
    """

    model: str
    image_size: tuple[int, int]
    in_channels: int
    num_classes: int
    options: Mapping[str, object] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    pictures: Mapping[str, object] | None = None
    facts: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("model", self.model, MODELS)
        if not (
            isinstance(self.image_size, tuple) and len(self.image_size) == 2 and all(map(_is_size, self.image_size))
        ):
            raise wrong_value("image_size", self.image_size, "height and width, whole numbers of at least 1")
        if self.image_size[0] * self.image_size[1] > LARGEST_IMAGE:
            raise wrong_value("image_size", self.image_size, f"at most {LARGEST_IMAGE:,} pixels")
        for argument in ("in_channels", "num_classes"):
            if not _is_size(getattr(self, argument)):
                raise wrong_value(argument, getattr(self, argument), "a whole number of at least 1")
        if isinstance(self.options, Mapping):
            listed = {name: list(one) if isinstance(one, tuple) else one for name, one in self.options.items()}
            object.__setattr__(self, "options", listed)
        for argument in ("options", "pictures", "facts"):
            value = getattr(self, argument)
            if not (isinstance(value, Mapping) and _is_json(value)) and (argument, value) != ("pictures", None):
                raise wrong_value(
                    argument, value, "a mapping of names to plain JSON: numbers, strings, lists, mappings"
                )
        known = {name: parameter for name, parameter in _parameters(self.model).items() if name not in SIZES}
        for name in self.options:
            if name not in known:
                raise unknown_name(f"option of {self.model}", name, known)
        missing = [name for name, one in known.items() if one.default is one.empty and name not in self.options]
        if missing:
            raise wrong_value("options", dict(self.options), f"also {', '.join(missing)}, which {self.model} needs")
        names = self.class_names
        if names is not None and not (
            isinstance(names, tuple) and len(names) == self.num_classes and all(isinstance(name, str) for name in names)
        ):
            raise wrong_value("class_names", names, f"{self.num_classes} strings, or None")

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        fields = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, object]) -> ModelConfig:
        """The config with these fields, as `to_dict` gives them.

        Raises:
            ValueError: A key that is unknown or missing, or a value that the config does not take.
        """
        known = [entry.name for entry in dataclasses.fields(cls)]
        for key in fields:
            if key not in known:
                raise unknown_name("config key", key, known)
        missing = [key for key in ("model", *SIZES) if key not in fields]
        if missing:
            raise wrong_value("config", sorted(fields), f"also {', '.join(missing)}")
        listed = ("image_size", "class_names")  # JSON knows lists only
        values = {key: _tuple(value) if key in listed else value for key, value in fields.items()}
        return cls(**values)  # pyright: ignore[reportArgumentType]  # __post_init__ checks the types

    def make_model(self, most: int | None = None) -> nn.Module:
        """The model on the CPU in float32, in evaluation mode, with new weights; torch's random state stays as it was.

        Args:
            most: Numbers that its parameters and buffers may be, by default as many as memory has room for.

        Raises:
            ValueError: Options that the model does not take, or too large ones.
        """

        def make() -> nn.Module:
            return MODELS[self.model](self.image_size, self.in_channels, self.num_classes, **self.options)

        with torch.random.fork_rng(devices=[]), torch.device("cpu"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is to be said of the model was said when it was trained
            try:
                count_numbers(make, memory_bytes() // 4 if most is None else most)
                made = make()
            except TooManyNumbersError as error:
                sizes = {name: getattr(self, name) for name in SIZES} | dict(self.options)
                raise wrong_value("the size of the model", sizes, f"a smaller one; it has {error}") from error
            # What a value of a wrong type or an impossible size raises depends on where it is used first.
            except (TypeError, RuntimeError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
                expected = f"options of {self.model} ({next(iter(str(error).splitlines()), type(error).__name__)})"
                raise wrong_value("options", dict(self.options), expected) from error
        return made.float().eval()


def option_names(model: str) -> list[str]:
    """Names of the options that a model of `MODELS` has besides the sizes.

    Args:
        model: The model's name.
    """
    return [name for name in _parameters(model) if name not in SIZES]


def _parameters(model: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(MODELS[model]).parameters


def _is_size(value: object) -> bool:
    return is_whole(value) and 1 <= value <= LARGEST


def _is_json(value: object) -> bool:
    try:
        return json.loads(json.dumps(dict(value) if isinstance(value, Mapping) else value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        return False


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
