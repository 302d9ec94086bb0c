"""Accuracy of the packaged models, and their unchanged predictions for shifted images.

    python -m reproduction.benchmarks.packaged_models --data-dir data --models mnist
    python -m reproduction.benchmarks.packaged_models --models cifar10 --subpixels 2

The results belong on the card of each model, `README.md` beside its weights.
"""

from collections.abc import Iterator, Sequence

import pandas as pd
import torch
from torch import nn

from reproduction.benchmarks.measurement import run_script
from teka.audit import Movement, measure_responses, wilson_interval
from teka.data import load
from teka.models import load as load_model
from teka.models.model_file import PRETRAINED
from teka.nn.sampling import SubpixelAlignment

NEIGHBORS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
FRACTIONS = {
    "halves": [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5)],
    "quarters": [(0.0, 0.0), (0.25, 0.0), (0.0, 0.75), (0.25, 0.5)],
    "other fractions": [(0.0, 0.0), (0.1, 0.3), (0.37, 0.81), (0.9, 0.05)],
}


def measure(name: str, data_dir: str, subpixels: int) -> Iterator[dict[str, object]]:
    """Yield the accuracy on unshifted images, and the unchanged predictions for kinds of shifts."""
    performer = model = load_model(name)
    if subpixels > 1:
        model = nn.Sequential(SubpixelAlignment(subpixels), performer).eval()
    height, width = performer.image_size
    test = load(name, data_dir=data_dir, image_size=performer.image_size).test
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    images, labels = test.images[order], test.labels[order]
    everywhere = [(dy, dx) for dy in range(height) for dx in range(width)]
    window = 3 * min(height, width) // 16 * 4  # whole patches
    for kind, movement, shifts, count in (
        ("unshifted", Movement("circular"), [(0, 0)], len(images)),
        ("circular, every whole shift", Movement("circular"), everywhere, 250),
        ("zero-filled, one pixel", Movement("zero"), NEIGHBORS, 1000),
        (f"crops of {window} × {window}", Movement("crop", crop_size=window), NEIGHBORS, 1000),
        *((kind, Movement("fourier"), shifts, 1000) for kind, shifts in FRACTIONS.items()),
    ):
        performer.resize(movement.seen_size((height, width)))
        responses = measure_responses(
            model, images[:count], shifts, movement, labels=labels[:count], output="logits"
        )
        is_same = responses.agreement[responses.moved].double()
        row = {"shift": kind, "images": len(images[:count]), "shifts": len(is_same)}
        if kind == "unshifted":
            num_correct = int(responses.correct[0].sum())
            interval = wilson_interval(num_correct, len(images))
            yield {**row, "accuracy": num_correct / len(images), "interval": interval}
        else:
            unchanged_images = is_same.all(dim=0).double().mean().item()
            yield {**row, "unchanged": is_same.mean().item(), "unchanged_images": unchanged_images}


def main(*, data_dir: str = "data", models: Sequence[str] = PRETRAINED, subpixels: int = 1) -> None:
    """Measure the models and print tables.

    Args:
        data_dir: Folder of the data sets.
        models: Names of packaged models.
        subpixels: Align the images to this fraction of a pixel first, with `SubpixelAlignment`.
    """
    for name in models:
        table = pd.DataFrame(measure(name, data_dir, subpixels))
        print(f"\n{name}\n{table.to_string()}", flush=True)


if __name__ == "__main__":
    run_script(main)
