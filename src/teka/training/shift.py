"""Trained runs measured at every shift, and written as a report's `report.json` and `examples.npz`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from teka.audit import Movement, Responses, axis_shifts, measure_responses, wilson_interval
from teka.audit.statistics.metrics import CURVES, NUMBERS
from teka.checks import check_name, check_sizes
from teka.data import Split, lossless_selection
from teka.errors import wrong_value
from teka.files import write_json
from teka.models import Performer, SelfAttentionNetwork
from teka.provenance import provenance
from teka.training.arrays import write_arrays
from teka.training.shift_report import BUILT_IN
from teka.training.trained_run import TrainedRun

MODES = ("lossless", "canvas")
SELECTIONS = ("all", "figure1")
FIGURE1_CLASS = 1
NUM_EXAMPLES = 10


@dataclass(frozen=True)
class ShiftSettings:
    """What is shifted, how far and how.

    Args:
        max_shift: Largest shift in pixels, along each axis in both directions.
        mode: "lossless" (the image is rolled, and only background may wrap) or "canvas" (it is first pasted on a canvas
            of its background, larger by max_shift at every side, which the model must take: absolute positions then
            count from the canvas's corner).
        selection: "all" test images, or "figure1": class 1 with at least 8 blank columns on both sides, shifted along
            dx alone (Horn et al. 2021, Figure 1).
        batch_size: Images at a time.

    Raises:
        ValueError: A shift below 1, or an unknown name.
    """

    max_shift: int = 4
    mode: str = "lossless"
    selection: str = "all"
    batch_size: int = 256

    def __post_init__(self) -> None:
        check_sizes({"max_shift": self.max_shift, "batch_size": self.batch_size})
        check_name("mode", self.mode, MODES)
        check_name("selection", self.selection, SELECTIONS)

    @property
    def shifts(self) -> tuple[tuple[int, ...], ...]:
        """Every shift (dy, dx)."""
        shifts = sorted(axis_shifts(self.max_shift))
        return tuple(shift for shift in shifts if shift[0] == 0 or self.selection != "figure1")

    def images(self, split: Split) -> Split:
        """The images that are shifted."""
        if self.selection == "all":
            return split
        keep = lossless_selection(split.images, split.labels, class_index=FIGURE1_CLASS, margin=8)
        if not keep.any():
            raise wrong_value("selection", self.selection, "images of class 1 with 8 blank columns on both sides")
        return Split(split.images[keep], split.labels[keep])

    def movement(self, trained: TrainedRun) -> Movement:
        """How the images of a run are moved."""
        if self.mode != "canvas":
            return Movement(self.mode)
        patch, size = trained.run.network.patch_size, trained.dataset.image_size
        height, width = (-(-(side + 2 * self.max_shift) // patch) * patch for side in size)
        return Movement(self.mode, canvas_size=(height, width))


def measure(
    trained: TrainedRun, settings: ShiftSettings, progress: Callable[[int, int], None] | None = None
) -> Responses:
    """What a run answers at every shift; progress is called with the number of answers so far and their total."""
    split, movement, model = settings.images(trained.dataset.test), settings.movement(trained), trained.model
    size = trained.dataset.image_size
    seen = movement.seen_size(size)
    if seen != size and not isinstance(model, Performer):
        raise wrong_value("mode", settings.mode, f"another with model={trained.run.model!r}, which has one image size")

    show = None if progress is None else lambda done, total, _: progress(done, total)
    try:
        if isinstance(model, Performer):
            model.resize((seen[0], seen[1]))
        return measure_responses(
            model, split.images, settings.shifts, movement, labels=split.labels, output="logits",
            batch_size=settings.batch_size, progress=show,
        )  # fmt: skip
    finally:
        if isinstance(model, Performer):
            model.resize(size)


def model_entry(trained: TrainedRun, responses: Responses) -> dict[str, object]:
    """One entry of `report.json`'s "models"."""
    run, model, found, correct = trained.run, trained.model, CURVES["accuracy"].values(responses), responses.correct
    assert found is not None
    assert correct is not None
    low, high = wilson_interval(correct.sum(dim=1), responses.num_images)
    along = {"dx": responses.along(1), "dy": responses.along(0)}
    if len(along["dy"]) == 1:
        along["dy"] = {}
    accuracy = {name: {str(step): float(found[row]) for step, row in rows.items()} for name, rows in along.items()}
    intervals = {
        name: {str(step): [float(low[row]), float(high[row])] for step, row in rows.items()}
        for name, rows in along.items()
    }
    has_parts = isinstance(model, Performer | SelfAttentionNetwork)
    kernel = run.content or "constant" if isinstance(model, SelfAttentionNetwork) else run.kernel
    return {
        "name": trained.name,
        "position": run.position if has_parts else BUILT_IN,
        "kernel": kernel if has_parts else BUILT_IN,
        "backend": ", ".join(model.chosen_backends()) if has_parts else "torch",
        "parameters": trained.result["parameters"],
        "seed": run.seed,
        "epochs": trained.result["epochs"],
        "seconds": trained.result["seconds"],
        "accuracy_by_shift": accuracy,
        "interval_by_shift": intervals,
        "worst_shift_accuracy": NUMBERS["worst_shift_accuracy"].value(responses),
        "minimum_accuracy": NUMBERS["minimum_accuracy"].value(responses),
        "test_images": responses.num_images,
    }


def write_shift_report(
    runs: Sequence[TrainedRun],
    responses: Sequence[Responses],
    settings: ShiftSettings,
    folder: Path,
    *,
    command: str,
) -> dict[str, object]:
    """Write `report.json` and `examples.npz` of runs on the same data and what `measure` gave for each."""
    check_same_data(runs)
    report: dict[str, object] = {
        "dataset": runs[0].dataset.name,
        **provenance(command),
        "mode": settings.mode,
        "selection": settings.selection,
        "models": [model_entry(run, answered) for run, answered in zip(runs, responses, strict=True)],
    }
    write_arrays(folder / "examples.npz", _examples(runs, responses, settings))
    write_json(folder / "report.json", report)
    return report


def check_same_data(runs: Sequence[TrainedRun]) -> None:
    """Check that runs have the same data and image size, and can be compared."""
    for run in runs[1:]:
        for argument, mine, first in (
            ("data", run.dataset.name, runs[0].dataset.name),
            ("image_size", run.dataset.image_size, runs[0].dataset.image_size),
        ):
            if mine != first:
                raise wrong_value(f"{argument} of {run.folder}", mine, f"{first!r} as in {runs[0].folder}")


def _examples(
    runs: Sequence[TrainedRun], responses: Sequence[Responses], settings: ShiftSettings
) -> dict[str, np.ndarray]:
    """One image of each class as the models of the first seed saw it, at some shifts along dx and dy."""
    split, movement = settings.images(runs[0].dataset.test), settings.movement(runs[0])
    first = {int(label): index for index, label in reversed(list(enumerate(split.labels.tolist())))}
    chosen = [first[label] for label in sorted(first)][:NUM_EXAMPLES]
    far, shifts = settings.max_shift, responses[0].shifts
    along = [(0, -far), (0, -far // 2), (0, 0), (0, far // 2), (0, far), (-far, 0), (far, 0)]
    shown = [shift for shift in dict.fromkeys(along) if shift in shifts]
    placed = movement.place(split.images[chosen])
    moved = torch.stack([movement.move(placed, shift) for shift in shown])
    one_seed = [pair for pair in zip(runs, responses, strict=True) if pair[0].run.seed == runs[0].run.seed]
    rows = [shifts.index(shift) for shift in shown]
    predictions = [answered.predictions for _, answered in one_seed if answered.predictions is not None]
    return {
        "images": (moved.mean(dim=2) * 255).round().to(torch.uint8).numpy(),
        "shifts": np.array(shown),
        "labels": split.labels[chosen].numpy(),
        "model_names": np.array([run.name for run, _ in one_seed]),
        "predictions": np.stack([predicted[rows][:, chosen].numpy() for predicted in predictions]),
    }
