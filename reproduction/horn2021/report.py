"""Tables and figures that compare our results with those of Horn et al. (2021)."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from reproduction.study import Study, read_cells
from reproduction.study.report import (
    describe_conditions,
    format_mean,
    format_table,
    over_seeds,
    summarize,
    write_report,
)
from teka.reporting.formatting import significant
from teka.reporting.plots import AccuracyCurve, draw_accuracy_curves

FOLDER = Path(__file__).parent
PAPER_IMAGE_SIZE = 32
AT_A_GLANCE = [
    "Performer (squared relu × rotary)",
    "Performer (strategy 1)",
    "Performer (no position)",
    "ResNet-18",
    "Performer (absolute)",
]
TITLE = "Reproduction of Horn et al. (2021)"
NOTES = """Paper: Table 1 of Horn et al. (2021), one run each. Its accuracy of strategy 2 on
Fashion-MNIST is that of clipping distance 4. Ours: means over seeds ± half of the 95 % interval
(Student's t). MFLOPs are those of the matrix products of one forward pass. CIFAR-10 has three
channels, so its models have more parameters.

Figures: accuracy of test images that lose nothing by shifts along x. Lines are means over seeds,
bands reach from the lowest to the highest seed, and dotted lines are the paper's, at the same share
of the image width. Unchanged predictions are those of the seed with the fewest."""


def read_paper_table() -> pd.DataFrame:
    """Return Table 1: accuracy in percent by model and data set, and the number of parameters."""
    return pd.read_csv(FOLDER / "horn2021_table1.csv", index_col="model")


def read_paper_figure() -> pd.DataFrame:
    """Return Figure 1: accuracy in percent of class 1, by data set, model and shift in pixels."""
    return pd.read_csv(FOLDER / "horn2021_figure1.csv")


def paper_name(model: str) -> str:
    """Return the name of a model in the paper, which has no exact forms or other distances."""
    return re.sub(r" exact| with k = \d+", "", model)


def write_reproduction(study: Study, folder: str | Path) -> str:
    """Write `table1.md`, `table1.csv` and the figures, and return the tables.

    Args:
        study: The study of a scale.
        folder: Folder of its results.
    """
    cells = read_cells(study, folder)
    tables = {"Test accuracy (%)": accuracy_table(cells)}
    figures = {}
    shifted = cells[cells.shifted_images > 0]
    if len(shifted):
        tables["Shifts along x"] = shift_table(shifted)
        models = shifted.index.get_level_values("model")
        performers = shifted[models.str.startswith("Performer") & ~models.str.contains("k = [24]")]
        is_shown = models.isin(AT_A_GLANCE if models.nunique() > len(AT_A_GLANCE) else models)
        figures = {
            "at_a_glance.png": draw_shifts(shifted[is_shown]),
            "figure1.png": draw_shifts(performers, is_class_1=True),
            "figure1_all_classes.png": draw_shifts(performers),
        }
    if cells.stability.any():
        tables["Unchanged predictions"] = stability_table(cells)
    tables["Training"] = training_table(cells)
    numbers = summarize(cells)
    paper = read_paper_table().drop(columns="parameters").stack()
    places = [(paper_name(model), data) for data, model in numbers.index]
    numbers["paper_accuracy_percent"] = paper.reindex(places).to_numpy()
    notes = [study.description.strip(), NOTES, describe_conditions(study, cells)]
    return write_report(Path(folder) / "table1", TITLE, tables, notes, numbers, figures)


def accuracy_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the test accuracies of the paper and ours, with parameters and MFLOPs."""
    by_model = cells.groupby(level="model", sort=False)
    paper = read_paper_table().reindex(map(paper_name, by_model.groups))
    paper.index = pd.Index(by_model.groups, name="model")
    ours = over_seeds(cells).accuracy.agg(format_mean).unstack("data", sort=False)
    table = pd.DataFrame(index=paper.index)
    for data in ours:
        table[f"{data}: paper"] = paper[data]
        table[f"{data}: ours"] = ours[data]
    table["parameters: paper"] = paper.parameters
    for name, heading in {"parameters": "parameters: ours", "mflops": "MFLOPs"}.items():
        ends = by_model[name].agg(["min", "max"]).map(significant, na_action="ignore")
        table[heading] = ends["min"].where(
            ends["min"] == ends["max"], ends["min"] + " – " + ends["max"]
        )
    return table


def shift_table(shifted: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracies of class 1 and of all classes under the shifts."""
    class_1 = shifted.classes.map(lambda classes: (classes or {}).get("1", {}))
    columns = {
        "class_1_images": class_1.str.get("shifted_images"),
        "class_1_accuracy": class_1.str.get("accuracy_by_shift").map(np.mean),
        "difference_accuracy": shifted.minimum_accuracy - shifted.unshifted_accuracy,
    }
    headings = {
        "class_1_images": "images of class 1",
        "class_1_accuracy": "class 1, mean over shifts (%)",
        "shifted_images": "images",
        "unshifted_accuracy": "not shifted (%)",
        "minimum_accuracy": "worst shift (%)",
        "worst_shift_accuracy": "correct at every shift (%)",
        "difference_accuracy": "worst minus not shifted",
    }
    return format_table(shifted.assign(**columns), headings)


def stability_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Return how many predictions, and all predictions of how many images, shifts do not change.

    The values are those of the seed with the lowest shares.
    """
    rows = [
        {"data": data, "model": model, "mode": mode, **values}
        for (data, model, _), stability in cells.stability.items()
        for mode, values in (stability or {}).items()
    ]
    groups = pd.DataFrame(rows).groupby(["data", "model", "mode"], sort=False)
    shares = (100 * groups[["consistency", "unchanged"]].min()).map("{:.2f}".format)
    shares.columns = ["unchanged predictions (%)", "images without any change (%)"]
    return groups[["images", "shifts"]].max().join(shares)


def training_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the mean epochs, images seen and CPU seconds of the runs."""
    images = cells.steps * cells.run.str.get("batch_size")
    headings = {"epochs": "epochs", "images": "images seen", "process_seconds": "CPU seconds"}
    return format_table(cells.assign(images=images), headings)


def draw_shifts(shifted: pd.DataFrame, *, is_class_1: bool = False) -> Figure:
    """Draw accuracy against the shift along x: means over seeds, and bands from worst to best seed.

    Args:
        shifted: Cells with shifted images, of one image size.
        is_class_1: Draw the accuracy of class 1 and the curves of the paper, as in Figure 1.
    """
    panels: dict[str, list[AccuracyCurve]] = {}
    for (data, model), group in over_seeds(shifted):
        rows = [
            dict(zip([dx for _, dx in cell.shifts], shares, strict=True))
            for cell in group.itertuples()
            for shares in [
                cell.classes["1"]["accuracy_by_shift"] if is_class_1 else cell.accuracy_by_shift
            ]
        ]
        accuracy = pd.DataFrame(rows).sort_index(axis=1)
        band = dict(zip(accuracy, zip(accuracy.min(), accuracy.max(), strict=True), strict=True))
        curve = AccuracyCurve(model, accuracy.mean().to_dict(), band)
        panels.setdefault(data, []).append(curve)
    figure = draw_accuracy_curves(
        {f"{data}: shift dx (pixels)": curves for data, curves in panels.items()}
    )
    if is_class_1:
        scale = (shifted.run.iloc[0]["image_size"] or 28) / PAPER_IMAGE_SIZE
        for axis, data in zip(figure.axes, panels, strict=True):
            colors = {paper_name(str(line.get_label())): line.get_color() for line in axis.lines}
            for (name, model), curve in read_paper_figure().groupby(["data", "model"]):
                if name == data:
                    look = {"linestyle": ":", "color": colors.get(model, "gray"), "zorder": 1}
                    axis.plot(scale * curve.shift_px, curve.accuracy_percent, **look)
    return figure
