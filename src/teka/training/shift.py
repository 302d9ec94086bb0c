"""Accuracy of trained runs at every shift of their test images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from teka.audit import (
    AuditReport,
    AuditSettings,
    Estimate,
    audit,
    axis_shifts,
    summarize,
    summarize_seeds,
    write_page,
)
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.ranking import compare_every_two
from teka.checks import check_name, check_sizes
from teka.data import Split, lossless_selection
from teka.errors import wrong_value
from teka.files import make_directory, write_bytes, write_json
from teka.models import Performer
from teka.reporting.formatting import percent, write_step
from teka.reporting.plots import AccuracyCurve, draw_accuracy_curves, to_png
from teka.reporting.tables import Table, Written
from teka.training.trained_run import TrainedRun

MODES = ("zero", "lossless", "canvas", "circular")
SELECTIONS = ("all", "figure1")
# Name of each axis, for tables, and its title, for charts.
AXES = {"dx": "shift to the right, dx (pixels)", "dy": "shift downwards, dy (pixels)"}
NOTE = (
    "Accuracy in % at each shift in pixels, dx to the right and dy downwards; last, the share of "
    "the images that are correct at every shift."
)
Progress = Callable[[str, int, int], object]


@dataclass(frozen=True)
class ShiftSettings:
    """Images, shifts and treatment of the edges of the image.

    Args:
        max_shift: Largest shift in pixels, along each axis in both directions.
        mode: Treatment of the edges:

            - "zero": pixels that leave the image are lost, and background enters.
            - "lossless": the same, but an error if a pixel would be lost that is not background.
            - "canvas": the image is placed on a larger canvas, so that nothing is lost. The model
              must accept the size of the canvas.
            - "circular": pixels that leave on one side enter on the other.
        selection: "all" test images. Or "figure1" for Figure 1 of Horn et al. 2021: class 1 with at
            least 8 blank columns on both sides, shifted horizontally only.
        batch_size: Number of images per batch.
    """

    max_shift: int = 4
    mode: str = "zero"
    selection: str = "all"
    batch_size: int = 256

    def __post_init__(self) -> None:
        check_sizes({"max_shift": self.max_shift, "batch_size": self.batch_size})
        check_name("mode", self.mode, MODES)
        check_name("selection", self.selection, SELECTIONS)

    @property
    def shifts(self) -> list[tuple[int, ...]]:
        """Shifts (dy, dx)."""
        shifts = sorted(axis_shifts(self.max_shift))
        return [shift for shift in shifts if shift[0] == 0 or self.selection == "all"]

    def select(self, split: Split) -> Split:
        """Return the images that are shifted, in memory."""
        split = split.to_intensities()
        if self.selection == "all":
            return split
        is_selected = lossless_selection(split.images, split.labels, class_index=1, margin=8)
        if not is_selected.any():
            expected = "'all', because no image of class 1 has 8 blank columns on both sides"
            raise wrong_value("selection", self.selection, expected)
        return split.take(is_selected.nonzero().flatten())


def audit_run(
    trained: TrainedRun,
    settings: ShiftSettings,
    *,
    name: str | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> AuditReport:
    """Audit a run on its test images at every shift of the settings.

    Args:
        trained: The run.
        settings: Images and shifts.
        name: Name of the model in the report, by default that of the run.
        command: Command line to save in the report.
        progress: As in `compare_shifts`.

    Raises:
        ValueError: A shift moves content out of the image in mode "lossless", or the model does not
            accept the size of the canvas.
    """
    split, model = settings.select(trained.dataset.test), trained.model
    name = name or trained.name
    image_size = trained.dataset.image_size
    canvas_size = None
    if settings.mode == "canvas":
        canvas_size = tuple(side + 2 * settings.max_shift for side in image_size)
    if isinstance(model, Performer):
        model.resize(canvas_size or image_size)

    def report_progress(stage: str, done: int, total: int, seconds: object = None) -> None:
        if progress is not None:
            progress(name, done, total)

    facts = {"seed": trained.run.seed, "run": str(trained.folder)}
    facts |= {fact: trained.result[fact] for fact in ("epochs", "seconds")}
    try:
        return audit(
            model,
            split.images,
            split.labels,
            settings=AuditSettings(
                shifts=settings.shifts,
                modes=[settings.mode],
                parts=[],
                canvas_size=canvas_size,
                output="logits",
                batch_size=settings.batch_size,
            ),
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
    settings: ShiftSettings,
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
        settings: Images and shifts.
        out: Folder for the report.
        command: Command line to save in the report.
        progress: Called with the name of the model, the number of results so far and their total.

    Returns:
        The paths of the files, and the table as text.

    Raises:
        ValueError: The runs have different data, or two of them have the same model and seed.
    """
    folder = make_directory("out", out)
    names = [f"{run.name}, seed {run.run.seed}" for run in runs]
    for run in runs:
        for field in ("name", "image_size"):
            value, expected = (getattr(other.dataset, field) for other in (run, runs[0]))
            if value != expected:
                raise wrong_value(f"{field} of the data of {run.folder}", value, repr(expected))
    if len(set(names)) < len(names):
        raise wrong_value("runs", names, "one run for each model and seed")
    if len({run.name for run in runs}) == len(runs):
        names = [run.name for run in runs]
    reports = [
        audit_run(run, settings, name=name, command=command, progress=progress)
        for run, name in zip(runs, names, strict=True)
    ]
    responses = [report.responses[0].unpack() for report in reports]
    metrics: dict[str, Metrics] = {}
    for name in dict.fromkeys(run.name for run in runs):
        of_model = [responses[index] for index, run in enumerate(runs) if run.name == name]
        is_single = len(of_model) == 1
        metrics[name] = summarize(of_model[0]) if is_single else summarize_seeds(of_model).metrics
    curves, numbers = folder / "shift_curve.png", {"reports": [one.to_dict() for one in reports]}
    write_bytes(curves, _draw_curves(metrics))
    files = (
        write_json(folder / "report.json", numbers),
        curves,
        write_page(reports, folder / "report.html", compare_every_two(responses)),
    )
    return Written(files, f"{_table(metrics).plain(100, narrowest=14)}\n{NOTE}")


