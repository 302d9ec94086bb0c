"""Table 1 and Figure 1 of Horn et al. (2021): the paper's numbers and curves beside ours."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

from teka.audit import wilson_interval
from teka.audit.page.charts import add_legend, draw_line, dress_panel, make_figure
from teka.audit.page.notation import listed, significant, write_step
from teka.audit.page.style import INK, PALE, LineStyle, level_styles
from teka.audit.page.tables import Table
from teka.experiments.reproduce.papers import PIXELS, PaperRow, figure1, paper_row, table1
from teka.experiments.study.cells import CellResult
from teka.experiments.study.report.results import StudyGroup, StudyResults
from teka.experiments.study.report.tables import NOTHING, diverged, signed_with_deviation, with_deviation
from teka.experiments.study.report.write import as_csv

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

DATA_NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
CLASS = 1
CLASS_NAMES = {"mnist": "digit 1", "fashion-mnist": "trousers"}


def accuracy_table(study: StudyResults) -> Table:
    """Test accuracy of every model on every data set, the paper's before ours, with parameters and operations."""
    data = ordered_data(study)
    heads = ["model", *(head for name in data for head in (f"{DATA_NAMES[name]}: paper", "ours"))]
    paper = table1()
    rows = []
    for model in ordered_models(study):
        cells = [model]
        for name in data:
            row = paper.get(paper_row(model))
            cells += [f"{row.accuracy[name]:g}" if row else NOTHING, with_spread(study, model, name)]
        rows.append((*cells, *_size(study, model, paper.get(paper_row(model)))))
    return Table("Test accuracy in %", (*heads, "parameters: paper", "ours", "MFLOPs"), tuple(rows))


def effort_table(study: StudyResults) -> Table:
    """Seeds, epochs and seconds of every model on every data set."""
    data = ordered_data(study)
    heads = ["model", *(head for name in data for head in (f"{DATA_NAMES[name]}: seeds", "epochs", "seconds"))]
    models = ordered_models(study)
    rows = tuple((model, *(cell for name in data for cell in _effort(study, model, name))) for model in models)
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


def with_spread(study: StudyResults, model: str, data: str) -> str:
    """Mean and standard deviation of the accuracy over seeds, "94.8 ± 0.3", the mean alone for one seed."""
    group = study.group({"data": data, "model": model})
    if group is None:
        return NOTHING
    values = [result.accuracy for result in group.results]
    return "\n".join(part for part in (with_deviation(values) if values else "", diverged(group)) if part)


def _of_model(study: StudyResults, model: str) -> list[CellResult]:
    return [result for result in study.results if result.labels["model"] == model]


def _size(study: StudyResults, model: str, row: PaperRow | None) -> tuple[str, str, str]:
    results = _of_model(study, model)
    # Data sets with one channel need fewer parameters than one with three.
    parameters = sorted({result.parameters for result in results})
    flops = sorted({result.forward_flops for result in results})
    return (
        row.parameters if row else NOTHING,
        _range([f"{count:,}" for count in parameters]),
        _range([significant(count / 1e6) for count in flops]),
    )


def _range(texts: Sequence[str]) -> str:
    return NOTHING if not texts else texts[0] if texts[0] == texts[-1] else f"{texts[0]} – {texts[-1]}"


def _effort(study: StudyResults, model: str, data: str) -> tuple[str, str, str]:
    group = study.group({"data": data, "model": model})
    if group is None or not group.results:
        return NOTHING, NOTHING, NOTHING
    epochs = sorted({result.epochs for result in group.results if result.epochs is not None})
    seconds = fmean(result.seconds for result in group.results)
    return str(len(group.results)), _range([str(count) for count in epochs]), significant(seconds)


def table1_csv(study: StudyResults) -> str:
    """One row for each model and data set as CSV; accuracies in %, what is not known is empty."""
    places = itertools.product(ordered_models(study), ordered_data(study))
    groups = [study.group({"data": data, "model": model}) for model, data in places]
    rows = [_csv_row(group) for group in groups if group is not None]
    return as_csv(rows)


