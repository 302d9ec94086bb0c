"""Table 1 and Figure 1 of Horn et al. (2021): the paper's numbers and curves beside ours."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from reproduction.horn2021.papers import PIXELS, figure1, paper_row, table1
from reproduction.study.cells import CellResult
from reproduction.study.report.results import StudyGroup, StudyResults
from reproduction.study.report.tables import NOTHING, accuracy_cell, over_seeds
from reproduction.study.report.write import as_csv, group_row
from teka.audit import wilson_interval
from teka.reporting.charts import ShareCurve, draw_curves
from teka.reporting.formatting import significant
from teka.reporting.style import PALE, line_style
from teka.reporting.tables import Table

if TYPE_CHECKING:
    import matplotlib.figure

DATA_NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
SIDES = {"mnist": 28, "fashion-mnist": 28, "cifar10": 32}  # in pixels, as published
CLASS = 1
CLASS_NAMES = {"mnist": "digit 1", "fashion-mnist": "trousers"}
MOST_LINES = 5
AT_A_GLANCE = (
    "Performer (squared relu × rotary)", "Performer (strategy 1)", "Performer (no position)", "ResNet-18",
    "Performer (absolute)",
)  # fmt: skip
OTHER_DISTANCES = (
    "with k = 2)",
    "with k = 4)",
)  # strategy 2 beyond the paper's k = 6: in the tables alone
Curves = list[tuple[int, dict[tuple[int, int], float]]]
"""Of every seed the images that were shifted, and the accuracy on them for each shift (dy, dx)."""
Panels = dict[str, tuple[str, list[ShareCurve]]]


def accuracy_table(study: StudyResults) -> Table:
    """Test accuracy of every model on every data set, the paper's before ours, with parameters and operations."""
    data = ordered_data(study)
    heads = ["model", *(head for name in data for head in (f"{DATA_NAMES[name]}: paper", "ours"))]
    rows = []
    for model in ordered_models(study):
        row = table1().get(paper_row(model))
        cells = [model]
        for name in data:
            cells += [
                f"{row.accuracy[name]:g}" if row else NOTHING,
                accuracy_cell(_group(study, model, name)),
            ]
        results = [result for result in study.results if result.labels["model"] == model]
        # Data sets with one channel need fewer parameters than one with three.
        parameters = sorted({result.parameters for result in results})
        flops = sorted({result.forward_flops for result in results})
        cells += [
            row.parameters if row else NOTHING,
            _range([f"{count:,}" for count in parameters]),
        ]
        rows.append((*cells, _range([significant(count / 1e6) for count in flops])))
    best = [f"{max(row.accuracy[name] for row in table1().values()):g}" for name in data]
    rows.append(
        ("best of the paper", *(cell for share in best for cell in (share, "")), "", "", "")
    )
    return Table("Test accuracy in %", (*heads, "parameters: paper", "ours", "MFLOPs"), tuple(rows))


def effort_table(study: StudyResults) -> Table:
    """Seeds, epochs, images seen and seconds of a core of every model on every data set."""
    data, models = ordered_data(study), ordered_models(study)
    columns = [(f"{DATA_NAMES[name]}: seeds", "epochs", "images", "seconds") for name in data]
    heads = ["model", *(head for names in columns for head in names)]
    rows = tuple(
        (model, *(cell for name in data for cell in _effort(study, model, name)))
        for model in models
    )
    return Table("Training", tuple(heads), rows)


def ordered_data(study: StudyResults) -> list[str]:
    """The data sets that are there, in the order of Table 1."""
    return [name for name in DATA_NAMES if name in study.levels("data")]


def ordered_models(study: StudyResults) -> list[str]:
    """The models that are there: those of Table 1 in its order, each followed by its exact form, then the others."""
    rows = list(table1())

    def place(name: str) -> tuple[int, bool, str]:
        row = paper_row(name)
        return rows.index(row) if row in rows else len(rows), name != row, name

    return sorted(study.levels("model"), key=place)


