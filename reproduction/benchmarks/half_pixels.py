"""What parts of a pixel change: python reproduction/benchmarks/half_pixels.py DATA_DIR [MODEL ...].

Of new models, by their low pass: digits of MNIST move by half a pixel along one axis or both (Fourier); the change of
the logits is relative to how these differ between the digits. Batch normalisation has seen the digits; nothing is
trained. Of packaged models, as they are and behind `SubpixelAlignment`: accuracy, and which answers stay.
"""

import sys
from statistics import fmean

import torch
from torch import nn

from teka.audit import translate
from teka.data import load
from teka.models import Performer
from teka.models import load as load_model
from teka.nn.sampling import SubpixelAlignment

IMAGES, SEEDS, PASSES, MOVED_IMAGES = 64, 3, 30, 1000
HALVES = ((0.5, 0), (0, 0.5), (0.5, 0.5))
QUARTERS = ((0.25, 0), (0, 0.75), (0.25, 0.5))
OTHERS = ((0.1, 0.3), (0.37, 0.81), (0.9, 0.05))


def change(blur: int | str | None, patch_size: int, seed: int, images: torch.Tensor) -> float:
    """The mean over the half shifts of ‖f(T x) − f(x)‖ / ‖f(x) − its mean over the images‖."""
    torch.manual_seed(seed)
    options = {
        "stem": "polyphase",
        "patch_size": patch_size,
        "blur": blur,
        "periodic": True,
        "pool": "mean",
    }
    model = Performer((28, 28), 1, 10, dim=64, depth=2, heads=4, **options)
    with torch.inference_mode():
        for _ in range(PASSES):
            model(images)
        model.eval()
        logits = model(images)
        size = (logits - logits.mean(dim=0)).norm()
        return fmean(
            float((model(translate(images, half, mode="fourier")) - logits).norm() / size)
            for half in HALVES
        )


def trained(name: str, data_dir: str, fractions: int) -> str:
    """Accuracy of a packaged model that is given aligned images, and of some of them the answers that stay."""
    model, dataset = load_model(name), load(name, data_dir=data_dir)
    function = nn.Sequential(SubpixelAlignment(fractions), model) if fractions else model
    chosen = torch.randperm(len(dataset.test), generator=torch.Generator().manual_seed(0))[
        :MOVED_IMAGES
    ]
    images = dataset.test.images[chosen]

    def answers(images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return torch.cat([function(batch).argmax(dim=1) for batch in images.split(250)])

    accuracy = (answers(dataset.test.images) == dataset.test.labels).double().mean()
    still, kept = answers(images), []
    for shifts in (HALVES, QUARTERS, OTHERS):
        same = [answers(translate(images, shift, mode="fourier")) == still for shift in shifts]
        kept.append(f"{100 * float(torch.stack(same).double().mean()):.2f}")
    return f"accuracy {100 * float(accuracy):.2f} %, answers that stay under halves, quarters, others: {', '.join(kept)}"


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    images = load("mnist", data_dir=sys.argv[1]).test.images[:IMAGES]
    for patch_size in (4, 2):
        for blur in (None, 5, "ideal"):
            found = [change(blur, patch_size, seed, images) for seed in range(SEEDS)]
            print(
                f"patches of {patch_size}, blur {blur}: {fmean(found):.3f}  ({min(found):.3f} to {max(found):.3f})"
            )
    for name in sys.argv[2:]:
        for fractions in (0, 2, 4, 8):
            print(
                f"{name}, aligned to 1/{fractions or 1}: {trained(name, sys.argv[1], fractions)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
