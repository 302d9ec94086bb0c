"""Benchmark of the packaged models: their accuracy and the stability of their predictions.

    python -m reproduction.benchmarks.packaged_models --data-dir data --models mnist

The printed results are copied to each model card, `README.md` in the folder of the weights.
"""

from collections.abc import Sequence

from reproduction.benchmarks.measurement import run_script
from reproduction.study.model_metrics import measure_accuracy, measure_prediction_stability
from reproduction.study.study import StabilitySettings
from teka.audit import wilson_interval
from teka.data import load
from teka.models import Performer
from teka.models import load as load_model
from teka.models.model_file import PRETRAINED

NEIGHBORS = tuple((dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx)
# Shift mode, shifts and number of images for each kind of shift.
KINDS = {
    "zero-filled, one pixel": ("zero", StabilitySettings(NEIGHBORS, 1000)),
    "halves": ("fourier", StabilitySettings(((0.5, 0), (0, 0.5), (0.5, 0.5)), 1000)),
    "quarters": ("fourier", StabilitySettings(((0.25, 0), (0, 0.75), (0.25, 0.5)), 1000)),
    "other fractions": (
        "fourier",
        StabilitySettings(((0.1, 0.3), (0.37, 0.81), (0.9, 0.05)), 1000),
    ),
    "circular, every whole shift": ("circular", StabilitySettings(images=250)),
}


def print_accuracy_and_stability(name: str, data_dir: str) -> None:
    """Print a packaged model's accuracy, and the share of predictions that shifts do not change."""
    model = load_model(name)
    test = load(name, data_dir=data_dir, image_size=model.image_size).test
    share = measure_accuracy(model, test)
    interval = wilson_interval(round(share * len(test)), len(test))
    print(f"\n{name}: accuracy {share} of {len(test)}, interval {interval}")
    kinds = dict(KINDS)
    if isinstance(model, Performer):  # other models do not accept smaller images
        crop_size = 3 * min(model.image_size) // 16 * 4  # whole patches
        kinds[f"crops of {crop_size} × {crop_size}"] = (
            "crop",
            StabilitySettings(NEIGHBORS, 1000, crop_size),
        )
    for kind, settings in kinds.items():
        print(f"{kind}: {measure_prediction_stability(model, test, *settings)}", flush=True)


def main(*, data_dir: str = "data", models: Sequence[str] = PRETRAINED) -> None:
    """Measure the packaged models, and print the results.

    Args:
        data_dir: Folder with the files of the data sets.
        models: Names of packaged models.
    """
    for name in models:
        print_accuracy_and_stability(name, data_dir)


if __name__ == "__main__":
    run_script(main)
