"""Make a trained vision transformer of transformers linear.

    python examples/linear_vit.py

A small ViT with softmax attention learns scikit-learn's digits. Then teka's kernels replace the
softmax, and all weights are kept. `hedgehog` is distilled from the softmax and then fine-tuned with
the model. `squared_relu` is only fine-tuned. The softmax model is fine-tuned equally long for
comparison. The script needs transformers and scikit-learn.
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
    """Train with AdamW and one cycle of the learning rate, on random batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=max(steps, 2))
    model.train()
    for step in range(steps):
        batch = torch.randint(len(images), (BATCH,))
        loss = cross_entropy(model(images[batch]).logits, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step < steps - 1:
            schedule.step()
    model.eval()


def main() -> None:
    """Train a model, replace its attention in three ways, and measure the accuracy."""
    options = arguments(__doc__, steps=800, inputs=360)
    data = load("digits", image_size=16, validation_size=0)
    images, labels = data.train.images, data.train.labels
    test, test_labels = data.test.images[: options.inputs], data.test.labels[: options.inputs]

    def count_correct(model: nn.Module) -> str:
        with torch.no_grad():
            return f"{int((model(test).logits.argmax(dim=1) == test_labels).sum())} of {len(test_labels)} correct"

    torch.manual_seed(options.seed)
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
    train(model, images, labels, options.steps, 2e-3)
    print(f"softmax: {count_correct(model)}")

    same = copy.deepcopy(model).double()
    with torch.no_grad():
        before = same(test.double()).logits
        print(replace_attention(same, kernel="softmax", relative=None))
        change = float((same(test.double()).logits - before).abs().max() / before.abs().max())
    print(
        f"  largest change   {change:8.0e} of the output's size, with kernel='softmax', in float64"
    )

    more = max(options.steps // 4, 1)
    for kernel in ("hedgehog", "squared_relu", "softmax"):
        replaced = copy.deepcopy(model)
        replace_attention(replaced, kernel=kernel, relative=None)
        print(f"{kernel}: {count_correct(replaced)} after replacement")
        if kernel == "hedgehog":
            batches = (images[torch.randint(len(images), (BATCH,))] for _ in range(more))
            losses = distill_attention(replaced, batches)
            print(
                f"  {count_correct(replaced)} after {more} steps of distillation, loss {losses[0]:.2f} to {losses[-1]:.2f}"
            )
        train(replaced, images, labels, more, 5e-4)
        print(f"  {count_correct(replaced)} after {more} steps of fine-tuning")


if __name__ == "__main__":
    main()
