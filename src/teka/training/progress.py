"""How far a training is and how fast: its clock, carried over a resume, images and operations a second, a table."""

import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import STEP_OUTPUT
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.benchmark import Timer

from teka.flops import flop_counter
from teka.training.run import Run

WARMUP_STEPS = 3
MEASURED = "measured matrix product"
SIDE, SIDE_ON_CPU = 4096, 1024
SECONDS = 0.15


class Clock(Callback):
    """Seconds trained, those before a resume too, and a stop when the loss or a weight is not a number."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = time.perf_counter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: STEP_OUTPUT,
        batch: object,
        batch_idx: int,
    ) -> None:
        loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        if loss is not None and not torch.isfinite(loss):
            raise _not_finite(f"the loss is {loss.item()}", trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # The loss of the last step is from before its update.
        loss = trainer.callback_metrics.get("validation_loss")
        if loss is not None and not torch.isfinite(loss):
            raise _not_finite(f"the loss of held-out images is {loss.item()}", trainer)
        for name, parameter in pl_module.named_parameters():
            if not torch.isfinite(parameter).all():
                raise _not_finite(f"{name} holds NaN or infinity", trainer)
        before, self._since = self._since, time.perf_counter()
        self.seconds += self._since - before

    def state_dict(self) -> dict[str, object]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict) -> None:
        self.seconds = state_dict["seconds"]


def _not_finite(found: str, trainer: Trainer) -> FloatingPointError:
    return FloatingPointError(
        f"{found} in epoch {trainer.current_epoch}, step {trainer.global_step}; "
        "take a smaller learning_rate or gradient_clip; the last whole epoch's checkpoint is kept"
    )


class Peak(NamedTuple):
    """The most operations a second that a device does, two for each multiply-add, and where the number is from."""

    flops: float
    source: str


class Throughput(Callback):
    """Measures and logs images and operations a second of all processes, but not in the first steps of a start."""

    def __init__(self, flops_per_image: int, run: Run, *, num_images: int) -> None:
        self.flops_per_image, self.num_images, self.batch_size = (
            flops_per_image,
            num_images,
            run.batch_size,
        )
        self.dtype: torch.dtype = getattr(torch, run.precision)
        self.peak: Peak | None = None
        self.images_per_second: list[float] = []
        self.flop_utilisation: list[float] = []
        self._warmup = WARMUP_STEPS
        self._since: float | None = None
        self._images = 0
        self._seconds = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        one, number = peak(trainer.strategy.root_device, self.dtype), trainer.world_size
        self.peak = Peak(
            number * one.flops, one.source if number == 1 else f"{number} × {one.source}"
        )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._images, self._seconds = 0, 0.0
        self._since = None if self._warmup else _now(pl_module.device)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: STEP_OUTPUT,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Count the images of a step, of all processes; stop the clock after the last one."""
        step, turn = divmod(batch_idx, trainer.accumulate_grad_batches)
        if turn < trainer.accumulate_grad_batches - 1:
            return
        if self._since is None:
            self._warmup -= 1
            self._since = None if self._warmup else _now(pl_module.device)
            return
        self._images += min(self.batch_size, self.num_images - step * self.batch_size)
        if trainer.is_last_batch:
            self._seconds = _now(pl_module.device) - self._since

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._seconds or self.peak is None:
            return
        images = self._images / self._seconds
        flops = images * self.flops_per_image
        # A device that does more than was measured has a higher peak: other work was beside the measurement.
        self.peak = self.peak._replace(flops=max(self.peak.flops, flops))
        share = flops / self.peak.flops
        self.images_per_second.append(images)
        self.flop_utilisation.append(share)
        numbers = {
            "images_per_second": images,
            "tflops_per_second": flops / 1e12,
            "flop_utilisation": share,
        }
        pl_module.log_dict(numbers, batch_size=1, sync_dist=trainer.world_size > 1)

    def state_dict(self) -> dict[str, object]:
        return {
            "images_per_second": self.images_per_second,
            "flop_utilisation": self.flop_utilisation,
        }

    def load_state_dict(self, state_dict: dict) -> None:
        vars(self).update({name: list(numbers) for name, numbers in state_dict.items()})

    def summary(self) -> dict[str, object]:
        """What is kept of a finished training: medians over the epochs, None if no epoch was measured."""
        return {
            "train_images_per_second": _median(self.images_per_second),
            "training_flops_per_image": self.flops_per_image,
            "flop_utilisation": _median(self.flop_utilisation),
            "peak_tflops": _median([] if self.peak is None else [self.peak.flops / 1e12]),
            "peak_source": None if self.peak is None else self.peak.source,
        }


