"""Accuracy of trained runs at every shift of their test images."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from teka.audit import AuditReport, AuditSettings, audit, write_page
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.ranking import compare_every_two
from teka.checks import check_image_size
from teka.errors import wrong_value
from teka.files import make_directory, write_json
from teka.models import Performer
from teka.reporting.formatting import percent, write_step
from teka.reporting.tables import Table, Written
from teka.training.trained_run import TrainedRun

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
        progress: Function that is called with the name of the model, the number of finished steps
            and the number of all steps.

    Raises:
        ValueError: The settings are not valid for the images or the model.
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
        model.resize(check_image_size("canvas_size", canvas_size or image_size))
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
    """Audit runs on the same shifted test images, and write a report.

    `report.html` is the audit page, and `report.json` contains all results. The returned table
    lists the accuracy of each model, averaged over its seeds.

    Args:
        runs: Runs on the same data set. A model may occur with several seeds.
        settings: Settings of the audits, with one mode.
        out: Folder for the report.
        command: Command line to save in the report.
        progress: As in `audit_run`.

    Returns:
        The paths of the files, and the table as text.

    Raises:
        ValueError: The runs have different data sets, or two runs have the same model and seed.
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
    metrics: dict[str, list[Metrics]] = {}
    for run, report in zip(runs, reports, strict=True):
        metrics.setdefault(run.name, []).append(report.metrics[0])
    responses = [report.responses[0].unpack() for report in reports]
    files = (
        write_json(folder / "report.json", {"reports": [report.to_dict() for report in reports]}),
        write_page(reports, folder / "report.html", compare_every_two(responses)),
    )
    return Written(files, f"{_make_table(metrics).plain(100, narrowest=14)}\n{NOTE}")


def _make_table(metrics_by_model: Mapping[str, Sequence[Metrics]]) -> Table:
    """Return a table of the accuracy of each model along each axis, averaged over its seeds."""
    heads: tuple[str, ...] = ()
    rows = []
    for name, seeds in metrics_by_model.items():
        curves = [metrics.curves["accuracy"].values for metrics in seeds]
        means = dict(zip(seeds[0].shifts, map(fmean, zip(*curves, strict=True)), strict=True))
        every = fmean(metrics.numbers["worst_shift_accuracy"].value for metrics in seeds)
        for index, axis in enumerate(("dy", "dx")):
            along_axis = {
                shift[index]: mean for shift, mean in means.items() if not shift[1 - index]
            }
            steps = sorted(along_axis)
            cells = [percent(along_axis[step]) for step in steps]
            rows.append((f"{name}, {axis}", *cells, percent(every)))
            heads = ("model, axis", *map(write_step, steps), "every")
    return Table("", heads, tuple(rows))