def stability_table(study: StudyResults) -> Table:
    """How many answers stay where images move: of all the model was asked, and of images all of whose answers stay."""
    rows = []
    for data, model in itertools.product(ordered_data(study), ordered_models(study)):
        group = _group(study, model, data)
        kept = [result.stability for result in group.results if result.stability] if group else []
        for mode in kept[0] if kept else ():
            found = [by_mode[mode] for by_mode in kept if mode in by_mode]
            counts = (
                _range([f"{getattr(one, name):,}" for one in found])
                for name in ("images", "shifts")
            )
            shares = (
                min(getattr(one, name) for one in found) for name in ("consistency", "unchanged")
            )
            rows.append(
                (
                    f"{DATA_NAMES[data]}, {model}",
                    mode,
                    *counts,
                    *(f"{100 * share:.2f}" for share in shares),
                )
            )
    heads = (
        "data and model",
        "mode",
        "images",
        "shifts",
        "answers that stay",
        "images that never change",
    )
    return Table(
        "Answers that stay where images move, in %, of the seed with the fewest", heads, tuple(rows)
    )


def _group(study: StudyResults, model: str, data: str) -> StudyGroup | None:
    return study.group({"data": data, "model": model})


def _range(texts: Sequence[str]) -> str:
    return " – ".join(dict.fromkeys([*texts[:1], *texts[-1:]])) or NOTHING


def _effort(study: StudyResults, model: str, data: str) -> tuple[str, ...]:
    group = _group(study, model, data)
    if group is None or not group.results:
        return (NOTHING,) * 4
    epochs = sorted({result.epochs for result in group.results if result.epochs is not None})
    images = fmean(result.steps * result.batch_size for result in group.results)
    seconds = fmean(result.process_seconds for result in group.results)
    spread = _range([str(count) for count in epochs])
    return str(len(group.results)), spread, f"{round(images, -3):,.0f}", significant(seconds)


def table1_csv(study: StudyResults) -> str:
    """One row for each model and data set as CSV, as a study's `summary.csv` has them, and the paper's numbers."""
    rows = []
    for model, data in itertools.product(ordered_models(study), ordered_data(study)):
        if group := _group(study, model, data):
            paper = table1().get(paper_row(model))
            own = {
                "paper_accuracy_percent": paper and paper.accuracy[data],
                "paper_parameters": paper and paper.parameters,
            }
            rows.append({**group_row(study, group, {}), **own})
    return as_csv(rows)


def has_shifts(study: StudyResults) -> bool:
    """Whether any Performer was measured on shifted images."""
    return bool(_performers(study))


def draw_figure1(study: StudyResults, *, of_class: int | None) -> "matplotlib.figure.Figure":
    """Draw accuracy against shift for each data set and Performer, means and bands over seeds; see `figure1_note`.

    With the paper's class, its curves are drawn behind, dotted; at another image size at the same share of the width.
    """
    models = _drawn(study)
    panels = _panels(study, models, of_class)
    figure = draw_curves({title: curves for title, (_, curves) in panels.items()})
    colours = {
        paper_row(model): line_style(at).colour for at, model in reversed(list(enumerate(models)))
    }
    for panel, (data, _) in zip(figure.axes, panels.values(), strict=True):
        for curve in figure1() if of_class == CLASS else ():
            if curve.data == data:
                scale = (
                    _image_size([one for one in _performers(study) if one.labels["data"] == data])
                    / PIXELS
                )
                places, colour = (
                    [scale * shift for shift in curve.accuracy],
                    colours.get(curve.model, PALE),
                )
                look = {
                    "linestyle": (0, (1, 1.6)),
                    "color": colour,
                    "label": f"paper: {curve.model}",
                    "zorder": 1,
                }
                panel.plot(places, list(curve.accuracy.values()), **look)
    return figure


def draw_glance(study: StudyResults) -> "matplotlib.figure.Figure":
    """Draw at most five models' accuracy against shift for each data set, all classes, means over seeds."""
    models = ordered_models(study)
    chosen = (
        models if len(models) <= MOST_LINES else [model for model in AT_A_GLANCE if model in models]
    )
    panels = _panels(study, chosen, None)
    return draw_curves(
        {title: [replace(one, band={}) for one in curves] for title, (_, curves) in panels.items()}
    )


def _panels(study: StudyResults, models: Sequence[str], of_class: int | None) -> Panels:
    """For each data set with a curve, by the words below its panel: its name, and a curve of every model."""
    panels = {}
    for data in ordered_data(study):
        found = {model: _curves(study, model, data, of_class) for model in models}
        if any(found.values()):
            what = (
                CLASS_NAMES.get(data, f"class {of_class}") if of_class == CLASS else "all classes"
            )
            title = f"{DATA_NAMES[data]}, {what}: shift dx (pixels)"
            panels[title] = data, [_share_curve(model, curves) for model, curves in found.items()]
    return panels