def _csv_row(group: StudyGroup) -> dict[str, object]:
    model, data, results = group.labels["model"], group.labels["data"], group.results
    paper = table1().get(paper_row(model))
    accuracy = [100 * result.accuracy for result in results]
    first = results[0] if results else None
    return {
        "model": model,
        "data": data,
        "paper_accuracy_percent": paper and paper.accuracy[data],
        "accuracy_percent": fmean(accuracy) if accuracy else None,
        "standard_deviation": stdev(accuracy) if len(accuracy) > 1 else None,
        "seeds": len(results),
        "diverged": len(group.failed),
        "epochs": fmean(epochs) if (epochs := [r.epochs for r in results if r.epochs is not None]) else None,
        "steps": fmean(r.steps for r in results) if results else None,
        "seconds": fmean(r.seconds for r in results) if results else None,
        "process_seconds": fmean(r.process_seconds for r in results) if results else None,
        "test_images": first and first.test_images,
        "paper_parameters": paper and paper.parameters,
        "parameters": first and first.parameters,
        "forward_flops": first and first.forward_flops,
        "training_flops": first and first.training_flops,
        "backend": first and first.backend,
        "hardware": listed(sorted({r.hardware for r in results})) if results else None,
        "torch": listed(sorted({r.torch for r in results})) if results else None,
        "date": listed(sorted({r.date for r in results})) if results else None,
    }


class _Curve(NamedTuple):
    """The images that were shifted, and the accuracy on them for each shift (dy, dx)."""

    images: int
    accuracy_by_shift: Mapping[tuple[int, int], float]


def has_shifts(study: StudyResults) -> bool:
    """Whether any Performer was measured on shifted images."""
    return any(result.shifted_images for result in _performers(study))


def draw_figure1(study: StudyResults, *, of_class: int | None) -> "matplotlib.figure.Figure":
    """Draw accuracy against shift, a panel for each data set, a line for each Performer, the mean over seeds.

    The band spans the seeds; for a single seed it is the 95 % Wilson interval. With the paper's class, its curves are
    drawn behind, dotted and without a band; at another image size at the same share of the width.
    """
    models = _models(study)
    styles = level_styles(models)
    shown = [data for data in ordered_data(study) if any(_curves(study, model, data, of_class) for model in models)]
    figure = make_figure(4.4 * max(2, len(shown)), 4.6)
    panels = list(figure.subplots(1, max(1, len(shown)), sharey=True, squeeze=False).flat)
    for panel, data in zip(panels, shown, strict=False):
        if of_class == CLASS:
            _draw_paper(panel, study, data, {paper_row(model): styles[model].colour for model in reversed(models)})
        for index, model in enumerate(models):
            curves = _curves(study, model, data, of_class)
            if curves:
                _draw_model(panel, curves, model, styles[model], width=2.6 - 0.2 * index)
        _dress(panel, study, data, of_class)
    if panels:
        panels[0].set_ylabel("accuracy (%)", color=INK)
        named = {}
        for panel in panels:
            lines, labels = panel.get_legend_handles_labels()
            named |= dict(zip(labels, lines, strict=True))
        add_legend(
            figure, list(named.values()), list(named), place="outside lower center", columns=3, handle_length=3.4
        )
    return figure


def shift_table(study: StudyResults) -> Table:
    """Every model under shifts: the mean over all shifts for class 1, and all classes at their worst."""
    rows = []
    for data in ordered_data(study):
        for model in ordered_models(study):
            one, every = (_curves(study, model, data, chosen) for chosen in (CLASS, None))
            if not every:
                continue
            results = _results(study, model, data)
            still = [curve.accuracy_by_shift[0, 0] for curve in every]
            lowest = [min(curve.accuracy_by_shift.values()) for curve in every]
            always = [result.worst_shift_accuracy or 0.0 for result in results]
            means = [fmean(curve.accuracy_by_shift.values()) for curve in one]
            rows.append(
                (
                    f"{DATA_NAMES[data]}, {model}",
                    f"±{_largest_shift(results)} of {_image_size(results)}",
                    f"{one[0].images:,}" if one else NOTHING,
                    with_deviation(means) if means else NOTHING,
                    f"{every[0].images:,}",
                    with_deviation(still),
                    with_deviation(lowest),
                    with_deviation(always),
                    signed_with_deviation([low - middle for low, middle in zip(lowest, still, strict=True)]),
                )
            )
    heads = (
        "data and model", "pixels", f"images of class {CLASS}", "mean over shifts", "images of all classes",
        "not shifted", "worst shift", "right at every shift", "worst less not shifted",
    )  # fmt: skip
    return Table("Accuracy in % under shifts along x", heads, tuple(rows))


