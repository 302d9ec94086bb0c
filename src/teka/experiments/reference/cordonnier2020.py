"""The numbers of Cordonnier et al. (2020), "On the Relationship between Self-Attention and Convolutional Layers".

CIFAR-10, one run each. The operations, two for each multiply-add, are those of linear maps and convolutions alone; what
the heads do with their weights is not in them (see docs/self_attention_network.md).
"""

import csv
from importlib.resources import files
from typing import NamedTuple


class PaperModel(NamedTuple):
    """A row of the tables in §4 and A.1: test accuracy in %, parameters and operations as the paper writes them."""

    accuracy: float
    parameters: str
    flops: str


def paper_models() -> dict[str, PaperModel]:
    """The rows, by the name of the model; "SA" is self-attention."""
    text = (files("teka.experiments.reference") / "cordonnier2020_cifar10.csv").read_text(encoding="utf-8")
    return {
        row["model"]: PaperModel(round(100 * float(row["accuracy"]), 1), row["parameters"], row["flops"])
        for row in csv.DictReader(text.splitlines())
    }
