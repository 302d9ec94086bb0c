"""The time of a training, over all its starts."""

import time
from collections.abc import Mapping
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import STEP_OUTPUT

from teka.training.checkpoint import callback_state


class Clock(Callback):
    """Seconds trained, carried over a resume, and a stop when the loss is not a number.

    Args:
        seconds: Seconds of training before.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since = time.perf_counter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._since = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        """Stop at a loss that is no number."""
        loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        if loss is not None and not torch.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss.item()} in epoch {trainer.current_epoch}, step {trainer.global_step}; "
                "take a smaller learning_rate or gradient_clip; the last whole epoch's checkpoint is kept"
            )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the epoch's seconds."""
        now = time.perf_counter()
        self.seconds += now - self._since
        self._since = now

    def state_dict(self) -> dict[str, object]:
        """What a resumed training goes on with."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict) -> None:
        """Go on from there."""
        self.seconds = state_dict["seconds"]


def seconds_so_far(checkpoint: Path) -> float:
    """Seconds of training that a checkpoint counts, 0 if it does not say."""
    seconds = callback_state(checkpoint, Clock.__name__).get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0
