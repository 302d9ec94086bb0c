"""Progress messages of a training run: loss, speed and remaining time."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from teka.memory import count_parameters
from teka.reporting.formatting import format_count

# Compilation and memory allocation slow the first steps down.
WARMUP_STEPS = 2
FIRST_REPORT = 10
SECONDS_BETWEEN_REPORTS = 20


@dataclass(eq=False)
class SpeedPrinter(Callback):
    """Lightning callback that prints the training speed and the remaining time.

    It prints a line after ten steps, then every 20 seconds, and after each epoch. The speed, which
    is also logged as `images_per_second`, includes the time for validation. It excludes the first
    two steps, which are slow.

    Args:
        num_images: Number of training images.
        batch_size: Number of images per optimizer step.
        precision: Name of the precision, such as "float32".
        report: Function that prints a line.
    """

    num_images: int
    batch_size: int
    precision: str
    report: Callable[[str], object]
    num_steps: int = 0
    start_time: float = 0.0
    report_time: float = 0.0

    @property
    def images_per_step(self) -> float:
        """Mean number of training images per step. The last step of an epoch may have fewer."""
        return self.num_images / math.ceil(self.num_images / self.batch_size)

    @property
    def images_per_second(self) -> float | None:
        """Training images per second in all processes, or None before the speed is measured."""
        num_measured = self.num_steps - WARMUP_STEPS
        if num_measured < 1:
            return None
        return num_measured * self.images_per_step / (time.perf_counter() - self.start_time)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        is_compiled = any(module._compiled_call_impl for module in pl_module.modules())
        waiting = "; torch.compile delays the first step by minutes" if is_compiled else ""
        self.report(
            f"{self.num_images:,} training images, {count_parameters(pl_module):,} parameters, "
            f"{format_count(int(trainer.max_epochs or 0), 'epoch')}, "
            f"{format_count(int(trainer.estimated_stepping_batches), 'step')}, "
            f"precision {self.precision}{waiting}"
        )

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: object,
        batch_idx: int,
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        self.num_steps += 1
        now = time.perf_counter()
        if self.num_steps == WARMUP_STEPS:
            self.start_time = now
        is_due = self.num_steps > FIRST_REPORT and now > self.report_time + SECONDS_BETWEEN_REPORTS
        if self.num_steps == FIRST_REPORT or is_due:
            self.report_time = now
            step = f"step {trainer.global_step:,} of {trainer.estimated_stepping_batches:,}"
            speed = self._describe_speed(trainer)
            self.report(f"{step}: loss {outputs['loss']:.3f}, {speed}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if speed := self.images_per_second:
            pl_module.log("images_per_second", speed, batch_size=1, sync_dist=True)
        metrics = trainer.callback_metrics
        parts = [f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}:"]
        for title, prefix in (("training", "train"), ("validation", "validation")):
            if f"{prefix}_loss" in metrics:
                loss, accuracy = metrics[f"{prefix}_loss"], metrics[f"{prefix}_accuracy"]
                parts.append(f"{title} loss {loss:.3f}, accuracy {100 * accuracy:.2f} %;")
        self.report(f"{' '.join(parts)} {self._describe_speed(trainer)}")

    def _describe_speed(self, trainer: Trainer) -> str:
        speed = self.images_per_second
        if speed is None:
            return "speed not measured yet"
        steps_left = int(trainer.estimated_stepping_batches) - trainer.global_step
        seconds = round(steps_left * self.images_per_step / speed)
        return f"{speed:,.0f} images/s, {timedelta(seconds=seconds)} left"
