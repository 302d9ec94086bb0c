"""Saving, verifying and loading the checkpoints of a training run.

Checkpoints are written atomically, so that an interruption does not damage them. They are loaded
with `weights_only=True`, so that a file cannot execute code.
"""

import io
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor, nn

from teka.errors import first_line_of_error, wrong_value
from teka.files import write_bytes
from teka.models.model_file import load_tensors
from teka.training.run import Run

CHECKPOINTS = "checkpoints"
BEST = "best.ckpt"
LAST = "last.ckpt"
# The checkpoint before `LAST`, which is used if `LAST` is damaged.
PREVIOUS = "previous.ckpt"
MODEL_PREFIX = "model."
REQUIRED_KEYS = (
    "state_dict",
    "epoch",
    "global_step",
    "loops",
    "callbacks",
    "optimizer_states",
    "lr_schedulers",
)


@dataclass(eq=False)
class Checkpoints(Checkpoint):
    """Lightning callback that saves checkpoints after each epoch.

    `last.ckpt` is saved after every epoch, to resume the run. `best.ckpt` holds the epoch with the
    highest validation accuracy, or the last epoch if there are no validation images.

    Args:
        folder: Folder of the checkpoints.
        run: Configuration, which is saved in each checkpoint.
        start: Checkpoint to resume from, or None for a new run.
    """

    folder: Path
    run: Run
    start: Path | None
    has_started: bool = False
    best_accuracy: float | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop a resumed run at once if early stopping has already ended it."""
        self.has_started = True
        if trainer.is_global_zero and self.start == self.folder / PREVIOUS:
            # The last checkpoint is damaged and must not become the previous one.
            (self.folder / LAST).unlink(missing_ok=True)
        for stopping in trainer.early_stopping_callbacks:
            trainer.should_stop |= stopping.wait_count >= stopping.patience

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        accuracy = trainer.callback_metrics.get("validation_accuracy")
        is_best = accuracy is None or self.best_accuracy is None or accuracy > self.best_accuracy
        if is_best and accuracy is not None:
            self.best_accuracy = float(accuracy)
        # A run that is killed between the two writes repeats this epoch when it is resumed.
        for name in (BEST, LAST) if is_best else (LAST,):
            trainer.save_checkpoint(self.folder / name, weights_only=False)

    def state_dict(self) -> dict[str, object]:
        return {"run": self.run.to_dict(), "best_accuracy": self.best_accuracy}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_accuracy = state_dict["best_accuracy"]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning plugin that writes checkpoints atomically."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None
    ) -> None:
        """Write a checkpoint atomically. An existing `last.ckpt` is renamed to `previous.ckpt`."""
        content = io.BytesIO()
        torch.save(checkpoint, content)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        previous = path.with_name(PREVIOUS) if path.name == LAST else None
        write_bytes(path, content.getbuffer(), backup=previous)


def find_resume_checkpoint(folder: Path, run: Run) -> Path | None:
    """Return the checkpoint from which to resume a run, or None if there is none.

    This is `last.ckpt` or, if that file is missing or damaged, `previous.ckpt`.

    Args:
        folder: Folder of the run.
        run: Configuration that the checkpoint must match.

    Raises:
        ValueError: The checkpoint belongs to another run, or all checkpoints are damaged.
    """
    last, previous = (folder / CHECKPOINTS / name for name in (LAST, PREVIOUS))
    if not last.is_file() and not previous.is_file():
        return None
    path = last
    if previous.is_file():
        try:
            read_checkpoint(last)
        except ValueError as error:
            path = previous
            warnings.warn(f"{error} The previous epoch is used: {path}", stacklevel=2)
    if not verify_checkpoint(path, run):
        raise wrong_value(
            "checkpoint",
            str(path),
            "one that holds the best accuracy",
            "A run of an older version of teka cannot be resumed.",
        )
    return path


def verify_checkpoint(path: Path, run: Run) -> dict[str, Any]:
    """Raise an error if a checkpoint does not belong to a run.

    The configuration in the checkpoint must equal that of the run, except for `data_dir`.

    Returns:
        The state of the callback `Checkpoints`, which is empty in checkpoints of older versions.

    Raises:
        ValueError: The checkpoint belongs to another run or is damaged.
    """
    content = read_checkpoint(path)
    if missing := [key for key in REQUIRED_KEYS if key not in content]:
        hint = f"It lacks {', '.join(missing)}."
        raise wrong_value("checkpoint", str(path), "a complete checkpoint", hint)
    state = content["callbacks"].get(Checkpoints.__name__, {})
    if state:
        saved = Run.from_dict(state["run"])
        if names := run.differing_fields(saved):
            values = [fields.to_dict().get(names[0]) for fields in (saved, run)]
            hint = f"{names[0]} is {values[0]!r} there and {values[1]!r} here."
            raise wrong_value("checkpoint", str(path), "a checkpoint of this run", hint)
    return state


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of Lightning as a dictionary, without executing code from the file.

    Raises:
        ValueError: The file is missing, damaged or not a checkpoint of `teka train`.
    """
    if not path.is_file():
        raise wrong_value("checkpoint", str(path), "a file", "Train the run first.")
    try:
        with zipfile.ZipFile(path) as archive:
            # PyTorch does not verify the checksums of its files.
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} is damaged")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the type of the error depends on what is damaged
        raise wrong_value(
            "checkpoint",
            str(path),
            f"an undamaged checkpoint of plain tensors ({first_line_of_error(error)})",
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise wrong_value("checkpoint", str(path), "a checkpoint of teka train, with a state_dict")
    return content


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the model weights in a checkpoint, as a dictionary from names to tensors."""
    return {
        name.removeprefix(MODEL_PREFIX): tensor
        for name, tensor in read_checkpoint(path)["state_dict"].items()
        if name.startswith(MODEL_PREFIX)
    }


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a checkpoint's weights into a model of the same architecture.

    Raises:
        ValueError: A weight is missing, unknown or of another shape. The message names the weight.
    """
    load_tensors(model, read_weights(path), str(path))
