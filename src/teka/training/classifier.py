"""Lightning module of a training run: data loaders, loss, accuracy, optimizer and schedule."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from teka.data import Dataset, HorizontalFlip, RandomShift
from teka.nn import redraw_projections
from teka.nn.relative import RelativeModule
from teka.training.batches import make_evaluation_loader, make_train_loader
from teka.training.run import Run

# Difference between the seeds of two micro-batches. It exceeds the number of steps of any run, so
# that no two micro-batches of a run have the same seed.
MICRO_BATCH_SEED = 1_000_000_007


class Classifier(LightningModule):
    """Lightning module that trains an image classifier with cross entropy.

    The random seed is reset before each step, to a value that depends on the run seed and the step
    number. A resumed run therefore draws the same random numbers as an uninterrupted run.

    Args:
        model: Model from images to logits.
        run: Configuration with the recipe and the seed.
        dataset: Training and validation images.
    """

    def __init__(self, model: nn.Module, run: Run, dataset: Dataset) -> None:
        super().__init__()
        self.model = model
        self.run = run
        self.dataset = dataset
        self.num_steps = run.recipe.epochs * math.ceil(len(dataset.train) / run.recipe.batch_size)
        self.augmentations = make_augmentations(run)
        self.train_accuracy = MulticlassAccuracy(dataset.num_classes, average="micro")
        self.validation_accuracy = MulticlassAccuracy(dataset.num_classes, average="micro")

    def train_dataloader(self) -> DataLoader:
        return make_train_loader(
            self.dataset.train,
            seed=self.run.seed,
            accumulate=self.trainer.accumulate_grad_batches,
            **self._loader_options,
        )

    def val_dataloader(self) -> DataLoader:
        return make_evaluation_loader(self.dataset.validation, **self._loader_options)

    @property
    def _loader_options(self) -> dict[str, int]:
        return {
            "batch_size": self.run.recipe.batch_size,
            "rank": self.global_rank,
            "world_size": self.trainer.world_size,
        }

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        num_micro_batches = self.trainer.accumulate_grad_batches * self.trainer.world_size
        if self.training and len(images) * num_micro_batches >= self.run.recipe.batch_size:
            return self.model(images)
        # A compiled model would be compiled again for the batch sizes of validation images and of
        # the last step of an epoch.
        return self.model.forward(images)

    def on_train_batch_start(self, batch: Sequence[Any], batch_idx: int) -> None:
        """Seed PyTorch for this step, and redraw random projections every `redraw_every` steps."""
        torch.manual_seed(self._step_seed)
        redraw_every = self.run.recipe.redraw_every
        step = self.global_step
        is_first = batch_idx % self.trainer.accumulate_grad_batches == 0
        if is_first and redraw_every and step and step % redraw_every == 0:
            redraw_projections(self.model)
        # All processes have the same projections, but each micro-batch has its own dropout.
        if micro_batch := self._micro_batch_index(batch_idx):
            torch.manual_seed(self._step_seed + micro_batch * MICRO_BATCH_SEED)

    def training_step(self, batch: Sequence[Any], batch_idx: int) -> Float[Tensor, ""]:
        images, labels, weight = batch
        # The augmentations have their own generator, so that they do not depend on the model.
        seed = self._step_seed + (self._micro_batch_index(batch_idx) + 1) * MICRO_BATCH_SEED
        generator = Generator().manual_seed(seed)
        for augmentation in self.augmentations:
            images = augmentation(images, generator)
        logits = self(images)
        loss = cross_entropy(logits, labels, label_smoothing=self.run.recipe.label_smoothing)
        if not torch.isfinite(loss):
            raise self._divergence_error(f"the loss is {loss.item()}")
        if weight:
            self.train_accuracy(logits, labels)
        options: Any = {"on_step": False, "on_epoch": True}
        self.log(
            "train_loss", loss, sync_dist=True, batch_size=len(labels) if weight else 0, **options
        )
        self.log("train_accuracy", self.train_accuracy, **options)
        return weight * loss

    @property
    def _step_seed(self) -> int:
        return self.run.seed * 1_000_003 + self.global_step

    def _micro_batch_index(self, batch_idx: int) -> int:
        """Return the index of a micro-batch within its optimizer step, over all processes."""
        index = batch_idx % self.trainer.accumulate_grad_batches
        return index * self.trainer.world_size + self.global_rank

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        images, labels = batch
        logits = self(images)
        self.validation_accuracy(logits, labels)
        self.log("validation_loss", cross_entropy(logits, labels), sync_dist=True)
        self.log("validation_accuracy", self.validation_accuracy)

    def on_train_epoch_end(self) -> None:
        """Stop the training with an error if a parameter or the validation loss is not finite."""
        loss = self.trainer.callback_metrics.get("validation_loss")
        if loss is not None and not torch.isfinite(loss):
            raise self._divergence_error(f"the validation loss is {loss.item()}")
        for name, parameter in self.named_parameters():
            if not torch.isfinite(parameter).all():
                raise self._divergence_error(f"{name} is infinite or NaN")

    def _divergence_error(self, problem: str) -> FloatingPointError:
        kept = "No epoch is complete."
        if self.current_epoch:
            kept = "The checkpoint of the last complete epoch remains."
        return FloatingPointError(
            f"{problem} in epoch {self.current_epoch + 1}, step {self.global_step}. Use a smaller "
            f"learning_rate or gradient_clip. {kept}"
        )

    def configure_optimizers(self) -> OptimizerLRScheduler:
        # Lightning cannot clip the gradients of a fused optimizer under autocast.
        is_fused = self.trainer.precision == "32-true"
        optimizer = make_optimizer(self.model, self.run, fused=is_fused or None)

        def factor(step: int) -> float:
            return compute_learning_rate_factor(step, self.run, self.num_steps)

        # LambdaLR saves a bound method in the checkpoint, but not a function.
        schedule = LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def make_augmentations(run: Run) -> list[RandomShift | HorizontalFlip]:
    """Create the random augmentations that the recipe of a run selects, in the order of use."""
    recipe = run.recipe
    augmentations: list[RandomShift | HorizontalFlip] = []
    if recipe.random_shift:
        is_periodic = run.network.options.get("periodic", False)
        mode = recipe.shift_mode or ("circular" if is_periodic else "zero")
        augmentations.append(RandomShift(recipe.random_shift, mode=mode))
    if recipe.random_flip:
        augmentations.append(HorizontalFlip())
    return augmentations


def compute_learning_rate_factor(step: int, run: Run, num_steps: int) -> float:
    """Return the learning rate of a step as a fraction of the peak learning rate.

    The learning rate rises linearly during warm-up. Afterwards, it is constant or decays to 0 with
    a cosine schedule.
    """
    warmup_steps = round(run.recipe.warmup * num_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if run.recipe.schedule == "constant":
        return 1.0
    progress = (step - warmup_steps) / max(1, num_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def make_optimizer(model: nn.Module, run: Run, *, fused: bool | None = None) -> Optimizer:
    """Create the optimizer of a run: Adam, AdamW, or SGD with momentum.

    AdamW applies weight decay only to the weights of linear layers and convolutions. SGD applies it
    to all parameters except those of relative kernels, as in the code of Cordonnier et al. 2020.

    Args:
        model: Model whose parameters are optimized.
        run: Run whose recipe selects the optimizer.
        fused: Use PyTorch's fused implementation of the optimizer.
    """
    recipe = run.recipe
    parameters = list(model.parameters())
    options: dict[str, Any] = {"lr": recipe.learning_rate, "fused": fused}
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, betas=recipe.betas, **options)
    decayed: set[Tensor] = set(parameters)
    if recipe.optimizer == "sgd":
        for module in model.modules():
            if isinstance(module, RelativeModule):
                decayed -= set(module.parameters(recurse=False))
    else:
        kinds = (nn.Linear, nn.Conv2d)
        decayed = {module.weight for module in model.modules() if isinstance(module, kinds)}
    groups = []
    for is_decayed, weight_decay in ((True, recipe.weight_decay), (False, 0.0)):
        members = [parameter for parameter in parameters if (parameter in decayed) == is_decayed]
        groups.append({"params": members, "weight_decay": weight_decay})
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, betas=recipe.betas, **options)
    return torch.optim.SGD(groups, momentum=recipe.momentum, **options)
