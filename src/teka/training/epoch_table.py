"""A table of a training's epochs, printed while it goes on."""

import sys
from collections.abc import Mapping

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import STEP_OUTPUT
from tqdm import tqdm

from teka.training.clock import Clock

# First and second line of the heading, and the width with a space before it.
COLUMNS = (
    ("", "epoch", 7),
    ("", "loss", 6),
    ("training", "accuracy", 9),
    ("", "loss", 6),
    ("held out", "accuracy", 9),
    ("", "rate", 7),
    ("images", "/s", 7),
    ("TFLOP", "/s", 7),
    ("of", "peak", 6),
    ("", "time", 8),
    ("", "left", 8),
)


class EpochTable(Callback):
    """Prints a row when an epoch ends, and on a terminal shows a bar of the steps below the rows.

    Where standard output is no terminal there are rows alone, without control characters. Of several processes the
    first prints.

    Args:
        clock: The training's clock, which counts an epoch before its row is printed.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._learning_rate = 0.0
        self._bar: tqdm | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the heading."""
        if trainer.is_global_zero:
            for line in (0, 1):
                print("".join(f"{column[line]:>{column[2]}}" for column in COLUMNS).rstrip(), flush=True)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the bar."""
        if trainer.is_global_zero and sys.stdout.isatty():
            self._bar = tqdm(
                total=int(trainer.num_training_batches),
                desc=_epoch(trainer),
                unit="batch",
                leave=False,
                file=sys.stdout,
                dynamic_ncols=True,
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Keep the learning rate of this step: after the last one the schedule says that of the next epoch."""
        self._learning_rate = float(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        """Go on with the bar."""
        if self._bar is not None:
            self._bar.update()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the row."""
        self._close()
        if trainer.is_global_zero:
            metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
            print(self._row(trainer, metrics), flush=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Take the bar away."""
        self._close()

    def _row(self, trainer: Trainer, metrics: Mapping[str, float]) -> str:
        done, seconds = trainer.current_epoch + 1, self.clock.seconds
        cells = (
            _epoch(trainer),
            _number(metrics.get("train_loss")),
            _percent(metrics.get("train_accuracy")),
            _number(metrics.get("validation_loss")),
            _percent(metrics.get("validation_accuracy")),
            _power(self._learning_rate),
            _number(metrics.get("images_per_second")),
            _number(metrics.get("tflops_per_second")),
            _percent(metrics.get("flop_utilisation")),
            _time(seconds),
            _time(seconds / done * ((trainer.max_epochs or done) - done)),
        )
        return "".join(f"{cell:>{column[2]}}" for cell, column in zip(cells, COLUMNS, strict=True))

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _epoch(trainer: Trainer) -> str:
    return f"{trainer.current_epoch + 1}/{trainer.max_epochs}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.4f}"[:5] if value >= 0.001 or value == 0 else _power(value)


def _power(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 10:
        return f"{hours} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
