"""A run's checkpoints: written whole, and read without unpickling anything but tensors and plain containers."""

import io
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor, nn

from teka.errors import first_line, wrong_value
from teka.files import write_bytes
from teka.training.run import Run

CHECKPOINTS = "checkpoints"
BEST = "best.ckpt"
LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"  # the last one before `LAST`, should that be damaged
RUN = "run"
PARTS = (
    "state_dict",
    "epoch",
    "global_step",
    "loops",
    "callbacks",
    "optimizer_states",
    "lr_schedulers",
)
# What torch raises for a file that is none of its own, or not a whole one.
UNREADABLE = (
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
)


class Checkpoints(Callback):
    """Writes a training's state after each epoch, and says when patience is over; the last of its callbacks."""

    def __init__(self, folder: Path, run: Run, start: Path | None) -> None:
        self.folder, self.run, self.start = folder / CHECKPOINTS, run, start
        self.has_begun = False
        self.best_accuracy: float | None = None
        self.epochs_since = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End a training that was resumed after its patience was over."""
        self.has_begun = True
        if trainer.is_global_zero and self.start == self.folder / PREVIOUS:
            (self.folder / LAST).unlink(
                missing_ok=True
            )  # which is damaged, and would become the previous one
        self._end_without_patience(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the state; where nothing is held out, the last is the best."""
        found = trainer.callback_metrics.get("validation_accuracy")
        accuracy = None if found is None else float(found)
        is_best = accuracy is None or self.best_accuracy is None or accuracy > self.best_accuracy
        self.epochs_since = 0 if is_best else self.epochs_since + 1
        self.best_accuracy = accuracy if is_best else self.best_accuracy
        for name in (
            (BEST, LAST) if is_best else (LAST,)
        ):  # killed between the two, it repeats that epoch
            trainer.save_checkpoint(self.folder / name, weights_only=False)
        self._end_without_patience(trainer)

    def state_dict(self) -> dict[str, object]:
        return {
            RUN: self.run.to_dict(),
            "best_accuracy": self.best_accuracy,
            "epochs_since": self.epochs_since,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_accuracy, self.epochs_since = (
            state_dict["best_accuracy"],
            state_dict["epochs_since"],
        )

    def _end_without_patience(self, trainer: Trainer) -> None:
        if self.run.patience is not None and self.epochs_since >= self.run.patience:
            trainer.should_stop = True


class WholeFiles(TorchCheckpointIO):
    """Lightning's checkpoints, each written whole or not at all."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None
    ) -> None:
        """Write one; of the last one of a training, what stood there is kept as the previous."""
        content = io.BytesIO()
        torch.save(checkpoint, content)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(
            path,
            content.getbuffer(),
            previous=path.with_name(PREVIOUS) if path.name == LAST else None,
        )


def find_checkpoint(folder: Path, run: Run) -> Path | None:
    """The checkpoint that a training resumes from, the previous one if the last is damaged; None if there is none."""
    found, previous = (folder / CHECKPOINTS / name for name in (LAST, PREVIOUS))
    if not found.is_file() and not previous.is_file():
        return None
    try:
        kept = check_run(found, run)
    except BrokenCheckpointError as error:
        if not previous.is_file():
            raise
        found, kept = previous, check_run(previous, run)
        warnings.warn(f"{error}; the epoch before it is taken, from {previous}", stacklevel=2)
    if not kept:
        raise wrong_value(
            "checkpoint", str(found), "one that says what was best so far: it is of an older teka"
        )
    return found


def check_run(path: Path, run: Run) -> dict[str, object]:
    """Check that one is of this run, wherever its data lie; what `Checkpoints` kept, {} of an older teka's."""
    content = _read(path)
    if missing := [part for part in PARTS if part not in content]:
        raise wrong_value("checkpoint", str(path), f"a whole one; it lacks {', '.join(missing)}")
    kept = callback_state(content, Checkpoints.__name__)
    trained = kept.get(RUN)
    if not isinstance(trained, dict):
        return {}
    try:
        there = Run.from_dict(trained)
    except ValueError as error:
        raise wrong_value("checkpoint", str(path), f"that of this run ({error})") from error
    if fields := run.differs_from(there):
        first = f"{fields[0]} is {getattr(there, fields[0])!r} there and {getattr(run, fields[0])!r} here"
        rest = f" and {', '.join(fields[1:])}" if fields[1:] else ""
        raise wrong_value("checkpoint", str(path), f"that of this run; {first}{rest}")
    return kept


class BrokenCheckpointError(ValueError):
    """A checkpoint that is missing, cut off or damaged."""

    def __init__(self, path: Path, expected: str) -> None:
        super().__init__(*wrong_value("checkpoint", str(path), expected).args)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise BrokenCheckpointError(path, "a file; train the run first")
    try:
        with zipfile.ZipFile(
            path
        ) as archive:  # torch reads its own files without a look at their sums
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} is damaged")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (*UNREADABLE, zipfile.BadZipFile, OSError) as error:
        raise BrokenCheckpointError(
            path, f"a whole checkpoint of plain tensors ({first_line(error)})"
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise BrokenCheckpointError(path, "a checkpoint written by teka train, with a state_dict")
    return content


def read_weights(path: Path) -> dict[str, Tensor]:
    """The model's state_dict of a checkpoint."""
    prefix = "model."
    state = _read(path)["state_dict"]
    if not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items()
    ):
        raise wrong_value(
            "checkpoint", str(path), "one whose state_dict holds tensors by their names"
        )
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a checkpoint into a model of the same architecture; after an error the model is as it was."""
    found, wanted = read_weights(path), model.state_dict()
    for name in sorted(wanted.keys() | found.keys()):
        came = tuple(found[name].shape) if name in found else "missing"
        expected = tuple(wanted[name].shape) if name in wanted else "absent"
        if came != expected:
            raise wrong_value(
                "checkpoint",
                str(path),
                f"this architecture; {name} is {came} there and {expected} here",
            )
    model.load_state_dict(found)


def callback_state(checkpoint: Path | dict[str, Any], callback: str) -> dict[str, Any]:
    """What one of Lightning's callbacks, by the name of its class, kept in a checkpoint; nothing if it kept none."""
    callbacks = (_read(checkpoint) if isinstance(checkpoint, Path) else checkpoint).get("callbacks")
    state = callbacks.get(callback) if isinstance(callbacks, dict) else None
    return state if isinstance(state, dict) else {}
