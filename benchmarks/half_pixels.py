"""How much half a pixel changes the logits of new models, by their low pass: python benchmarks/half_pixels.py DATA_DIR.

Digits of MNIST move by half a pixel along one axis or both (Fourier); the change of the logits is relative to how these
differ between the digits. Batch normalisation has seen the digits; nothing is trained.
"""

import sys
from statistics import fmean

import torch

from teka.audit import translate
from teka.data import load
from teka.models import Performer

IMAGES, SEEDS, PASSES = 64, 3, 30
HALVES = ((0.5, 0), (0, 0.5), (0.5, 0.5))


def change(blur: int | str | None, patch_size: int, seed: int, images: torch.Tensor) -> float:
    """The mean over the half shifts of ‖f(T x) − f(x)‖ / ‖f(x) − its mean over the images‖."""
    torch.manual_seed(seed)
    options = {"stem": "polyphase", "patch_size": patch_size, "blur": blur, "periodic": True, "pool": "mean"}
    model = Performer((28, 28), 1, 10, dim=64, depth=2, heads=4, **options)
    with torch.inference_mode():
        for _ in range(PASSES):
            model(images)
        model.eval()
        logits = model(images)
        size = (logits - logits.mean(dim=0)).norm()
        return fmean(float((model(translate(images, half, mode="fourier")) - logits).norm() / size) for half in HALVES)


def main() -> None:
    """Measure and print."""
    images = load("mnist", data_dir=sys.argv[1]).test.images[:IMAGES]
    for patch_size in (4, 2):
        for blur in (None, 5, "ideal"):
            found = [change(blur, patch_size, seed, images) for seed in range(SEEDS)]
            print(f"patches of {patch_size}, blur {blur}: {fmean(found):.3f}  ({min(found):.3f} to {max(found):.3f})")


if __name__ == "__main__":
    main()
