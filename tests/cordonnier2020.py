"""The numbers of Cordonnier et al. (2020), "On the Relationship between Self-Attention and Convolutional Layers"."""

import csv
from pathlib import Path
from typing import NamedTuple


class PaperModel(NamedTuple):
    """A row of the tables in §4 and A.1: test accuracy in %, parameters and operations as the paper writes them.

    The operations, two for each multiply-add, are those of linear maps and convolutions alone; what the heads do with
    their weights is not in them (see docs/self_attention_network.md).
    """

    accuracy: float
    parameters: str
    flops: str


def paper_models() -> dict[str, PaperModel]:
    """The models of Cordonnier et al. (2020) by name, on CIFAR-10, one run each; "SA" is self-attention."""
    return {
        row["model"]: PaperModel(
            round(100 * float(row["accuracy"]), 1), row["parameters"], row["flops"]
        )
        for row in csv.DictReader(
            Path(__file__).with_suffix(".csv").read_text(encoding="utf-8").splitlines()
        )
    }
