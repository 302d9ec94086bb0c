"""Study that fine-tunes a ResNet-18 after `teka.convert.fix` has made it equivariant.

    python -m reproduction.studies.fine_tuning --data-dir data

The command writes fine_tuning.csv and stores its networks in runs/fine_tuning. Run it again to
resume. For each seed, it measures four networks: the original and the fixed network, and both after
fine-tuning on the same images for the same number of epochs.
"""

from pathlib import Path

import cyclopts
import pandas as pd
import torch
from joblib import Memory
from torch import nn

from reproduction.study.model_metrics import measure_accuracy, select_random_images
from reproduction.study.summary_page import format_mean_percentage
from reproduction.training import train_custom_model
from teka.audit import Movement, axis_shifts, locate_layers, measure_responses
from teka.convert import fix
from teka.data import Split
from teka.training import Run, restore, train

RESULTS = Path(__file__).with_suffix(".csv")
RUNS = Path("runs/fine_tuning")
BASE = {
    "data": "cifar10",
    "image_size": 64,
    "model": "resnet18",
    "train_size": 10_000,
    "epochs": 3,
    "precision": "bfloat16",
    "random_flip": True,
}
SEEDS = (10, 11, 12)
FINE_TUNING = {"batch_size": 64, "learning_rate": 5e-4, "weight_decay": 0.05, "warmup": 0.3}
NUM_IMAGES, NUM_SHIFTED = 2500, 300
SHIFTS, MOVEMENT = axis_shifts(3), Movement("circular")


def measure_accuracy_under_shifts(model: nn.Module, test: Split) -> dict[str, float]:
    """Measure a model's accuracy and the share of images that are correct at every shift."""
    images, labels = test[:NUM_SHIFTED]
    responses = measure_responses(model, images, SHIFTS, MOVEMENT, labels=labels)
    return {
        "accuracy": measure_accuracy(model, test),
        "worst_shift_accuracy": responses.correct.all(dim=0).double().mean().item(),
    }


def fine_tune_and_measure_networks(seed: int, data_dir: str) -> pd.DataFrame:
    """Train an original and a fixed network, and measure both before and after fine-tuning.

    Returns:
        A table with one row for each of the four networks.
    """
    folder = RUNS / f"seed-{seed}"
    run = Run.from_fields(**BASE, seed=seed, data_dir=data_dir)
    train(run, folder, resume=True, progress_bar=False)
    trained = restore(folder, data_dir=data_dir)
    test = select_random_images(trained.dataset.test, NUM_IMAGES)
    layers = locate_layers(trained.model, test.images[:16], SHIFTS, MOVEMENT)
    fixed, _ = fix(trained.model, layers, ("circular", "polyphase"))
    models = {"original": trained.model, "fixed": fixed}
    networks = {name: measure_accuracy_under_shifts(model, test) for name, model in models.items()}
    for name, model in models.items():
        train_custom_model(model, trained.dataset, run.replace(**FINE_TUNING))
        networks[f"{name}, fine-tuned"] = measure_accuracy_under_shifts(model, test)
    return pd.DataFrame(networks).T.assign(seed=seed)


def main(*, data_dir: str) -> None:
    """Compare original and fixed networks: save the accuracies for all seeds, and print means."""
    torch.set_num_threads(1)
    run = Memory(RUNS, verbose=0).cache(fine_tune_and_measure_networks)
    results = pd.concat([run(seed, data_dir) for seed in SEEDS])
    results.to_csv(RESULTS, index_label="network")
    networks = results.groupby(level=0, sort=False)
    means = networks[["accuracy", "worst_shift_accuracy"]].agg(format_mean_percentage)
    original = networks.get_group("original, fine-tuned").to_numpy()
    gain = networks.get_group("fixed, fine-tuned") - original
    print(means, gain.agg(format_mean_percentage, signed=True), sep="\n\n")


if __name__ == "__main__":
    cyclopts.run(main)
