"""The procedures of Zhang (2019) and Chaman and Dokmanić (2021) by `teka audit`, beside the loops of the authors' code.

    python reproduction/studies/literature.py --data-dir data

trains a ResNet-18 on 10,000 images of CIFAR-10 (runs/literature keeps it), asks it and the model of CIFAR-10 that comes
with teka, and writes literature.json beside itself. The loops are those of `validate_shift` in
github.com/adobe/antialiased-cnns (main.py) and of `validate` and `evaluate_random_crop` in
github.com/achaman2/truly_shift_invariant_cnns, with batches in place of their loaders.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, pad

from teka.audit.adapters import Reading, load
from teka.audit.adapters.case import AuditCase, make_case
from teka.audit.report import AuditReport
from teka.audit.settings import AuditSettings
from teka.cli import main as teka
from teka.cli.local_models import LOCAL_LOADERS
from teka.data import load as load_data
from teka.files import write_json
from teka.models import load as load_packaged
from teka.provenance import provenance
from teka.training import Run, restore, train

OUT, RUN = Path(__file__).with_suffix(".json"), Path("runs/literature")
RESNET = {
    "data": "cifar10",
    "model": "resnet18",
    "resnet_stem": "3x3",
    "train_size": 10_000,
    "epochs": 1,
}
BATCH, SEED, CROP, PASSES, MOST = 50, 0, 224, 5, 3
IMAGES = {"chaman2021": 500, "zhang2019": 100}


class AtEightTimesTheSize(nn.Module):
    """A model of 32 × 32 pixels that is shown 224 × 224: the mean of every 7 × 7."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return self.model(avg_pool2d(images, 7))


def cifar10_at_224() -> nn.Module:
    """The packaged model."""
    return AtEightTimesTheSize(load_packaged("cifar10")).eval()


def resnet18_at_224() -> nn.Module:
    """The ResNet-18."""
    return AtEightTimesTheSize(restore(RUN).model).eval()


def agreement(model: Callable[[Tensor], Any], first: Tensor, second: Tensor) -> int:
    """How many images are answered alike."""
    return int((model(first).argmax(1) == model(second).argmax(1)).sum())


@torch.inference_mode()
def zhang(model: Callable[[Tensor], Any], images: Tensor) -> dict[str, float]:
    """As `validate_shift`."""
    np.random.seed(SEED)
    alike, seen = 0, 0
    for _ in range(PASSES):
        for batch in images.split(BATCH):
            off0, off1 = np.random.randint(32, size=2), np.random.randint(32, size=2)
            crops = [
                batch[:, :, off[0] : off[0] + CROP, off[1] : off[1] + CROP] for off in (off0, off1)
            ]
            alike += agreement(model, crops[0], crops[1])
            seen += len(batch)
    return {"consistency of two crops": alike / seen}


@torch.inference_mode()
def chaman(model: Callable[[Tensor], Any], images: Tensor) -> dict[str, float]:
    """As `validate` with circular shifts, and `evaluate_random_crop` with zeros coming in."""
    found = {}
    for name in ("circular", "zero-padded"):
        np.random.seed(SEED)
        alike = 0
        for batch in images.split(BATCH):
            draws = [np.random.randint(-MOST, MOST, 2) for _ in range(2)]
            if name == "circular":
                moved = [torch.roll(batch, (int(one[0]), int(one[1])), (2, 3)) for one in draws]
            else:
                padded = pad(batch, (MOST,) * 4)
                moved = [
                    padded[:, :, a + MOST : a + MOST + 32, b + MOST : b + MOST + 32]
                    for a, b in draws
                ]
            alike += agreement(model, moved[0], moved[1])
        found[f"consistency of two shifts, {name}"] = alike / len(images)
    return found


MODELS = {
    "teka, exact": {"chaman2021": "cifar10", "zhang2019": f"{__file__}:cifar10_at_224"},
    "ResNet-18": {"chaman2021": str(RUN), "zhang2019": f"{__file__}:resnet18_at_224"},
}
LOOPS = {"chaman2021": chaman, "zhang2019": zhang}


def enlarged(data_dir: str) -> str:
    """A file of test images of CIFAR-10 as 256 × 256 pixels, every pixel 8 × 8 of them."""
    test, number, path = (
        load_data("cifar10", data_dir=data_dir).test,
        IMAGES["zhang2019"],
        RUN.parent / "enlarged.npz",
    )
    # The published images may be sorted by class.
    drawn = test.take(
        torch.randperm(len(test), generator=torch.Generator().manual_seed(SEED))[: 2 * number]
    )
    levels = (255 * drawn.images).round().to(torch.uint8).movedim(1, -1)
    levels, labels = (
        levels.repeat_interleave(8, 1).repeat_interleave(8, 2).numpy(),
        drawn.labels.numpy(),
    )
    # Of the others, as for training, nothing is shown.
    shown, others = slice(number), slice(number, None)
    train = {"images": levels[others], "labels": labels[others]}
    parts: dict[str, Any] = {**train, "test_images": levels[shown], "test_labels": labels[shown]}
    np.savez(path, **parts)
    return str(path)


def case_of(spec: str, preset: str, data: str, data_dir: str) -> AuditCase:
    """The model and images that the command shows it."""
    subject = load(spec, Reading(data_dir=data_dir), loaders=LOCAL_LOADERS)
    settings = AuditSettings(seed=SEED, batch_size=BATCH)
    return make_case(subject, data, settings, data_dir=data_dir, num_images=IMAGES[preset])


def compare(name: str, preset: str, data_dir: str) -> dict[str, Any]:
    """What the command and the authors' loop give."""
    spec, report = MODELS[name][preset], RUN.parent / f"literature-{preset}.json"
    data = enlarged(data_dir) if preset == "zhang2019" else "cifar10"
    options = [
        "--data",
        data,
        "--data-dir",
        data_dir,
        "--images",
        str(IMAGES[preset]),
        "--max-shift",
        "0",
    ]
    options += [
        "--batch-size",
        str(BATCH),
        "--seed",
        str(SEED),
        "--preset",
        preset,
        "--json",
        str(report),
    ]
    options += ["--skip", "noise", "layers", "derivative", "sensitivity"]
    # The procedure takes crops of 224 itself; beside it the mode shows those in the middle.
    options += (
        ["--mode", "crop", "--input-size", "224", "--placed-size", "256"]
        if preset == "zhang2019"
        else []
    )
    if teka(["audit", spec, *options]) != 0:
        raise RuntimeError(f"teka audit {spec} failed")
    (found,) = AuditReport.read(report).presets
    case = case_of(spec, preset, data, data_dir)
    loop = LOOPS[preset](case.function, case.images)
    numbers = {
        key: {
            "audit": one.value,
            "lower": one.lower,
            "upper": one.upper,
            "authors' loop": loop[key],
        }
        for key, one in found.numbers.items()
    }
    return {"model": name, "preset": preset, "images": IMAGES[preset], "numbers": numbers}


def main() -> None:
    """Train the ResNet-18 if it is missing, and ask both models by both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True)
    options = parser.parse_args()
    trained = train(
        Run.of(**RESNET, data_dir=options.data_dir), RUN, resume=True, progress_bar=False
    )
    rows = [compare(name, preset, options.data_dir) for name in MODELS for preset in LOOPS]
    facts = provenance(f"python reproduction/studies/literature.py --data-dir {options.data_dir}")
    write_json(
        OUT, {**facts, "resnet18_validation_accuracy": trained["validation_accuracy"], "rows": rows}
    )


if __name__ == "__main__":
    main()
