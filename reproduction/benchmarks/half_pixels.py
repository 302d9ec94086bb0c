"""Benchmark of how half-pixel shifts affect models with different low-pass filters.

    python -m reproduction.benchmarks.half_pixels --data-dir data

The models have random weights, and the images are those of MNIST.
"""

from itertools import product
from statistics import fmean

import torch
from torch import Tensor

from reproduction.benchmarks.measurement import run_script
from teka.audit import translate
from teka.data import load
from teka.models import Performer

MODEL = {"dim": 64, "depth": 2, "heads": 4, "stem": "polyphase", "periodic": True, "pool": "mean"}
SHIFTS = ((0.5, 0), (0, 0.5), (0.5, 0.5))


def measure_logit_change(model: Performer, images: Tensor) -> float:
    """Measure how much half-pixel shifts change the logits of a model with random weights.

    For the logits f(x) of images x and a shift T, the relative change is
    ‖f(T x) − f(x)‖ / ‖f(x) − mean f‖. It is averaged over three shifts.
    """
    for _ in range(30):  # update the batch-norm statistics
        model(images)
    model.eval()
    logits = model(images)
    size = (logits - logits.mean(dim=0)).norm()
    shifted = [model(translate(images, shift, mode="fourier")) for shift in SHIFTS]
    return fmean(((output - logits).norm() / size).item() for output in shifted)


@torch.inference_mode()
def main(*, data_dir: str = "data") -> None:
    """Print how much half-pixel shifts change the logits of models with random weights.

    Args:
        data_dir: Folder with the files of the data sets.
    """
    images = load("mnist", data_dir=data_dir).test.images[:64]
    for patch_size, blur, seed in product((4, 2), (None, 5, "ideal"), range(3)):
        torch.manual_seed(seed)
        model = Performer(images.shape[-1], 1, 10, patch_size=patch_size, blur=blur, **MODEL)
        change = measure_logit_change(model, images)
        print(f"patches of {patch_size}, blur {blur}, seed {seed}: {change:.3f}", flush=True)


if __name__ == "__main__":
    run_script(main)
