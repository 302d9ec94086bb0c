"""Recorder of where attention heads attend during training."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from reproduction.baselines import SelfAttentionNetwork
from reproduction.heads.attention_patterns import (
    measure_attended_offsets,
    measure_resemblance_by_chance,
)
from teka.files import write_bytes
from teka.training import Run

HEADS_FILE = "heads.npz"


class HeadRecorder(Callback):
    """Lightning callback that records where attention heads attend during training.

    It measures the heads before training and after every epoch. The measurements are saved in the
    checkpoints and in the file `heads.npz`, which contains these arrays:

    - The results of `measure_attended_offsets`. The first dimension is the time: the start of the
      training, then the end of every epoch.
    - "epoch": the number of finished epochs at these times.
    - The results of `measure_resemblance_by_chance`, as a baseline.
    - "layer": the layer of each head.
    - "grid": the height and width of the token grid.

    Args:
        model: Network to measure.
        run: Configuration of the training run.
        folder: Folder for `heads.npz`.
    """

    def __init__(self, model: SelfAttentionNetwork, run: Run, folder: Path) -> None:
        self.model = model
        self.path = folder / HEADS_FILE
        self.moments: list[dict[str, Any]] = []
        self.facts = {
            "grid": model.grid.shape,
            "layer": np.repeat(np.arange(len(model.heads)), model.heads),
            **measure_resemblance_by_chance(run, model.heads, model.grid),
        }

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.moments:
            self._record(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._record(trainer.current_epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        return {"moments": self.moments}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.moments = state_dict["moments"]

    def _record(self, epoch: int) -> None:
        kernels = [layer.relative for layer in self.model.attention_layers() if layer.relative]
        self.moments.append({"epoch": epoch, **measure_attended_offsets(kernels, self.model.grid)})
        arrays = {
            name: np.stack([np.asarray(moment[name]) for moment in self.moments])
            for name in self.moments[-1]
        }
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **self.facts, **arrays)
        write_bytes(self.path, content.getbuffer())
