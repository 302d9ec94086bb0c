"""Make a trained vision transformer of transformers linear: swap its attention, distil, train on.

    python examples/linear_vit.py

A small ViT with softmax attention learns scikit-learn's digits. Then teka's kernels take the place of its softmax, with
all of its weights kept: `hedgehog` learns the softmax's weights first and is trained on with the model, `squared_relu`
has nothing to learn and is trained on alone. The model with the softmax is trained on as long, to compare with. Needs
transformers and scikit-learn.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification

from teka.convert import distill_attention, replace_attention
from teka.data import load
from training import arguments

BATCH = 64


def train(model: nn.Module, images: Tensor, labels: Tensor, steps: int, rate: float) -> None:
    """AdamW with one cycle of the learning rate, on random images."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=max(steps, 2))
    model.train()
    for step in range(steps):
        places = torch.randint(len(images), (BATCH,))
        loss = cross_entropy(model(images[places]).logits, labels[places])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step < steps - 1:
            schedule.step()
    model.eval()


def main() -> None:
    """Train, swap in three ways, and count what is right."""
    given = arguments(__doc__, steps=800, inputs=360)
    data = load("digits", image_size=16, validation_size=0)
    images, labels = data.train.images, data.train.labels
    test, truth = data.test.images[: given.inputs], data.test.labels[: given.inputs]

    def right(model: nn.Module) -> str:
        with torch.no_grad():
            return f"{int((model(test).logits.argmax(dim=1) == truth).sum())} of {len(truth)} right"

    torch.manual_seed(given.seed)
    sizes: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes |= {
        "intermediate_size": 128,
        "image_size": 16,
        "patch_size": 2,
        "num_channels": 1,
        "num_labels": 10,
    }
    config = ViTConfig(hidden_dropout_prob=0.0, **sizes)
    model = ViTForImageClassification(config)
    train(model, images, labels, given.steps, 2e-3)
    print(f"softmax: {right(model)}")

    same = copy.deepcopy(model).double()
    with torch.no_grad():
        before = same(test.double()).logits
        print(replace_attention(same, kernel="softmax", relative=None))
        change = float((same(test.double()).logits - before).abs().max() / before.abs().max())
    print(
        f"  largest change   {change:8.0e} of the output's size, with the softmax as a kernel, in float64"
    )

    more = max(given.steps // 4, 1)
    for kernel in ("hedgehog", "squared_relu", "softmax"):
        swapped = copy.deepcopy(model)
        replace_attention(swapped, kernel=kernel, relative=None)
        print(f"{kernel}: {right(swapped)} after the swap")
        if kernel == "hedgehog":
            batches = (images[torch.randint(len(images), (BATCH,))] for _ in range(more))
            losses = distill_attention(swapped, batches)
            print(
                f"  {right(swapped)} after {more} steps of distillation, loss {losses[0]:.2f} to {losses[-1]:.2f}"
            )
        train(swapped, images, labels, more, 5e-4)
        print(f"  {right(swapped)} after {more} steps of training on")


if __name__ == "__main__":
    main()
