"""Accuracy of trained runs at every shift of their test images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from teka.audit import AuditReport, AuditSettings, audit, write_page
from teka.audit.statistics.estimate import Curve
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.ranking import compare_every_two
from teka.errors import wrong_value
from teka.files import make_directory, write_bytes, write_json
from teka.models import Performer
from teka.reporting.formatting import percent, write_step
from teka.reporting.plots import AccuracyCurve, draw_accuracy_curves, to_png
from teka.reporting.tables import Table, Written
from teka.training.trained_run import TrainedRun

# Title of each axis in charts, in the order of a shift (dy, dx).
AXES = {"dy": "shift downwards, dy (pixels)", "dx": "shift to the right, dx (pixels)"}
NOTE = (
    "Accuracy in % at each shift in pixels, dx to the right and dy downwards; last, the share of "
    "the images that are correct at every shift."
)
Progress = Callable[[str, int, int], object]


def audit_run(
    trained: TrainedRun,
    settings: AuditSettings,
    *,
    name: str | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> AuditReport:
    """Audit a run on its test images.

    Args:
        trained: The run.
        settings: Shifts and mode. In mode "canvas", the model must accept the size of the canvas.
        name: Name of the model in the report, by default that of the run.
        command: Command line to save in the report.
        progress: As in `compare_shifts`.

    Raises:
        ValueError: The settings do not fit the images or the model.
    """
    name = name or trained.name
    model, image_size = trained.model, trained.dataset.image_size
    test = trained.dataset.test.to_intensities()
    canvas_size = settings.movement(settings.modes[0], image_size).canvas_size

    def report_progress(stage: str, done: int, total: int, seconds: object = None) -> None:
        if progress is not None:
            progress(name, done, total)

    facts = {"seed": trained.run.seed, "run": str(trained.folder)}
    facts |= {fact: trained.result[fact] for fact in ("epochs", "seconds")}
    if isinstance(model, Performer):
        model.resize(canvas_size or image_size)
    try:
        return audit(
            model,
            test.images,
            test.labels,
            settings=settings,
            name=name,
            model_facts=facts,
            data_facts={"name": trained.dataset.name},
            progress=report_progress,
            command=command,
        )
    finally:
        if isinstance(model, Performer):
            model.resize(image_size)


def compare_shifts(
    runs: Sequence[TrainedRun],
    settings: AuditSettings,
    out: str | Path,
    *,
    command: str = "",
    progress: Progress | None = None,
) -> Written:
    """Audit runs on the same shifted test images and write a report.

    The folder then holds the audit page `report.html`, all numbers in `report.json`, and the curves
    `shift_curve.png`. The curves and the table are means over the seeds of a model.

    Args:
        runs: Runs on the same data set, with any number of seeds of each model.
        settings: Settings of the audits, with one mode.
        out: Folder for the report.
        command: Command line to save in the report.
        progress: Called with the name of the model, the number of results so far and their total.

    Returns:
        The paths of the files, and the table as text.

    Raises:
        ValueError: The runs have different data, or two of them have the same model and seed.
    """
    folder = make_directory("out", out)
    for run in runs:
        for field in ("name", "image_size"):
            value, expected = (getattr(other.dataset, field) for other in (run, runs[0]))
            if value != expected:
                raise wrong_value(f"{field} of the data of {run.folder}", value, repr(expected))
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [f"{run.name}, seed {run.run.seed}" for run in runs]
    if len(set(names)) < len(names):
        raise wrong_value("runs", names, "one run for each model and seed")
    reports = [
        audit_run(run, settings, name=name, command=command, progress=progress)
        for run, name in zip(runs, names, strict=True)
    ]
    metrics: dict[str, Metrics] = {}
    for name in dict.fromkeys(run.name for run in runs):
        seeds = [reports[index].metrics[0] for index, run in enumerate(runs) if run.name == name]
        metrics[name] = _mean_over_seeds(seeds)
    curves = _make_curves(metrics)
    responses = [report.responses[0].unpack() for report in reports]
    files = (
        write_json(folder / "report.json", {"reports": [report.to_dict() for report in reports]}),
        folder / "shift_curve.png",
        write_page(reports, folder / "report.html", compare_every_two(responses)),
    )
    write_bytes(
        files[1], to_png(draw_accuracy_curves({AXES[axis]: curves[axis] for axis in curves}))
    )
    return Written(files, f"{_make_table(curves, metrics).plain(100, narrowest=14)}\n{NOTE}")


def _mean_over_seeds(seeds: Sequence[Metrics]) -> Metrics:
    """Return the mean accuracies of a model over seeds, with the range of the seeds as interval."""
    if len(seeds) == 1:
        return seeds[0]
    values = list(zip(*(metrics.curves["accuracy"].values for metrics in seeds), strict=True))
    means, lowest, highest = (tuple(map(function, values)) for function in (fmean, min, max))
    curve = Curve(means, lowest, highest, lowest, highest, "range over seeds")
    shares = [metrics.numbers["worst_shift_accuracy"] for metrics in seeds]
    share = replace(shares[0], value=fmean(share.value for share in shares))
    return replace(seeds[0], curves={"accuracy": curve}, numbers={"worst_shift_accuracy": share})


def _make_curves(metrics: Mapping[str, Metrics]) -> dict[str, list[AccuracyCurve]]:
    """Return the accuracy of each model at the shifts along each axis.

    The bands are 95 % intervals, or the range of several seeds.
    """
    curves: dict[str, list[AccuracyCurve]] = {}
    for index, axis in enumerate(AXES):
        for name, model_metrics in metrics.items():
            accuracy = model_metrics.curves["accuracy"]
            rows = {
                int(shift[index]): row
                for row, shift in enumerate(model_metrics.shifts)
                if shift[1 - index] == 0
            }
            steps = sorted(rows)
            values = {step: accuracy.values[rows[step]] for step in steps}
            bands = {
                step: (accuracy.lower[rows[step]], accuracy.upper[rows[step]]) for step in steps
            }
            curves.setdefault(axis, []).append(AccuracyCurve(name, values, bands))
    return curves


def _make_table(
    curves: Mapping[str, Sequence[AccuracyCurve]], metrics: Mapping[str, Metrics]
) -> Table:
    rows = []
    for model, name in enumerate(metrics):
        always_correct = percent(metrics[name].numbers["worst_shift_accuracy"].value)
        for axis in curves:
            cells = [percent(value) for value in curves[axis][model].values.values()]
            rows.append((f"{name}, {axis}", *cells, always_correct))
    steps = curves["dx"][0].values
    return Table("", ("model, axis", *map(write_step, steps), "every"), tuple(rows))
