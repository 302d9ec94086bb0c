"""A model as a Lightning module: loss, accuracy, optimizer and schedule."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics.classification import MulticlassAccuracy

from teka.data import HorizontalFlip, RandomShift
from teka.nn import redraw_projections
from teka.nn.relative import RelativeModule
from teka.training.batches import TrainBatch
from teka.training.run import Run

LARGE = 1_000_000  # numbers, with gradients and two moments 16 MB
PART = 1_000_000_007  # between the seeds of two parts of a step, more than a training has steps


class Classifier(LightningModule):
    """Cross entropy on images and labels, with the run's optimizer and its schedule over the whole training's steps.

    Random projections are redrawn before every step whose number is a multiple of `redraw_every`. Each step seeds torch
    with (seed, step), so that a resumed run has the same numbers.
    """

    def __init__(self, model: nn.Module, run: Run, *, num_classes: int, num_steps: int) -> None:
        super().__init__()
        self.model = model
        self.run = run
        self.num_steps = num_steps
        self.augmentations = make_augmentations(run)
        self.train_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.validation_accuracy = MulticlassAccuracy(num_classes, average="micro")

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        return self.model(images)

    def on_train_batch_start(self, batch: TrainBatch, batch_idx: int) -> None:
        """Seed dropout for this step, and redraw random projections on schedule."""
        seed, part = self._seed_and_part(batch_idx)
        torch.manual_seed(seed)
        every, turn = self.run.redraw_every, part // self.trainer.world_size
        if every and self.global_step and self.global_step % every == 0 and turn == 0:
            redraw_projections(self.model)
        # Every part of a step drops by a draw of its own, and all processes have the same projections.
        if part:
            torch.manual_seed(seed + part * PART)

    def training_step(self, batch: TrainBatch, batch_idx: int) -> Float[Tensor, ""]:
        images, labels, weight = batch
        seed, part = self._seed_and_part(batch_idx)
        generator = Generator().manual_seed(seed + (part + 1) * PART)
        for (
            augmentation
        ) in self.augmentations:  # by a draw that neither the model nor the device has a part in
            images = augmentation(images, generator)
        logits = self.model(images)
        loss = cross_entropy(logits, labels, label_smoothing=self.run.label_smoothing)
        if weight:
            self.train_accuracy(logits, labels)
        several, size = self.trainer.world_size > 1, len(labels) if weight else 0
        self.log(
            "train_loss", loss, on_step=False, on_epoch=True, sync_dist=several, batch_size=size
        )
        self.log("train_accuracy", self.train_accuracy, on_step=False, on_epoch=True)
        return weight * loss

    def _seed_and_part(self, batch_idx: int) -> tuple[int, int]:
        """The seed of a step, and which of its parts a batch is."""
        turn = batch_idx % self.trainer.accumulate_grad_batches
        part = turn * self.trainer.world_size + self.global_rank
        return self.run.seed * 1_000_003 + self.global_step, part

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        images, labels = batch
        logits = self.model(images)
        self.validation_accuracy(logits, labels)
        self.log(
            "validation_loss", cross_entropy(logits, labels), sync_dist=self.trainer.world_size > 1
        )
        self.log("validation_accuracy", self.validation_accuracy)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        # Lightning clips no gradients of a fused optimizer under autocast.
        plain = self.trainer.precision == "32-true"
        optimizer = make_optimizer(
            self.model, self.run, fused=True if plain and is_large_on_cpu(self.model) else None
        )
        # A plain function: LambdaLR would put the state of a bound method into the checkpoint.
        schedule = LambdaLR(
            optimizer, lambda step: learning_rate_factor(step, self.run, self.num_steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def make_augmentations(run: Run) -> tuple[RandomShift | HorizontalFlip, ...]:
    """What is done to training images, in this order."""
    mode = run.shift_mode or ("circular" if run.periodic else "zero")
    shift = RandomShift(run.random_shift, mode=mode) if run.random_shift else None
    return tuple(
        made for made in (shift, HorizontalFlip() if run.random_flip else None) if made is not None
    )


def learning_rate_factor(step: int, run: Run, num_steps: int) -> float:
    """Learning rate over its peak after some steps: a linear warm-up, then constant or half a cosine to 0."""
    warmup_steps = round(run.warmup * num_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if run.schedule == "constant":
        return 1.0
    progress = (step - warmup_steps) / max(1, num_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def is_large_on_cpu(model: nn.Module) -> bool:
    """Whether parameters lie in a CPU's memory and no cache: VGG-16's fused step takes 0.15 s, a plain one 2.4 s."""
    parameters = list(model.parameters())
    return sum(map(torch.numel, parameters)) >= LARGE and all(
        each.device.type == "cpu" for each in parameters
    )


def make_optimizer(model: nn.Module, run: Run, *, fused: bool | None = None) -> Optimizer:
    """Adam, AdamW, or SGD with momentum; fused, a step is one pass over the parameters.

    The decay of AdamW spares biases, norms, tokens and the parameters of positions; that of SGD these alone, as in the
    code of Cordonnier et al. 2020.
    """
    parameters, options = list(model.parameters()), {"lr": run.learning_rate, "fused": fused}
    if run.optimizer == "adam":
        return torch.optim.Adam(parameters, betas=run.betas, **options)
    if run.optimizer == "adamw":
        decayed = {
            id(module.weight)
            for module in model.modules()
            if isinstance(module, nn.Linear | nn.Conv2d)
        }
    else:
        placing = (module for module in model.modules() if isinstance(module, RelativeModule))
        spared = {
            id(parameter) for module in placing for parameter in module.parameters(recurse=False)
        }
        decayed = {id(parameter) for parameter in parameters} - spared
    groups = [
        {
            "params": [one for one in parameters if id(one) in decayed],
            "weight_decay": run.weight_decay,
        },
        {"params": [one for one in parameters if id(one) not in decayed], "weight_decay": 0.0},
    ]
    if run.optimizer == "adamw":
        return torch.optim.AdamW(groups, betas=run.betas, **options)
    return torch.optim.SGD(groups, momentum=run.momentum, **options)
