"""Figure 1 of Horn et al. (2021): accuracy under shifts along x, the paper's curves behind ours."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from teka.audit import wilson_interval
from teka.audit.page.charts import add_legend, draw_line, dress_panel, make_figure
from teka.audit.page.notation import write_step
from teka.audit.page.style import INK, PALE, LineStyle, level_styles
from teka.audit.page.tables import Table
from teka.experiments.reference import PIXELS, figure1, paper_row
from teka.experiments.reproduce.table1 import DATA_NAMES, ordered_data, ordered_models
from teka.experiments.study.cells import CellResult
from teka.experiments.study.report.notation import NOTHING, signed_with_deviation, with_deviation
from teka.experiments.study.report.results import StudyResults

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure


class _Curve(NamedTuple):
    """The images that were shifted, and the accuracy on them for each shift (dy, dx)."""

    images: int
    accuracy_by_shift: Mapping[tuple[int, int], float]


CLASS = 1
CLASS_NAMES = {"mnist": "digit 1", "fashion-mnist": "trousers"}


def has_shifts(study: StudyResults) -> bool:
    """Whether any Performer was measured on shifted images.

    Args:
        study: The results.
    """
    return any(result.shifted_images for result in _performers(study))


def draw_figure1(study: StudyResults, *, of_class: int | None) -> "matplotlib.figure.Figure":
    """Draw accuracy against shift, a panel for each data set, a line for each Performer, the mean over seeds.

    The band spans the seeds; for a single seed it is the 95 % Wilson interval. With the paper's class, its curves are
    drawn behind, dotted and without a band; at another image size at the same share of the width.

    Args:
        study: The results, with the factors "data" and "model".
        of_class: The class whose images are counted, 1 in the paper, or None for all.

    Returns:
        A figure that belongs to no window and no global state.

    Raises:
        ImportError: matplotlib is not installed.
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
    """Every model under shifts: the mean over all shifts for class 1, and all classes at their worst.

    Args:
        study: The results, with the factors "data" and "model".
    """
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
    """What the figure shows, in a sentence or two.

    Args:
        study: The results.
    """
    performers = _performers(study)
    largest, size = _largest_shift(performers), _image_size(performers)
    scaled = f" The paper's curves, of {PIXELS} pixels, are drawn at the same share of the width."
    return (
        f"Shifts along x by up to {largest} of {size} pixels, of the test images that lose nothing by any of them. "
        "Lines: mean over seeds; bands: from the lowest to the highest seed, the 95 % Wilson interval for one seed."
        + (scaled if size != PIXELS else "")
    )