def training_flops_per_image(
    model: nn.Module, images: Float[Tensor, "2 channels height width"]
) -> int:
    """Operations of one image's forward and backward pass, counted on a copy of the model, not yet prepared."""
    copied = copy.deepcopy(model).train()
    with torch.random.fork_rng(devices=[]), flop_counter() as counter:
        cross_entropy(copied(images), torch.zeros(len(images), dtype=torch.long)).backward()
    return counter.get_total_flops() // len(images)


def _median(numbers: list[float]) -> float | None:
    return float(f"{statistics.median(numbers):.4g}") if numbers else None


def peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """Peak of a device for products of a type: of a GPU by Lightning's table, else that of a large product."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        if "H100 NVL" not in name and (
            known := _makers_flops(device, dtype)
        ):  # which is a pair of cards in the table
            return Peak(known, f"Lightning's table for {name}, {_name(dtype)}")
    return _measured(device, dtype, torch.get_num_threads())


def _makers_flops(device: torch.device, dtype: torch.dtype) -> int | None:
    """Return the peak operations per second from Lightning's table of GPUs, None for other devices."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(FLOPs not found|does not support).*")
        return get_available_flops(device, dtype)


@cache
def _measured(device: torch.device, dtype: torch.dtype, num_threads: int) -> Peak:
    """The fastest of several products of square matrices."""
    side = SIDE_ON_CPU if device.type == "cpu" else SIDE
    generator = Generator().manual_seed(0)  # zeros and ones would take less power than numbers do
    left, right = (torch.randn(side, side, generator=generator).to(device, dtype) for _ in range(2))
    timer = Timer(
        "torch.mm(left, right)",
        timer=partial(_now, device),
        globals=locals(),
        num_threads=num_threads,
    )
    fastest = min(timer.blocked_autorange(min_run_time=SECONDS).times)
    threads = (
        f", {num_threads} {'thread' if num_threads == 1 else 'threads'}"
        if device.type == "cpu"
        else ""
    )
    return Peak(2 * side**3 / fastest, f"{MEASURED}, {side} × {side}, {_name(dtype)}{threads}")


def _now(device: torch.device) -> float:
    """The time when a device has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
        if trainer.is_global_zero:
            for line in (0, 1):
                print(
                    "".join(f"{column[line]:>{column[2]}}" for column in COLUMNS).rstrip(),
                    flush=True,
                )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and sys.stdout.isatty():
            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            console = Console(force_terminal=True)
            self._bar = Progress(
                TextColumn("{task.description}"), *columns, console=console, transient=True
            )
            self._bar.add_task(_epoch(trainer), total=int(trainer.num_training_batches))
            self._bar.start()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Keep the learning rate of this step: after the last one the schedule says that of the next epoch."""
        self._learning_rate = float(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: STEP_OUTPUT,
        batch: object,
        batch_idx: int,
    ) -> None:
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
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
        cells = (
            f"{show(values[name]) if name in values else '-':>{width}}"
            for _, _, width, name, show in COLUMNS
        )
        print("".join(cells), flush=True)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _epoch(trainer: Trainer) -> str:
    return f"{trainer.current_epoch + 1}/{trainer.max_epochs}"
