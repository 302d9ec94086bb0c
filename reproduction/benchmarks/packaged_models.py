"""What the models that come with the library know, and what they keep when images move.

    python reproduction/benchmarks/packaged_models.py DATA_DIR [NAME ...]

Every model answers all test images of its data once, and some of them at every shift of a few modes. It is printed, and
written as the model's card, `README.md` beside its weights.
"""

import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from reproduction.study.measure import measure_model
from reproduction.study.study import Measure, Stability
from teka.audit import wilson_interval
from teka.data import load
from teka.models.model_file import PRETRAINED, read_config
from teka.models.model_file import load as load_model
from teka.provenance import provenance
from teka.reporting.tables import Table

NEAR = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1) if down or right)
HALVES = ((0.5, 0.0), (0.0, 0.5), (0.5, 0.5))
MODES = {
    "circular": "circular, every whole shift",
    "zero": "zero-filled, one pixel",
    "crop": "crops of {0} × {0}, one pixel apart",
    "fourier": "circular, half a pixel",
}
DATA = {
    "digits": "scikit-learn's digits, on a canvas of background",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10, a JPEG copy",
}
LIMITS = {
    "cifar10": "Ten classes of objects in small photographs.",
    "fashion-mnist": "Ten classes of clothes, each alone, upright and light on dark.",
}
DIGIT_LIMITS = "Single digits, upright, on a uniform background."


def measure(name: str, data_dir: str) -> tuple[list[str], Table]:
    """Return sentences about a model and its training, and a table of its unchanged predictions."""
    config, model = read_config(name), load_model(name)
    run: Any = config.facts["run"]
    training: Any = config.facts["training"]
    dataset = load(run["data"], data_dir=data_dir, image_size=run["image_size"])
    window = 3 * min(config.image_size) // 16 * 4  # whole patches
    asked = {
        "circular": Stability(images=250),
        "zero": Stability(NEAR, images=1000),
        "crop": Stability(NEAR, images=1000, crop_size=window),
        "fourier": Stability(HALVES, images=1000),
    }
    found = measure_model(model, dataset, Measure(images=None, shifted_images=1, stability=asked))
    total = found["test_images"]
    low, high = (
        100 * float(end) for end in wilson_interval(round(found["accuracy"] * total), total)
    )
    height, width = config.image_size
    moves = [f"shifts by up to {run['random_shift']} pixels"] if run["random_shift"] else []
    moves += ["flips"] if run["random_flip"] else []
    sentences = [
        f"**{100 * found['accuracy']:.2f} %** of {total:,} test images ({low:.2f}–{high:.2f}, 95 % Wilson interval).",
        f"Data: {DATA[run['data']]}, {height} × {width} pixels; {training['train_images']:,} images for training, "
        f"{training['validation_images']:,} for validation.",
        f"Model: `{config.model}`, {training['parameters']:,} parameters, stem `{run['stem']}`, "
        f"{run['depth']} blocks of width {run['dim']}, kernel `{run['kernel']}`, position `{run['position']}`, "
        f"{'periodic' if run['periodic'] else 'bounded'} edges.",
        f"Recipe: {run['epochs']} epochs in batches of {run['batch_size']}, {run['optimizer']} with learning rate "
        f"{run['learning_rate']:g}, {run['schedule']} schedule with {100 * run['warmup']:g} % warm-up, label "
        f"smoothing {run['label_smoothing']:g}, {' and '.join(moves) or 'no augmentation'}, {run['precision']}; "
        f"seed {run['seed']}.",
        f"Trained {training['date']} in {training['seconds']:,.0f} s: {training['hardware']}, "
        f"PyTorch {training['torch']}.",
    ]
    rows = [
        (
            MODES[mode].format(window),
            f"{one.images:,}",
            f"{one.shifts:,}",
            f"{100 * one.consistency:.2f}",
            f"{100 * one.unchanged:.2f}",
        )
        for mode, one in found["stability"].items()
    ]
    heads = (
        "shift",
        "images",
        "shifts",
        "unchanged predictions, %",
        "images without any change, %",
    )
    return sentences, Table("Shifted images", heads, tuple(rows))


def card(name: str, sentences: list[str], table: Table, measured: dict[str, str]) -> str:
    """A model's card as Markdown."""
    limits = LIMITS.get(name, DIGIT_LIMITS)
    whole = (
        "Other images get one of these classes too. Whole circular shifts change predictions by rounding only. Shifts "
        "that lose a part of the image, or shifts by fractions of a pixel, change some predictions. The model was "
        "trained once; another seed gives another accuracy."
    )
    about = f"Measured {measured['date']} by `{measured['command']}`: {measured['hardware']}, PyTorch {measured['torch']}."
    parts = [f"# {name}", *sentences, table.markdown(), "### Limits", f"{limits} {whole}", about]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Measure the models that are named, or all, print what was found, and write their cards."""
    data_dir, *names = sys.argv[1:]
    for name in names or PRETRAINED:
        sentences, table = measure(name, data_dir)
        print("\n".join([name, *sentences, "", table.plain(), ""]), flush=True)
        about = provenance(f"python reproduction/benchmarks/packaged_models.py data {name}")
        place = Path(str(files("teka.models"))) / "pretrained" / name / "README.md"
        place.write_text(card(name, sentences, table, about), encoding="utf-8")


if __name__ == "__main__":
    main()
