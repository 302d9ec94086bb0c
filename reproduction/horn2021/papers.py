"""The numbers of the papers that results are compared with, one run each.

Horn et al. (2021), "Translational Equivariance in Kernelizable Attention". Table 1 gives "strategy 2" for a clipping
distance of 6; its number for Fashion-MNIST is that for 4. The learning rate was 5e-5, where the text says 5e-4.
"""

import csv
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

DATA_COLUMNS = {"mnist": "mnist", "fashion_mnist": "fashion-mnist", "cifar10": "cifar10"}
ROWS_OF_CURVES = {
    "none": "Performer (no position)",
    "absolute": "Performer (absolute)",
    "rotation (strategy 1)": "Performer (strategy 1)",
    "clipped (strategy 2)": "Performer (strategy 2)",
}
PIXELS = 32
"""Side of the images."""


class PaperRow(NamedTuple):
    """A row of Table 1: test accuracy in % by data set, and the number of parameters as the paper writes it."""

    accuracy: Mapping[str, float]
    parameters: str


class PaperCurve(NamedTuple):
    """A curve of Figure 1: accuracy in % by shift along x in pixels, on the images of class 1; model as in Table 1."""

    data: str
    model: str
    accuracy: Mapping[int, float]


def table1() -> dict[str, PaperRow]:
    """The rows of Table 1, by the name of the model."""
    return {
        row["model"]: PaperRow(
            {data: float(row[column]) for column, data in DATA_COLUMNS.items()}, row["parameters"]
        )
        for row in _read("horn2021_table1.csv")
    }


def figure1() -> list[PaperCurve]:
    """The curves of Figure 1."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for row in _read("horn2021_figure1.csv"):
        curve = curves.setdefault((row["dataset"], row["position"]), {})
        curve[int(row["shift_px"])] = float(row["accuracy_percent"])
    return [
        PaperCurve(data, ROWS_OF_CURVES[position], accuracy)
        for (data, position), accuracy in curves.items()
    ]


def paper_row(model: str) -> str:
    """The name in Table 1 of what a model takes after: without the words for an exact form and a clipping distance."""
    return re.sub(r" exact| with k = \d+", "", model)


def _read(name: str) -> list[dict[str, str]]:
    text = (files("reproduction.horn2021") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