def _accuracy(metrics: Metrics, axis: str) -> dict[int, Estimate]:
    """Return the accuracy at each shift along an axis. It is empty if there is one shift only."""
    curve = metrics.curves["accuracy"]
    index = 1 if axis == "dx" else 0
    accuracy = {
        int(shift[index]): Estimate(value, low, high, metrics.confidence, curve.method)
        for shift, value, low, high in zip(
            metrics.shifts, curve.values, curve.lower, curve.upper, strict=True
        )
        if shift[1 - index] == 0
    }
    return dict(sorted(accuracy.items())) if len(accuracy) > 1 else {}


def _draw_curves(metrics: Mapping[str, Metrics]) -> bytes:
    """Return a picture of the accuracy of each model at each shift, with 95 % intervals."""
    panels: dict[str, list[AccuracyCurve]] = {}
    for axis, title in AXES.items():
        for name, metrics_of_model in metrics.items():
            accuracy = _accuracy(metrics_of_model, axis)
            values = {shift: estimate.value for shift, estimate in accuracy.items()}
            bands = {shift: (one.lower, one.upper) for shift, one in accuracy.items()}
            if accuracy:
                panels.setdefault(title, []).append(AccuracyCurve(name, values, bands))
    return to_png(draw_accuracy_curves(panels))


def _table(metrics: Mapping[str, Metrics]) -> Table:
    rows = []
    steps: list[int] = []
    for name, metrics_of_model in metrics.items():
        always_correct = percent(metrics_of_model.numbers["worst_shift_accuracy"].value)
        for axis in AXES:
            if accuracy := _accuracy(metrics_of_model, axis):
                steps = list(accuracy)
                cells = [percent(estimate.value) for estimate in accuracy.values()]
                rows.append((f"{name}, {axis}", *cells, always_correct))
    return Table("", ("model, axis", *map(write_step, steps), "every"), tuple(rows))
