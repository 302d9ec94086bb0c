"""How far a training is: its clock, carried over a resume, and a table of its epochs."""

import sys
import time
from collections.abc import Callable, Mapping

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import STEP_OUTPUT
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Clock(Callback):
    """Seconds trained, those before a resume too, and a stop when the loss is not a number."""

    def __init__(self) -> None:
        self.seconds = 0.0
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
        before, self._since = self._since, time.perf_counter()
        self.seconds += self._since - before

    def state_dict(self) -> dict[str, object]:
        """What a resumed training begins with."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict) -> None:
        """Resume from there."""
        self.seconds = state_dict["seconds"]


def _power(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-")


def _number(value: float) -> str:
    if 0 < value < 0.001:
        return _power(value)
    return f"{value:.0f}" if value >= 100 else f"{value:.4f}"[:5]


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 10:
        return f"{hours} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# First and second line of the heading, the width with a space before it, what is shown, and how.
COLUMNS: tuple[tuple[str, str, int, str, Callable[..., str]], ...] = (
    ("", "epoch", 7, "epoch", str),
    ("", "loss", 6, "train_loss", _number),
    ("training", "accuracy", 9, "train_accuracy", "{:.1%}".format),
    ("", "loss", 6, "validation_loss", _number),
    ("held out", "accuracy", 9, "validation_accuracy", "{:.1%}".format),
    ("", "rate", 7, "rate", _power),
    ("images", "/s", 7, "images_per_second", _number),
    ("TFLOP", "/s", 7, "tflops_per_second", _number),
    ("of", "peak", 6, "flop_utilisation", "{:.1%}".format),
    ("", "time", 8, "time", _time),
    ("", "left", 8, "left", _time),
)


class EpochTable(Callback):
    """Prints a row when an epoch ends, after the clock has counted it, and shows a bar of the steps on a terminal."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._learning_rate = 0.0
        self._bar: Progress | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the heading."""
        if trainer.is_global_zero:
            for line in (0, 1):
                print("".join(f"{column[line]:>{column[2]}}" for column in COLUMNS).rstrip(), flush=True)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the bar."""
        if trainer.is_global_zero and sys.stdout.isatty():
            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            console = Console(force_terminal=True)
            self._bar = Progress(TextColumn("{task.description}"), *columns, console=console, transient=True)
            self._bar.add_task(_epoch(trainer), total=int(trainer.num_training_batches))
            self._bar.start()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Keep the learning rate of this step: after the last one the schedule says that of the next epoch."""
        self._learning_rate = float(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        """Move the bar on."""
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the row."""
        self._close()
        if not trainer.is_global_zero:
            return
        done, seconds = trainer.current_epoch + 1, self.clock.seconds
        values = {
            **{name: float(value) for name, value in trainer.callback_metrics.items()},
            "epoch": _epoch(trainer),
            "rate": self._learning_rate,
            "time": seconds,
            "left": seconds / done * ((trainer.max_epochs or done) - done),
        }
        cells = (f"{show(values[name]) if name in values else '-':>{width}}" for _, _, width, name, show in COLUMNS)
        print("".join(cells), flush=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Take the bar away."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _epoch(trainer: Trainer) -> str:
    return f"{trainer.current_epoch + 1}/{trainer.max_epochs}"
