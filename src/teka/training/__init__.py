"""Training runs, reading them back, and measuring them."""

try:
    import lightning.pytorch  # noqa: F401, here for what is said without it
except ModuleNotFoundError as error:
    raise ImportError(f"training needs {error.name}, which is missing: pip install 'teka[train]'") from error

from teka.training.execution import Execution
from teka.training.prune import Pruning, prune
from teka.training.recipe import Recipe, read_recipe, recipe_names
from teka.training.run import Run
from teka.training.shift import ShiftSettings, measure, write_shift_report
from teka.training.train import train
from teka.training.trained_run import TrainedRun, evaluate, export, restore

__all__ = [
    "Execution",
    "Pruning",
    "Recipe",
    "Run",
    "ShiftSettings",
    "TrainedRun",
    "evaluate",
    "export",
    "measure",
    "prune",
    "read_recipe",
    "recipe_names",
    "restore",
    "train",
    "write_shift_report",
]
