"""The pruned row of reproduction/studies/cordonnier2020_small.yaml: its generalized network without degenerate heads, trained on.

    python reproduction/studies/pruned_heads.py

writes pruned_heads.json beside itself; runs/pruned_heads keeps the runs, so that the same command resumes. The bound on
the condition number is the paper's, 1e5; where no head is above it that of its code, 1,000; then 100, 10, and 3.
"""

import json
from pathlib import Path
from typing import Any

import torch

from reproduction.baselines import SelfAttentionNetwork
from reproduction.baselines.degenerate_heads import degenerate_heads
from reproduction.heads.prune import prune
from reproduction.study import read_study
from teka.files import write_json
from teka.training import TrainedRun, restore, train

STUDY = Path(__file__).parent / "cordonnier2020_small.yaml"
RUNS = Path("runs/pruned_heads")
BOUNDS = (1e5, 1e3, 100.0, 10.0, 3.0)


def first_bound(trained: TrainedRun) -> float:
    """The largest of the bounds that takes a head."""
    assert isinstance(trained.model, SelfAttentionNetwork)
    for bound in BOUNDS:
        if any(layer.prunable for layer in degenerate_heads(trained.model, condition_number=bound)):
            return bound
    raise RuntimeError(f"no head of {trained.folder} is above {BOUNDS[-1]}")


def prune_seed(seed: int) -> dict[str, Any]:
    """Train, prune and train on; gives what `pruning.json` has."""
    whole, pruned = RUNS / f"seed-{seed}", RUNS / f"seed-{seed}-pruned"
    run = read_study(STUDY).make_cell({"model": "SA quadratic generalized"}, seed).run
    train(run, whole, resume=True, progress_bar=False)
    if not pruned.exists():
        trained = restore(whole)
        prune(trained, pruned, condition_number=first_bound(trained), progress_bar=False)
    return {"seed": seed, **json.loads((pruned / "pruning.json").read_text(encoding="utf-8"))}


def main() -> None:
    """Every seed of the study."""
    torch.set_num_threads(1)
    write_json(
        Path(__file__).with_suffix(".json"),
        {"cells": [prune_seed(seed) for seed in read_study(STUDY).seeds]},
    )


if __name__ == "__main__":
    main()
