"""Training loops for models that `teka train` cannot train."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from teka.data import Dataset
from teka.training import Run
from teka.training.checkpoint import AtomicCheckpointIO
from teka.training.classifier import Classifier
from teka.training.trainer import LIGHTNING_PRECISIONS

MakeBatch = Callable[[int], tuple[Tensor, Tensor]]


def train_steps(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    make_batch: MakeBatch,
    *,
    num_steps: int,
    rate_factor: Callable[[int], float] | None = None,
    label_smoothing: float = 0.0,
    gradient_clip: float | None = None,
    is_bfloat16: bool = False,
    checkpoint: Path | None = None,
    save_every: int = 1,
    after_save: Callable[[int], object] = lambda step: None,
) -> list[float]:
    """Train a model with the cross-entropy loss for a fixed number of steps.

    The caller provides the images and labels of each step. If the checkpoint file exists, training
    resumes from it.

    Args:
        model: Model from images to logits, in training mode.
        optimizers: Optimizers with their peak learning rates.
        make_batch: Function that takes the index of a step and returns its images and labels.
        num_steps: Total number of training steps.
        rate_factor: Learning-rate schedule: a function from the index of a step to the factor of
            the learning rates. None keeps the learning rates constant.
        label_smoothing: Label smoothing of the loss, as in `torch.nn.functional.cross_entropy`.
        gradient_clip: Maximum gradient norm, or None to turn clipping off.
        is_bfloat16: Compute matrix products and convolutions in bfloat16.
        checkpoint: Checkpoint file, or None to save no checkpoints.
        save_every: Number of steps between two checkpoints.
        after_save: Function to call with the number of finished steps after each checkpoint.

    Returns:
        Gradient norm before clipping for each step of this call. The list is empty if
        `gradient_clip` is None.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    start = 0
    if checkpoint is not None and checkpoint.is_file():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, content in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(content)
        start = state["step"]
    gradient_norms = []
    for step in range(start, num_steps):
        if rate_factor is not None:
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["initial_lr"] * rate_factor(step)
        images, labels = make_batch(step)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bfloat16):
            loss = cross_entropy(model(images), labels, label_smoothing=label_smoothing)
        model.zero_grad()
        loss.backward()
        if gradient_clip is not None:
            norm = nn.utils.clip_grad_norm_(model.parameters(), gradient_clip)
            gradient_norms.append(norm.item())
        for optimizer in optimizers:
            optimizer.step()
        if checkpoint is not None and (step + 1) % save_every == 0:
            state = {
                "step": step + 1,
                "model": model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            }
            AtomicCheckpointIO().save_checkpoint(state, checkpoint)
            after_save(step + 1)
    return gradient_norms


def train_custom_model(model: nn.Module, dataset: Dataset, run: Run) -> None:
    """Train a custom model as `teka.training.train` does, but without writing files.

    Afterwards, the model is in evaluation mode.

    Args:
        model: Model from images to logits.
        dataset: Data set with the training images.
        run: Run whose recipe and seed are used. Its model options are ignored.
    """
    recipe = run.recipe
    trainer = Trainer(
        max_epochs=recipe.epochs,
        accelerator="cpu",
        precision=LIGHTNING_PRECISIONS[recipe.precision],
        gradient_clip_val=recipe.gradient_clip or None,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model.train().requires_grad_(True)
    trainer.fit(Classifier(model, run, dataset))
    model.eval()
