"""Effect of shifts by fractions of a pixel on new and on packaged models.

    python -m reproduction.benchmarks.half_pixels --data-dir data
    python -m reproduction.benchmarks.half_pixels --data-dir data --models cifar10

New models, by their low-pass filter: the change of the logits under half-pixel shifts, relative to
the differences between images. Packaged models, as they are and after `SubpixelAlignment`: the
accuracy and the share of unchanged predictions.
"""

from collections.abc import Sequence
from itertools import product
from statistics import fmean

import torch
from torch import Tensor, nn

from reproduction.benchmarks.measurement import run_script
from teka.audit import translate
from teka.data import load
from teka.models import Performer
from teka.models import load as load_model
from teka.nn.sampling import SubpixelAlignment

SHIFTS = {
    "halves": ((0.5, 0), (0, 0.5), (0.5, 0.5)),
    "quarters": ((0.25, 0), (0, 0.75), (0.25, 0.5)),
    "others": ((0.1, 0.3), (0.37, 0.81), (0.9, 0.05)),
}


def relative_change(blur: int | str | None, patch_size: int, images: Tensor) -> float:
    """Return ‖f(T x) − f(x)‖ / ‖f(x) − mean f‖ of a new model, the mean over half-pixel shifts."""
    model = Performer(
        images.shape[-1],
        1,
        10,
        dim=64,
        depth=2,
        heads=4,
        stem="polyphase",
        patch_size=patch_size,
        blur=blur,
        periodic=True,
        pool="mean",
    )
    for _ in range(30):  # for the statistics of batch normalization
        model(images)
    model.eval()
    logits = model(images)
    shifted = [model(translate(images, shift, mode="fourier")) for shift in SHIFTS["halves"]]
    size = (logits - logits.mean(dim=0)).norm()
    return fmean(((output - logits).norm() / size).item() for output in shifted)


def measure_packaged(name: str, data_dir: str, subpixels: int) -> dict[str, float]:
    """Return the accuracy of a packaged model, and the shares of unchanged predictions."""
    model = load_model(name)
    if subpixels > 1:
        model = nn.Sequential(SubpixelAlignment(subpixels), model)

    def predict(images: Tensor) -> Tensor:
        return torch.cat([model(batch).argmax(dim=1) for batch in images.split(250)])

    test = load(name, data_dir=data_dir).test
    shares = {"accuracy": predict(test.images) == test.labels}
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    images = test.images[order[:1000]]
    unshifted = predict(images)
    for kind, shifts in SHIFTS.items():
        shifted = [predict(translate(images, shift, mode="fourier")) for shift in shifts]
        shares[kind] = torch.stack(shifted) == unshifted
    return {kind: is_equal.double().mean().item() for kind, is_equal in shares.items()}


@torch.inference_mode()
def main(*, data_dir: str = "data", models: Sequence[str] = ()) -> None:
    """Measure and print.

    Args:
        data_dir: Folder of the data sets.
        models: Names of packaged models.
    """
    images = load("mnist", data_dir=data_dir).test.images[:64]
    for patch_size, blur, seed in product((4, 2), (None, 5, "ideal"), range(3)):
        torch.manual_seed(seed)
        change = relative_change(blur, patch_size, images)
        print(f"patches of {patch_size}, blur {blur}, seed {seed}: {change:.3f}")
    for name, subpixels in product(models, (1, 2, 4, 8)):
        print(name, subpixels, measure_packaged(name, data_dir, subpixels), flush=True)


if __name__ == "__main__":
    run_script(main)
