"""A model's accuracy on held-out images in the course of training."""

import time
from dataclasses import asdict, dataclass

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch.nn.functional import cross_entropy

from teka.data import Split


@dataclass(frozen=True)
class CurvePoint:
    """How far a model is after some steps.

    Args:
        step: Steps taken.
        seconds: Wall time of these steps.
        process_seconds: Processor time of these steps, of all threads.
        accuracy: Share of the held-out images answered rightly.
        loss: Their mean cross entropy.
    """

    step: int
    seconds: float
    process_seconds: float
    accuracy: float
    loss: float


class LearningCurve(Callback):
    """Measures held-out images after some of the steps, and the time of the steps alone.

    Neither the measurement nor the loading of images counts as time of a step. The points are part of a checkpoint, so
    that a resumed run has the whole curve.

    Args:
        split: The held-out images.
        num_points: Number of points, at equal distances in steps, the last one after the last step; None for one after
            every epoch, of a run that may stop before its last.
        batch_size: Images at a time.
    """

    def __init__(self, split: Split, *, num_points: int | None, batch_size: int) -> None:
        self.split = split
        self.num_points = num_points
        self.batch_size = batch_size
        self.points: list[CurvePoint] = []
        self.seconds = 0.0
        self.process_seconds = 0.0
        self._since = (0.0, 0.0)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Start both clocks."""
        self._since = (time.perf_counter(), time.process_time())

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        """Stop the clocks, and measure if it is time to."""
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - self._since[0]
        self.process_seconds += time.process_time() - self._since[1]
        if self._is_due(trainer):
            self.points.append(self._measure(pl_module, trainer.global_step))

    def state_dict(self) -> dict[str, object]:
        """The curve so far."""
        return {
            "points": [asdict(point) for point in self.points],
            "seconds_of_steps": self.seconds,
            "process_seconds": self.process_seconds,
        }

    def load_state_dict(self, state_dict: dict) -> None:
        """Go on with a curve."""
        self.points = [CurvePoint(**point) for point in state_dict["points"]]
        self.seconds = state_dict["seconds_of_steps"]
        self.process_seconds = state_dict["process_seconds"]

    def _is_due(self, trainer: Trainer) -> bool:
        if self.num_points is None:
            return trainer.is_last_batch
        total, step = int(trainer.estimated_stepping_batches), trainer.global_step
        # The first step at or after each of the equal shares.
        return step * self.num_points // total > (step - 1) * self.num_points // total

    def _measure(self, module: LightningModule, step: int) -> CurvePoint:
        module.eval()
        with torch.inference_mode():
            batches = self.split.images.split(self.batch_size)
            logits = torch.cat([module(batch.to(module.device)) for batch in batches]).cpu()
        module.train()
        return CurvePoint(
            step=step,
            seconds=self.seconds,
            process_seconds=self.process_seconds,
            accuracy=(logits.argmax(dim=1) == self.split.labels).double().mean().item(),
            loss=cross_entropy(logits, self.split.labels).item(),
        )