def _models(study: StudyResults) -> list[str]:
    return [model for model in ordered_models(study) if model.startswith("Performer")]


def _results(study: StudyResults, model: str, data: str) -> list[CellResult]:
    group = study.group({"data": data, "model": model})
    return [result for result in group.results if result.shifted_images] if group else []


def _curves(study: StudyResults, model: str, data: str, of_class: int | None) -> list[_Curve]:
    """Images and accuracy by shift of every seed."""
    results = _results(study, model, data)
    if of_class is None:
        return [_Curve(result.shifted_images, result.by_shift()) for result in results]
    found = [(result.classes.get(of_class), result) for result in results]
    return [_Curve(one.shifted_images, result.by_shift(of_class)) for one, result in found if one]


def _largest_shift(results: Sequence[CellResult]) -> int:
    return max(abs(shift[1]) for result in results for shift in result.shifts)


def _image_size(results: Sequence[CellResult]) -> int:
    return max((result.image_size for result in results if result.image_size is not None), default=PIXELS)


def _performers(study: StudyResults) -> list[CellResult]:
    models = _models(study)
    return [result for result in study.results if result.labels["model"] in models]


def _draw_paper(panel: "matplotlib.axes.Axes", study: StudyResults, data: str, colours: dict[str, str]) -> None:
    for curve in figure1():
        if curve.data == data:
            scale = _image_size(_performers(study)) / PIXELS
            panel.plot(
                [scale * shift for shift in curve.accuracy], list(curve.accuracy.values()), linestyle=(0, (1, 1.6)),
                color=colours.get(curve.model, PALE), linewidth=1.3, alpha=0.75, zorder=1,
                label=f"paper: {curve.model}",
            )  # fmt: skip


def _draw_model(
    panel: "matplotlib.axes.Axes", curves: Sequence[_Curve], name: str, style: LineStyle, *, width: float
) -> None:
    shifts = sorted(curves[0].accuracy_by_shift, key=lambda shift: shift[1])
    steps = [shift[1] for shift in shifts]
    by_seed = [[100 * curve.accuracy_by_shift[shift] for shift in shifts] for curve in curves]
    if len(curves) > 1:
        low, high = ([pick(values) for values in zip(*by_seed, strict=True)] for pick in (min, max))
    else:
        images = curves[0].images
        ends = [wilson_interval(round(share * images / 100), images) for share in by_seed[0]]
        low, high = ([100 * float(end[side]) for end in ends] for side in (0, 1))
    mean = [fmean(values) for values in zip(*by_seed, strict=True)]
    draw_line(panel, style, steps, mean, band=(low, high), width=max(width, 1.2), label=name)


def _dress(panel: "matplotlib.axes.Axes", study: StudyResults, data: str, of_class: int | None) -> None:
    what = CLASS_NAMES.get(data, f"class {of_class}") if of_class == CLASS else "all classes"
    dress_panel(panel, f"{DATA_NAMES[data]}, {what}", "y")
    panel.set_xlabel("shift to the right, dx (pixels)", color=INK)
    largest = _largest_shift(_performers(study))
    ticks = [step for step in range(-largest, largest + 1) if step % max(1, largest // 4) == 0]
    panel.set_xticks(ticks, [write_step(step) for step in ticks])
    panel.set_ylim(-2, 102)


def figure1_note(study: StudyResults) -> str:
    """What the figure shows, in a sentence or two."""
    performers = _performers(study)
    largest, size = _largest_shift(performers), _image_size(performers)
    scaled = f" The paper's curves, of {PIXELS} pixels, are drawn at the same share of the width."
    return (
        f"Shifts along x by up to {largest} of {size} pixels, of the test images that lose nothing by any of them. "
        "Lines: mean over seeds; bands: from the lowest to the highest seed, the 95 % Wilson interval for one seed."
        + (scaled if size != PIXELS else "")
    )
