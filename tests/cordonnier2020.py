"""Results of Cordonnier et al. (2020), "On the Relationship between Self-Attention and
Convolutional Layers".
"""

import csv
from pathlib import Path
from typing import NamedTuple


class PaperModel(NamedTuple):
    """A row of the tables in §4 and A.1: test accuracy in %, parameters and operations.

    The paper counts only the operations of linear layers and convolutions, two per multiply-add,
    and not those of attention weights. See reproduction/baselines/README.md.
    """

    accuracy: float
    parameters: str
    flops: str


def paper_models() -> dict[str, PaperModel]:
    """Return the models of the paper by name: one run each on CIFAR-10; "SA" is self-attention."""
    return {
        row["model"]: PaperModel(
            round(100 * float(row["accuracy"]), 1), row["parameters"], row["flops"]
        )
        for row in csv.DictReader(
            Path(__file__).with_suffix(".csv").read_text(encoding="utf-8").splitlines()
        )
    }
