"""Comparison of our results with those of Horn et al. (2021), arXiv:2102.07680."""

import re
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from reproduction.study import Study, read_results_table, read_study, write_study_page
from reproduction.study.summary_page import format_mean_percentage, group_by_model
from teka.checks import check_name

FOLDER = Path(__file__).parent
PAPER_IMAGE_SIZE = 32
SCALES = ("small", "full", "full-cpu", "one-stem")


def read_paper_study(scale: str) -> Study:
    """Read the study that reproduces the experiments of Horn et al. (2021) at a given scale.

    Args:
        scale: "small" for small models and images on a CPU, "full" for the paper's experiment on a
            GPU, "full-cpu" for our models at full resolution, or "one-stem" for the paper's
            position encodings, all with the same convolutional stem.
    """
    check_name("scale", scale, SCALES)
    return read_study(FOLDER / f"{scale}.yaml")


def select_paper_models(study: Study, target: str) -> dict[str, list[str]]:
    """Select the models of a study that Table 1 or Figure 1 of the paper compares.

    Args:
        study: A study of `read_paper_study`.
        target: "table1" for all models, or "figure1" for the Performers on MNIST and Fashion-MNIST.

    Returns:
        Selected levels of the factors "data" and "model". An empty dictionary selects all models.
    """
    check_name("target", target, ("table1", "figure1"))
    if target == "table1":
        return {}
    models = study.factors["model"]
    performers = [name for name in models if models[name].get("model", "performer") == "performer"]
    return {"data": ["mnist", "fashion-mnist"], "model": performers}


def read_paper_table() -> pd.DataFrame:
    """Read Table 1 of Horn et al. (2021), with accuracies in percent and parameter counts.

    In the paper, strategy 2 was trained on Fashion-MNIST with distances clipped at 4, and on the
    other data sets with distances clipped at 6.
    """
    return pd.read_csv(FOLDER / "horn2021_table1.csv", index_col="model")


def read_paper_figure() -> pd.DataFrame:
    """Read the curves of Figure 1 of Horn et al. (2021).

    Each row gives the accuracy in percent on test images of class 1 for one data set, model and
    shift.
    """
    return pd.read_csv(FOLDER / "horn2021_figure1.csv")


def find_name_in_paper(model: str) -> str:
    """Return the name that Horn et al. (2021) use for one of our models.

    >>> find_name_in_paper("Performer (strategy 2 exact with k = 2)")
    'Performer (strategy 2)'
    """
    return re.sub(r" exact| with k = \d+", "", model)


def write_paper_comparison(study: Study, folder: str | Path) -> str:
    """Write `table1.md` and `figure1.png`, which compare our results with Horn et al. (2021).

    The figure is written only if the accuracy of some models was measured on shifted images of
    class 1.

    Args:
        study: A study of `read_paper_study`.
        folder: Folder with the study's results.

    Returns:
        The text of the page `table1.md`.
    """
    results = read_results_table(study, folder)
    has_class_1 = results.classes.map(lambda classes: "1" in (classes or {}))
    if has_class_1.any():
        draw_figure1(results[has_class_1]).savefig(Path(folder) / "figure1.png")
    tables = {"Test accuracy (%), paper (one run) and ours": make_accuracy_table(results)}
    return write_study_page(study, folder, name="table1", tables=tables)


def make_accuracy_table(results: pd.DataFrame) -> pd.DataFrame:
    """Return a table of our test accuracies next to those of Horn et al. (2021).

    The last column gives the number of parameters that the paper reports for each model.
    """
    ours = group_by_model(results).accuracy.agg(format_mean_percentage).unstack("data", sort=False)
    paper = read_paper_table().reindex(ours.index.map(find_name_in_paper)).set_index(ours.index)
    table = pd.DataFrame(index=ours.index)
    for data in ours:
        table[f"{data}: paper"] = paper[data]
        table[f"{data}: ours"] = ours[data]
    return table.assign(**{"parameters: paper": paper.parameters})


def draw_figure1(results: pd.DataFrame) -> Figure:
    """Draw the accuracy of each model on images of class 1 that are shifted along x.

    Solid lines are our means over seeds. Dotted lines are from Figure 1 of Horn et al. (2021), with
    the shifts rescaled to our image width.

    Args:
        results: Table of `read_results_table`, measured on shifted images of class 1.
    """
    panels = results.groupby(level="data", sort=False)
    figure = Figure((6 * len(panels), 4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    paper = read_paper_figure().set_index(["data", "model"])
    for axis, (data, panel) in zip(axes, panels, strict=True):
        for index, (model, group) in enumerate(panel.groupby(level="model", sort=False)):
            curves = group.classes.map(lambda classes: classes["1"]["accuracy_by_shift"]).tolist()
            accuracy = pd.DataFrame(curves, columns=[dx for _, dx in group.shifts.iloc[0]]).mean()
            axis.plot(100 * accuracy.sort_index(), color=f"C{index % 10}", label=model)
            name = (data, find_name_in_paper(model))
            if name in paper.index:
                curve = paper.loc[[name]]
                scale = (group.run.iloc[0]["image_size"] or 28) / PAPER_IMAGE_SIZE
                axis.plot(
                    scale * curve.shift_px, curve.accuracy_percent, ":", color=f"C{index % 10}"
                )
        axis.set(title=data, xlabel="shift along x (pixels)", ylabel="accuracy (%)")
        axis.legend(fontsize="x-small")
    return figure