def _share_curve(model: str, curves: Curves) -> ShareCurve:
    """Means over seeds, and the lowest and highest seed, or of one seed the 95 % Wilson interval."""
    means, band = {}, {}
    for shift in sorted(curves[0][1]) if curves else ():
        shares = [by_shift[shift] for _, by_shift in curves]
        means[shift[1]], band[shift[1]] = fmean(shares), (min(shares), max(shares))
        if len(curves) == 1:
            ends = wilson_interval(round(shares[0] * curves[0][0]), curves[0][0])
            band[shift[1]] = float(ends[0]), float(ends[1])
    return ShareCurve(model, means, band)


def shift_table(study: StudyResults) -> Table:
    """Every model under shifts: the mean over all shifts for class 1, and all classes at their worst."""
    rows = []
    for data in ordered_data(study):
        for model in ordered_models(study):
            one, every = (_curves(study, model, data, chosen) for chosen in (CLASS, None))
            if not every:
                continue
            results = _results(study, model, data)
            still = [by_shift[0, 0] for _, by_shift in every]
            lowest = [min(by_shift.values()) for _, by_shift in every]
            rows.append(
                (
                    f"{DATA_NAMES[data]}, {model}",
                    f"±{_largest_shift(results)} of {_image_size(results)}",
                    f"{one[0][0]:,}" if one else NOTHING,
                    over_seeds([fmean(by_shift.values()) for _, by_shift in one]),
                    f"{every[0][0]:,}",
                    over_seeds(still),
                    over_seeds(lowest),
                    over_seeds([result.worst_shift_accuracy or 0.0 for result in results]),
                    over_seeds(
                        [low - middle for low, middle in zip(lowest, still, strict=True)],
                        signed=True,
                    ),
                )
            )
    heads = (
        "data and model", "pixels", f"images of class {CLASS}", "mean over shifts", "images of all classes",
        "not shifted", "worst shift", "right at every shift", "worst less not shifted",
    )  # fmt: skip
    return Table("Accuracy in % under shifts along x", heads, tuple(rows))


TABLES = (accuracy_table, shift_table, stability_table, effort_table)
"""What a reproduction writes, those that have rows."""


def _models(study: StudyResults) -> list[str]:
    return [model for model in ordered_models(study) if model.startswith("Performer")]


def _drawn(study: StudyResults) -> list[str]:
    models = _models(study)
    return [model for model in models if not model.endswith(OTHER_DISTANCES)] or models


def _results(study: StudyResults, model: str, data: str) -> list[CellResult]:
    group = _group(study, model, data)
    return [result for result in group.results if result.shifted_images] if group else []


def _curves(study: StudyResults, model: str, data: str, of_class: int | None) -> Curves:
    results = _results(study, model, data)
    if of_class is None:
        return [(one.shifted_images, one.by_shift()) for one in results]
    kept = [one for one in results if of_class in one.classes]
    return [(one.classes[of_class].shifted_images, one.by_shift(of_class)) for one in kept]


def _largest_shift(results: Sequence[CellResult]) -> int:
    return max(abs(shift[1]) for result in results for shift in result.shifts)


def _image_size(results: Sequence[CellResult]) -> int:
    return max(result.image_size or SIDES[result.labels["data"]] for result in results)


def _performers(study: StudyResults) -> list[CellResult]:
    models = _models(study)
    return [
        result
        for result in study.results
        if result.labels["model"] in models and result.shifted_images
    ]


def figure1_note(study: StudyResults) -> str:
    """What the figure shows, in some sentences."""
    largest, size = (of(_performers(study)) for of in (_largest_shift, _image_size))
    scaled = (
        f" They are of {PIXELS} pixels, and drawn at the same share of the width."
        if size != PIXELS
        else ""
    )
    left_out = (
        " Of strategy 2 only k = 6 is drawn; all are in the table."
        if _drawn(study) != _models(study)
        else ""
    )
    return (
        f"Shifts along x by up to {largest} of {size} pixels, of the test images that lose nothing by any of them. "
        "Lines: mean over seeds; bands, if any: lowest to highest seed, of one seed the 95 % Wilson interval; dotted, "
        "if any: the paper's curves, in the colour of our model, grey without one."
        + scaled
        + left_out
    )
