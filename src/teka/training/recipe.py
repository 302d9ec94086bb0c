"""Recipes: how a model is trained, by a name or as a YAML file."""

import dataclasses
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from teka.checks import PRECISIONS, check_name, check_sizes
from teka.codec import decode
from teka.data.augment import SHIFT_MODES
from teka.errors import unknown_name, wrong_value
from teka.files import read_yaml

OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("constant", "cosine")
BETAS = (0.9, 0.98)
SUFFIX = ".yaml"


@dataclass(frozen=True)
class Recipe:
    """How a model is trained, and neither on what nor which model.

    >>> from teka.training import Recipe, Run
    >>> recipe = Recipe(epochs=3, optimizer="sgd", momentum=0.9, learning_rate=0.1)
    >>> Run(recipe=recipe).learning_rate
    0.1

    Args:
        epochs: Most passes over the training images.
        batch_size: Images a step.
        optimizer: "adamw", "adam" or "sgd".
        learning_rate: Peak learning rate.
        label_smoothing: Share of the target that is spread over all classes in training; the loss of held-out images
            is without it.
        random_shift: Largest number of pixels that a training image is moved by along each axis, at random; over the
            edge if the images' edges meet, and filled with background if not.
        shift_mode: "zero" or "circular", where `random_shift` is to do other than the images' edges: a model that keeps
            rolls exactly learns nothing from them. None for as the edges do.
        random_flip: Whether training images are mirrored left to right at random.
        precision: "float32", or "bfloat16" or "float16" for products under autocast with weights in float32.
        betas: Decay rates of Adam's moments.
        momentum: Momentum of SGD; 0 with the others.
        weight_decay: Decoupled weight decay of AdamW, of the weights of linear maps; or of SGD, a share of each
            parameter in its gradient, but of those of positions; 0 with "adam".
        schedule: "cosine" (to 0 over the epochs) or "constant".
        warmup: Share of the steps over which the learning rate rises linearly from 0.
        gradient_clip: Largest norm of the gradient; 0 for no clipping.
        patience: Epochs without a better validation accuracy before training stops early; None for never.
        redraw_every: Steps between two draws of the random projections; 0 for never.
    """

    epochs: int = 20
    batch_size: int = 64
    optimizer: str = "adamw"
    learning_rate: float = 2e-3
    label_smoothing: float = 0.0
    random_shift: int = 0
    shift_mode: str | None = None
    random_flip: bool = False
    precision: str = "float32"
    betas: tuple[float, float] = BETAS
    momentum: float = 0.0
    weight_decay: float = 0.05
    schedule: str = "cosine"
    warmup: float = 0.1
    gradient_clip: float = 1.0
    patience: int | None = None
    redraw_every: int = 1000

    def __post_init__(self) -> None:
        for argument, names in (
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("precision", PRECISIONS),
        ):
            check_name(argument, getattr(self, argument), names)
        if self.shift_mode is not None:
            check_name("shift_mode", self.shift_mode, SHIFT_MODES)
            if not self.random_shift:
                raise wrong_value("shift_mode", self.shift_mode, "None with random_shift = 0")
        check_sizes({"epochs": self.epochs, "batch_size": self.batch_size})
        check_sizes({"patience": self.patience}, or_none=True)
        check_sizes({"random_shift": self.random_shift, "redraw_every": self.redraw_every}, least=0)
        for argument in ("gradient_clip", "weight_decay"):
            if not 0 <= getattr(self, argument) < float("inf"):
                raise wrong_value(
                    argument, getattr(self, argument), "a finite number of at least 0"
                )
        if not 0 < self.learning_rate < float("inf"):
            raise wrong_value("learning_rate", self.learning_rate, "a positive finite number")
        for argument in ("label_smoothing", "momentum", "warmup"):
            if not 0 <= getattr(self, argument) < 1:
                raise wrong_value(
                    argument, getattr(self, argument), "a number of at least 0 and below 1"
                )
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise wrong_value("betas", self.betas, "two numbers of at least 0 and below 1")
        if self.optimizer == "sgd" and self.betas != BETAS:
            raise wrong_value("betas", self.betas, f"{BETAS} with optimizer 'sgd', which has none")
        if self.optimizer != "sgd" and self.momentum != 0:
            raise wrong_value(
                "momentum", self.momentum, f"0 with optimizer {self.optimizer!r}, which has betas"
            )
        if self.optimizer == "adam" and self.weight_decay != 0:
            raise wrong_value(
                "weight_decay", self.weight_decay, "0 with optimizer 'adam', which has none"
            )


def recipe_names() -> tuple[str, ...]:
    """The recipes that come with the library."""
    entries = (files("teka.training") / "recipes").iterdir()
    return tuple(
        sorted(entry.name.removesuffix(SUFFIX) for entry in entries if entry.name.endswith(SUFFIX))
    )


def read_recipe(name: str | Path) -> Recipe:
    """The recipe of this name, one that comes with the library, or of a YAML file that holds every field of one.

    Raises:
        ImportError: Without PyYAML.
        ValueError: An unknown name, no such file, or one that is not a recipe.
    """
    if str(name).endswith((SUFFIX, ".yml")):
        if not Path(name).is_file():
            raise wrong_value(
                "recipe", str(name), "a YAML file, or one of " + ", ".join(recipe_names())
            )
        content = read_yaml("recipe", name)
    elif str(name) in recipe_names():
        with as_file(files("teka.training") / "recipes" / f"{name}{SUFFIX}") as file:
            content = read_yaml("recipe", file)
    else:
        raise unknown_name("recipe", str(name), recipe_names())
    if not isinstance(content, dict):
        raise wrong_value("recipe", str(name), "a YAML file of fields and values")
    known = [field.name for field in dataclasses.fields(Recipe)]
    missing = [field for field in known if field not in content]
    if missing and content.keys() <= set(known):
        raise wrong_value("recipe", str(name), f"every field; without {', '.join(missing)}")
    return decode(Recipe, content, f"recipe {str(name)!r}")
