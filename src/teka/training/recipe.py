"""Recipes: how a model is trained, by a name or as a YAML file."""

import dataclasses
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from teka.errors import unknown_name, wrong_value
from teka.files import read_yaml
from teka.training.run import Run

SUFFIX = ".yaml"


@dataclass(frozen=True)
class Recipe:
    """The fields of a `Run` that say how it is trained, and neither on what nor which model.

    Args:
        optimizer: See `Run`, as for all of them.
        learning_rate: Peak learning rate.
        betas: Decay rates of Adam's moments.
        momentum: Momentum of SGD.
        weight_decay: Weight decay.
        schedule: Schedule of the learning rate.
        warmup: Share of the steps of the warm-up.
        batch_size: Images a step.
        gradient_clip: Largest norm of the gradient.
        label_smoothing: Share of the target that is spread over all classes.
        random_shift: Largest random shift of training images, in pixels.
        random_flip: Whether training images are mirrored at random.
        epochs: Most passes over the training images.
        patience: Epochs without a better validation accuracy before training stops.
        redraw_every: Steps between two draws of the random projections.
        precision: Precision of the products.

    Raises:
        ValueError: A value that a run does not take.
    """

    optimizer: str
    learning_rate: float
    betas: tuple[float, float]
    momentum: float
    weight_decay: float
    schedule: str
    warmup: float
    batch_size: int
    gradient_clip: float
    label_smoothing: float
    random_shift: int
    random_flip: bool
    epochs: int
    patience: int | None
    redraw_every: int
    precision: str

    def __post_init__(self) -> None:
        self.apply(Run())

    def apply(self, run: Run) -> Run:
        """The run, trained by this recipe.

        Args:
            run: Data, model and seed.
        """
        values: dict[str, Any] = self.fields()
        return dataclasses.replace(run, **values)

    def fields(self) -> dict[str, object]:
        """The fields of a run that it decides."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def recipe_names() -> tuple[str, ...]:
    """The recipes that come with the library."""
    entries = (files("teka.training") / "recipes").iterdir()
    return tuple(sorted(entry.name.removesuffix(SUFFIX) for entry in entries if entry.name.endswith(SUFFIX)))


def read_recipe(name: str | Path) -> Recipe:
    """A recipe.

    Args:
        name: The name of one that comes with the library, or the path of a YAML file that holds every field of one.

    Raises:
        ImportError: Without PyYAML.
        ValueError: An unknown name, no such file, or one that is not a recipe.
    """
    if str(name).endswith((SUFFIX, ".yml")):
        if not Path(name).is_file():
            raise wrong_value("recipe", str(name), "a YAML file, or one of " + ", ".join(recipe_names()))
        content = read_yaml("recipe", name)
    elif str(name) in recipe_names():
        with as_file(files("teka.training") / "recipes" / f"{name}{SUFFIX}") as file:
            content = read_yaml("recipe", file)
    else:
        raise unknown_name("recipe", str(name), recipe_names())
    if not isinstance(content, dict):
        raise wrong_value("recipe", str(name), "a YAML file of fields and values")
    known = [field.name for field in dataclasses.fields(Recipe)]
    for field in content:
        if field not in known:
            raise unknown_name(f"field of recipe {str(name)!r}", str(field), known)
    missing = [field for field in known if field not in content]
    if missing:
        raise wrong_value("recipe", str(name), f"every field; without {', '.join(missing)}")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    return Recipe(**values)
