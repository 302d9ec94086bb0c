"""Training of image classifiers: runs that can be resumed, evaluated and exported."""

from importlib import import_module
from typing import TYPE_CHECKING

from teka.errors import require
from teka.training.execution import Execution
from teka.training.recipe import Recipe, read_recipe
from teka.training.run import Run

if TYPE_CHECKING:
    from teka.training.trained_run import TrainedRun, evaluate, export, restore
    from teka.training.trainer import train

__all__ = [
    "Execution",
    "Recipe",
    "Run",
    "TrainedRun",
    "evaluate",
    "export",
    "read_recipe",
    "restore",
    "train",
]


def __getattr__(name: str) -> object:
    """Import a function when it is first used, because importing Lightning takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'teka.training' has no attribute {name!r}")
    require("lightning", "training needs", "teka[train]")
    module = import_module(f"teka.training.{'trainer' if name == 'train' else 'trained_run'}")
    return getattr(module, name)
