"""Configuration of a training run: data, model, recipe and seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from teka.codec import decode
from teka.errors import unknown_name_error, wrong_value
from teka.files import read_json, write_json
from teka.models.model_config import MODELS, OLD_NAMES, options_class
from teka.training.recipe import Recipe, read_recipe

RUN_FILE = "run.json"
RESULT_FILE = "result.json"
EVALUATION_FILE = "evaluation.json"
# Default sizes of a run's model, for all models that have these options.
DEFAULT_SIZES = {"dim": 64, "depth": 2, "heads": 4, "patch_size": 1}
# Earlier versions saved the options of all models. These values were the defaults of the others.
OLD_DEFAULTS = {
    "content": None,
    "downsampling": 2,
    "encoding": "quadratic",
    "resnet_stem": "7x7",
    "stem": "patch",
    "tokens": "pixel",
}


@dataclass(frozen=True)
class DataOptions:
    """Choice of the data set for a training run, with its image size and split sizes.

    Args:
        data: Name of a data set: "digits", "mnist", "fashion-mnist" or "cifar10". Or the path of a
            folder with one subfolder of pictures per class, of a CSV file with the columns file and
            label, or of an .npz file.
        data_dir: Folder with the files of the data set. "digits" needs no files. A relative path in
            `data` is first looked up in this folder.
        image_size: Side of the images in pixels. Digits are placed on a canvas of this size, other
            images are resized.
        train_size: Number of training images, all by default.
        validation_size: Number of training images that are held out for validation. The default is
            137 for digits, 5,000 for the other published data sets and a tenth for other images.
    """

    data: str = "digits"
    data_dir: str | None = None
    image_size: int | None = None
    train_size: int | None = None
    validation_size: int | None = None


@dataclass(frozen=True)
class ModelOptions:
    """Model architecture of a training run, with its options.

    >>> from teka.training.run import ModelOptions
    >>> network = ModelOptions("performer", {"position": "fourier", "dim": 16})
    >>> network.options["dim"], network.options["kernel"]
    (16, 'squared_relu')

    Args:
        model: Name of a model class, such as "performer". See `teka.models.model_config.MODELS`.
        options: Options of the model class, such as the fields of `teka.models.PerformerConfig`.
            Missing options take their default values. The defaults of `dim`, `depth`, `heads` and
            `patch_size` are 64, 2, 4 and 1.

    Raises:
        ValueError: An unknown model, an option that the model does not have, or a wrong type.
    """

    model: str = "performer"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = options_class(self.model)
        known = kind.__dataclass_fields__
        sizes = {name: size for name, size in DEFAULT_SIZES.items() if name in known}
        options = decode(kind, {**sizes, **self.options}, f"{self.model}.options")
        object.__setattr__(self, "options", vars(options))
        if self.options.get("head", "pooled") != "pooled":
            raise wrong_value(
                "head", self.options["head"], "'pooled'", "A run trains a classifier."
            )


@dataclass(frozen=True)
class Run:
    """Configuration of a training run: data set, model, recipe and seed.

    The fields of the data set, model and recipe are also attributes of the run, such as
    `run.learning_rate`.

    >>> from teka.training import Run
    >>> run = Run.from_fields(position="fourier", dim=16, epochs=3)
    >>> other = run.replace(seed=1, epochs=5)
    >>> run.dim, run.differing_fields(other), Run.from_dict(run.to_dict()) == run
    (16, ['epochs', 'seed'], True)

    Args:
        images: Data set.
        network: Model.
        recipe: Optimizer, schedule, augmentation and precision.
        seed: Seed of the initial weights, the order of the images, dropout, augmentation and random
            projections.

    Raises:
        ValueError: A field is unknown or out of range, or two fields contradict each other.
    """

    images: DataOptions = field(default_factory=DataOptions)
    network: ModelOptions = field(default_factory=ModelOptions)
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise wrong_value("seed", self.seed, "a whole number of at least 0 and below 2^32")
        if self.recipe.patience is not None and self.images.validation_size == 0:
            raise wrong_value(
                "patience",
                self.recipe.patience,
                "None with validation_size=0",
                "Early stopping needs validation images.",
            )

    def __getattr__(self, name: str) -> Any:
        # Copying and unpickling look for attributes before there are fields.
        fields = {} if name.startswith("__") or "seed" not in vars(self) else self.to_dict()
        if name not in fields:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return fields[name]

    @property
    def model_name(self) -> str:
        """Short description of the model for tables, such as "rotary, squared_relu, polyphase"."""
        options = self.network.options
        if self.network.model != "performer":
            return self.network.model
        names = [options["position"], options["kernel"]]
        if options["patch_size"] > 1:
            names.append(options["stem"] or "patch")
        return ", ".join(names)

    @classmethod
    def from_fields(cls, **fields: object) -> Run:
        """Create a run from keyword arguments, as in `Run.from_fields(dim=32, epochs=3)`.

        Any field of the data set, model or recipe can be set. Others take their default values.
        """
        return cls.from_dict(fields)

    @classmethod
    def from_recipe(cls, name: str | Path, **fields: object) -> Run:
        """Create a run from a named recipe. Keyword arguments override the settings of the recipe.

        >>> from teka.training import Run
        >>> Run.from_recipe("mnist", data_dir="data", epochs=3).data
        'mnist'

        Args:
            name: Name of a predefined recipe, or path of a YAML file.
            fields: Fields of the run to set or override, such as `data_dir` or `seed`.
        """
        return cls.from_dict({**read_recipe(name), **fields})

    def replace(self, **fields: object) -> Run:
        """Return a copy of the run with changed fields, as in `run.replace(epochs=3)`."""
        return self.from_dict({**self.to_dict(), **fields})

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a flat dictionary, in the format of `run.json`."""
        network = {"model": self.network.model, **self.network.options}
        return {**vars(self.images), **network, **vars(self.recipe), "seed": self.seed}

    @classmethod
    def from_dict(cls, fields: Mapping[str, object]) -> Run:
        """Create a run from a flat dictionary of fields, such as the result of `to_dict`.

        Missing fields take their default values. Fields of earlier versions are accepted.

        Raises:
            ValueError: An unknown key, or a value of a wrong type or out of range.
        """
        remaining: dict[str, Any] = dict(fields)
        for name in ("dropout", "mlp_ratio"):
            if remaining.get(name, 0) is None:  # earlier versions saved None for the default value
                del remaining[name]

        def take_fields(kind: type[Any]) -> dict[str, Any]:
            known = kind.__dataclass_fields__
            return {name: remaining.pop(name) for name in known if name in remaining}

        images = decode(DataOptions, take_fields(DataOptions), "images")
        recipe = decode(Recipe, take_fields(Recipe), "recipe")
        seed = decode(int, remaining.pop("seed", cls.seed), "seed")
        model = decode(str, remaining.pop("model", ModelOptions.model), "model")
        for old_name, name in OLD_NAMES.get(model, {}).items():
            if old_name in remaining:
                remaining[name] = remaining.pop(old_name)
        run = cls(images, ModelOptions(model, take_fields(options_class(model))), recipe, seed)
        defaults = ModelOptions().options
        for name, value in remaining.items():
            if value not in (defaults.get(name, ...), OLD_DEFAULTS.get(name, ...)):
                raise unknown_name_error(f"run key with model={model!r}", name, run.to_dict())
        return run

    def differing_fields(self, other: Run) -> list[str]:
        """Return the names of all fields in which two runs differ, except `data_dir`."""
        fields = self.to_dict()
        other_fields = other.to_dict()
        return [
            name
            for name in fields | other_fields
            if name != "data_dir" and fields.get(name) != other_fields.get(name)
        ]

    def save(self, directory: Path) -> None:
        """Save the configuration as `run.json` in a folder."""
        write_json(directory / RUN_FILE, self.to_dict())

    @classmethod
    def load(cls, directory: Path) -> Run:
        """Load the configuration of a run from `run.json` in its folder."""
        if not (directory / RUN_FILE).is_file():
            raise wrong_value("run", str(directory), f"a folder that holds {RUN_FILE}")
        return cls.from_dict(read_json(directory / RUN_FILE))

    def make_model(
        self, *, image_size: tuple[int, int], in_channels: int, num_classes: int
    ) -> nn.Module:
        """Create the model with random weights, drawn from PyTorch's global generator."""
        return MODELS[self.network.model](
            image_size, in_channels, num_classes, **self.network.options
        )
