"""Training runs: train, resume, restore, evaluate and export them.

A wrong option raises a ValueError that names it.
"""

try:
    import lightning.pytorch  # noqa: F401, for the hint below
except ModuleNotFoundError as error:
    raise ImportError(
        f"training needs {error.name}, which is missing: pip install 'teka[train]'"
    ) from error

from teka.training.execution import Execution
from teka.training.recipe import Recipe, read_recipe
from teka.training.run import Run
from teka.training.train import train
from teka.training.trained_run import TrainedRun, evaluate, export, restore

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
