"""Training runs, reading them back, and measuring them.

Options that are unknown, out of range or at odds with each other are a ValueError that names the argument.
"""

try:
    import lightning.pytorch  # noqa: F401, here for what is said without it
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
