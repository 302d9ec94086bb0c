"""Training that begins from given weights."""

from collections.abc import Mapping

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from teka.training.classifier import Classifier


class InitialWeights(Callback):
    """Gives the model weights before the first step, in place of drawn ones; a checkpoint goes before them.

    Args:
        weights: The model's state_dict.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = weights

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Load them; Lightning reads a checkpoint after this."""
        assert isinstance(pl_module, Classifier)
        pl_module.model.load_state_dict(self.weights)
