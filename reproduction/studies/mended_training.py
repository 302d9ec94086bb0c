"""A ResNet-18 that is mended after it was trained, and trained on: whether it gets back what mending costs.

    python reproduction/studies/mended_training.py --data-dir data

writes mended_training.json beside itself; runs/mended_training keeps the networks and what each seed gave, so that the
same command resumes. Four networks a seed, on the same images: as trained, mended without training, mended and trained
on for as many epochs again, and as trained and trained on as long, without which the third would have seen more.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR

from teka.audit import Movement, axis_shifts, blame_layers
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.statistics.estimate import mean_over_seeds
from teka.audit.statistics.summarize import summarize
from teka.codec import encode
from teka.convert import mend
from teka.data import Split
from teka.files import read_json, write_json
from teka.provenance import provenance
from teka.training import Run, restore, train

OUT, RUNS = Path(__file__).with_suffix(".json"), Path("runs/mended_training")
BASE = {"data": "cifar10", "image_size": 64, "model": "resnet18", "train_size": 10_000, "epochs": 3}
BASE |= {"precision": "bfloat16", "random_flip": True}
SEEDS, FIXES = (10, 11, 12), ("circular", "polyphase")
EPOCHS, BATCH, RATE = 3, 64, 5e-4  # of training on
TEST, MOVED, SHIFTS, MOVEMENT = (
    2500,
    300,
    axis_shifts(3),
    Movement("circular"),
)  # images at rest, and moved
NUMBERS = ("worst_shift_accuracy", "consistency", "maximum_error")
MEANS = ("accuracy", "worst_shift_accuracy")


def train_on(model: nn.Module, images: Split, seed: int) -> nn.Module:
    """More epochs of the same images, mirrored at random."""
    torch.manual_seed(seed)
    model.train().requires_grad_(True)
    steps = EPOCHS * (len(images) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    schedule = OneCycleLR(optimizer, max_lr=RATE, total_steps=steps)
    epochs = [torch.randperm(len(images))[: len(images) // BATCH * BATCH] for _ in range(EPOCHS)]
    for chosen in torch.cat(epochs).split(BATCH):
        batch = images.images[chosen]
        mirrored = torch.where(torch.rand(BATCH, 1, 1, 1) < 0.5, batch.flip(3), batch)
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(mirrored), images.labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.inference_mode()
def accuracy(model: nn.Module, test: Split) -> float:
    """Of test images as they are."""
    parts = zip(test.images.split(256), test.labels.split(256), strict=True)
    return sum(int((model(images).argmax(1) == labels).sum()) for images, labels in parts) / len(
        test
    )


def numbers(model: nn.Module, test: Split) -> dict[str, Any]:
    """Accuracy of test images; of some of them the numbers under shift."""
    responses = measure_responses(
        model, test.images[:MOVED], SHIFTS, MOVEMENT, labels=test.labels[:MOVED]
    )
    found = summarize(responses).numbers
    return {"accuracy": accuracy(model, test), **{name: encode(found[name]) for name in NUMBERS}}


def measure(seed: int, data_dir: str) -> dict[str, Any]:
    """The four networks of a seed."""
    start = time.perf_counter()
    train(
        Run.of(**BASE, seed=seed, data_dir=data_dir),
        RUNS / f"seed-{seed}",
        resume=True,
        progress_bar=False,
    )
    trained = restore(RUNS / f"seed-{seed}", data_dir=data_dir)
    model, published = trained.model.eval(), trained.dataset.test
    drawn = torch.randperm(
        len(published), generator=torch.Generator().manual_seed(0)
    )  # they may be sorted by class
    test = published.take(drawn[:TEST])
    few: Tensor = test.images[:16]
    mended, done = mend(model, blame_layers(model, few, SHIFTS, MOVEMENT), FIXES)
    found = {"as trained": numbers(model, test), "mended": numbers(mended, test)}
    for name, one in (("as trained, trained on", model), ("mended, trained on", mended)):
        found[name] = numbers(train_on(one, trained.dataset.train, seed), test)
    layers = {fix: len(names) for fix, names in done.fixed.items()}
    return {
        "seed": seed,
        "layers": layers,
        "seconds": round(time.perf_counter() - start),
        "networks": found,
    }


def over_seeds(seeds: list[dict[str, Any]], number: str) -> dict[str, Any]:
    """Means over seeds of a number of each network, and of the last less the one that was trained on as it was."""
    values: dict[str, list[float]] = {}
    for name in seeds[0]["networks"]:
        found = [one["networks"][name][number] for one in seeds]
        values[name] = [one["value"] if isinstance(one, dict) else one for one in found]
    *_, plain, mended = values
    gains = [after - before for before, after in zip(values[plain], values[mended], strict=True)]
    return {
        name: encode(mean_over_seeds(one))
        for name, one in {**values, f"{mended}, less {plain}": gains}.items()
    }


def main() -> None:
    """Every seed, and means over seeds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = []
    for seed in SEEDS:
        kept = RUNS / f"seed-{seed}.json"
        if not kept.exists():
            write_json(kept, measure(seed, options.data_dir))
        seeds.append(read_json(kept))
    facts = provenance(
        f"python reproduction/studies/mended_training.py --data-dir {options.data_dir}"
    )
    write_json(
        OUT, {**facts, **{number: over_seeds(seeds, number) for number in MEANS}, "seeds": seeds}
    )


if __name__ == "__main__":
    main()
