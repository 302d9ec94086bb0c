"""Training runs, and reading them back."""

from teka.training.run import Run
from teka.training.train import train

__all__ = ["Run", "train"]
