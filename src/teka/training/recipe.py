"""Training recipes: the dataclass `Recipe` and predefined recipes in YAML files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from teka.checks import check_name, check_number, check_sizes
from teka.data.augment import SHIFT_MODES
from teka.errors import unknown_name_error, wrong_value
from teka.files import read_yaml

OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("constant", "cosine")
PRECISIONS = ("auto", "float32", "bfloat16", "float16")
BETAS = (0.9, 0.98)
RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run: optimizer, schedule, augmentation and precision.

    >>> from teka.training import Recipe, Run
    >>> recipe = Recipe(epochs=3, optimizer="sgd", momentum=0.9, learning_rate=0.1)
    >>> Run(recipe=recipe).learning_rate
    0.1

    Args:
        epochs: Maximum number of passes over the training images.
        batch_size: Number of images per optimizer step, over all devices.
        optimizer: "adamw", "adam" or "sgd".
        learning_rate: Peak learning rate.
        label_smoothing: Label smoothing of the training loss, from 0 (none) to below 1.
        random_shift: Largest random shift of training images along each axis, in pixels.
        shift_mode: Edges of randomly shifted images: "zero" (background enters) or "circular". The
            default is "circular" for periodic models and "zero" for others. An exactly
            shift-invariant model learns nothing from circular shifts.
        random_flip: Randomly flip training images horizontally.
        precision: Precision of matrix products: "float32", "bfloat16", "float16", or "auto", which
            selects bfloat16 if the processor supports it in hardware. Weights are float32.
        betas: Decay rates of the moments of Adam.
        momentum: Momentum of SGD. It must be 0 for other optimizers.
        weight_decay: Weight decay. AdamW applies it to the weights of linear layers and
            convolutions. SGD applies it to all parameters except those of relative kernels. It must
            be 0 for Adam.
        schedule: Learning-rate schedule after the warm-up: "cosine" (decays to 0) or "constant".
        warmup: Fraction of all steps in which the learning rate rises linearly from 0.
        gradient_clip: Maximum gradient norm. 0 turns clipping off.
        patience: Stop early after this number of epochs without a higher validation accuracy. By
            default a run does not stop early.
        redraw_every: Number of steps after which random projections are redrawn. 0 keeps the
            initial projections.

    Raises:
        ValueError: A name is unknown, a number is out of range, or an option has no effect.
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
        check_name("optimizer", self.optimizer, OPTIMIZERS)
        check_name("schedule", self.schedule, SCHEDULES)
        check_name("precision", self.precision, PRECISIONS)
        if self.shift_mode is not None:
            check_name("shift_mode", self.shift_mode, SHIFT_MODES)
            if not self.random_shift:
                raise wrong_value("shift_mode", self.shift_mode, "None with random_shift=0")
        check_sizes({"epochs": self.epochs, "batch_size": self.batch_size})
        check_sizes({"patience": self.patience}, or_none=True)
        check_sizes({"random_shift": self.random_shift, "redraw_every": self.redraw_every}, least=0)
        for argument in ("gradient_clip", "weight_decay"):
            check_number(argument, getattr(self, argument), "a finite number of at least 0", low=0)
        check_number(
            "learning_rate", self.learning_rate, "a positive finite number", low=0, exclude=(0,)
        )
        rates = {name: getattr(self, name) for name in ("label_smoothing", "momentum", "warmup")}
        rates |= {f"betas[{index}]": beta for index, beta in enumerate(self.betas)}
        for argument, rate in rates.items():
            check_number(
                argument, rate, "a number of at least 0 and below 1", low=0, high=1, exclude=(1,)
            )
        if self.optimizer == "sgd" and self.betas != BETAS:
            raise wrong_value("betas", self.betas, f"{BETAS} with optimizer='sgd'")
        if self.optimizer != "sgd" and self.momentum != 0:
            raise wrong_value("momentum", self.momentum, f"0 with optimizer={self.optimizer!r}")
        if self.optimizer == "adam" and self.weight_decay != 0:
            raise wrong_value("weight_decay", self.weight_decay, "0 with optimizer='adam'")


def list_recipes() -> tuple[str, ...]:
    """Return the names of teka's predefined recipes."""
    return tuple(sorted(path.stem for path in RECIPES.glob("*.yaml")))


def read_recipe(name: str | Path) -> dict[str, Any]:
    """Read a recipe, and return the fields of `Run` that it sets as a dictionary.

    >>> from teka.training import read_recipe
    >>> read_recipe("horn2021")["batch_size"]
    22

    Args:
        name: Name of a predefined recipe, or path of a YAML file.

    Raises:
        ImportError: PyYAML is not installed.
        ValueError: The recipe or file does not exist, or the file contains no mapping.
    """
    path = RECIPES / f"{name}.yaml" if name in list_recipes() else Path(name)
    if not path.is_file():
        raise unknown_name_error(
            "recipe", str(name), list_recipes(), "The path of a YAML file is possible too."
        )
    content = read_yaml("recipe", path)
    if not isinstance(content, dict):
        raise wrong_value("recipe", str(name), "a YAML file with the fields of a run")
    return content
