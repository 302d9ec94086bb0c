"""Study that removes degenerate attention heads from trained networks and fine-tunes the networks.

    python -m reproduction.studies.pruned_heads

The command trains the networks of cordonnier2020_small.yaml whose heads attend to Gaussians of any
shape, one for each seed. It writes their accuracies to pruned_heads.json and stores its runs in
runs/pruned_heads. Run it again to resume.

A head is degenerate if the condition number of its Gaussian exceeds a threshold: 1e5 in the paper,
1,000 in its code. Each network is pruned with the first of `THRESHOLDS` that removes a head.
"""

from pathlib import Path
from typing import Any

import torch

from reproduction.heads.prune import PRUNING_FILE, find_degenerate_heads, prune_network
from reproduction.study import read_study
from teka.files import read_json, write_json
from teka.training import restore, train

STUDY = read_study(Path(__file__).with_name("cordonnier2020_small.yaml"))
RUNS = Path("runs/pruned_heads")
THRESHOLDS = (1e5, 1e3, 100.0, 10.0, 3.0)


def train_and_prune(seed: int) -> dict[str, Any]:
    """Train a network with the given seed, remove its degenerate heads, and fine-tune it."""
    folder, pruned = RUNS / f"seed-{seed}", RUNS / f"seed-{seed}-pruned"
    run = STUDY.make_study_model({"model": "SA quadratic generalized"}, seed).run
    train(run, folder, resume=True)
    if not pruned.exists():
        trained = restore(folder)
        largest = find_degenerate_heads(trained.model).condition_number.max()
        threshold = next(threshold for threshold in THRESHOLDS if largest > threshold)
        prune_network(trained, pruned, condition_number=threshold)
    return {"seed": seed, **read_json(pruned / PRUNING_FILE)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = [train_and_prune(seed) for seed in STUDY.seeds]
    write_json(Path(__file__).with_suffix(".json"), {"cells": results})
