"""A plain training loop that continues after it was killed."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from teka.files import write_bytes


def train_steps(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    make_batch: Callable[[int], tuple[Tensor, Tensor]],
    *,
    num_steps: int,
    rate_factor: Callable[[int], float],
    label_smoothing: float,
    checkpoint: Path,
    save_every: int,
    gradient_clip: float | None = None,
    precision: torch.dtype = torch.bfloat16,
    after_save: Callable[[int], object] = lambda step: None,
) -> None:
    """Train a model with cross entropy, and save the state of the training regularly.

    If the checkpoint exists, the training continues from its step.

    Args:
        model: Model from images to logits, in training mode.
        optimizers: Optimizers with their highest learning rates.
        make_batch: Function from the number of a step to its images and labels.
        num_steps: Number of steps.
        rate_factor: Function from the number of a step to the factor of the learning rates.
        label_smoothing: Share of the target that is spread evenly over all classes.
        checkpoint: File of the state.
        save_every: Number of steps between two writes of the state.
        gradient_clip: Largest norm of the gradient, or None.
        precision: Dtype of matrix products and convolutions.
        after_save: Function to call with the number of finished steps after each write.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    start = 0
    if checkpoint.is_file():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, content in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(content)
        start = state["step"]
    for step in range(start, num_steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate_factor(step)
        images, labels = make_batch(step)
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            loss = cross_entropy(model(images), labels, label_smoothing=label_smoothing)
        model.zero_grad()
        loss.backward()
        if gradient_clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), gradient_clip)
        for optimizer in optimizers:
            optimizer.step()
        if (step + 1) % save_every == 0:
            state = {
                "step": step + 1,
                "model": model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            }
            content = io.BytesIO()
            torch.save(state, content)
            write_bytes(checkpoint, content.getbuffer())
            after_save(step + 1)
