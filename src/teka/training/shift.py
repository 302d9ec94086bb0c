"""Trained runs measured at every shift, and written as a report's `report.json` and `examples.npz`."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.audit import Movement, Responses, axis_shifts, measure_responses, translate, wilson_interval
from teka.audit.statistics.metrics import CURVES, NUMBERS
from teka.data import Split, lossless_selection
from teka.errors import unknown_name, wrong_value
from teka.files import write_bytes, write_json
from teka.models import Performer, SelfAttentionNetwork
from teka.provenance import provenance
from teka.training.trained_run import TrainedRun

MODES = ("lossless", "canvas")
SELECTIONS = ("all", "figure1")
FIGURE1_CLASS = 1
NUM_EXAMPLES = 10
BUILT_IN = "built in"  # position and kernel of a model that is not made of such parts


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
        if self.max_shift < 1:
            raise wrong_value("max_shift", self.max_shift, "at least 1 pixel")
        if self.mode not in MODES:
            raise unknown_name("mode", self.mode, MODES)
        if self.selection not in SELECTIONS:
            raise unknown_name("selection", self.selection, SELECTIONS)

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


def measure(
    trained: TrainedRun, settings: ShiftSettings, progress: Callable[[int, int], None] | None = None
) -> Responses:
    """What a run answers at every shift.

    Args:
        trained: The run.
        settings: What is shifted, how far and how.
        progress: Called with the number of images and shifts done and their total.

    Raises:
        ValueError: In mode "lossless", an image that would lose something.
    """
    split = settings.images(trained.dataset.test)
    size = _canvas_size(trained, settings)
    if isinstance(trained.model, Performer):
        trained.model.resize(size or trained.dataset.image_size)
    elif size is not None:
        raise wrong_value("mode", settings.mode, f"another with model={trained.run.model!r}, which has one image size")
    return measure_responses(
        trained.model,
        split.images,
        settings.shifts,
        Movement(settings.mode, canvas_size=size),
        labels=split.labels,
        output="logits",
        batch_size=settings.batch_size,
        progress=None if progress is None else lambda done, total, _: progress(done, total),
    )


def _canvas_size(trained: TrainedRun, settings: ShiftSettings) -> tuple[int, int] | None:
    if settings.mode != "canvas":
        return None
    patch = trained.run.patch_size
    height, width = (-(-(side + 2 * settings.max_shift) // patch) * patch for side in trained.dataset.image_size)
    return height, width


def _kind(trained: TrainedRun) -> dict[str, str]:
    model = trained.model
    if isinstance(model, SelfAttentionNetwork):
        return {
            "position": trained.run.position,
            "kernel": trained.run.content or "constant",
            "backend": ", ".join(model.chosen_backends()),
        }
    if not isinstance(model, Performer):
        return {"position": BUILT_IN, "kernel": BUILT_IN, "backend": "torch"}
    return {
        "position": trained.run.position,
        "kernel": trained.run.kernel,
        "backend": ", ".join(model.chosen_backends()),
    }


def model_entry(trained: TrainedRun, responses: Responses) -> dict[str, object]:
    """One entry of `report.json`'s "models"."""
    accuracy, correct = CURVES["accuracy"].values(responses), responses.correct
    assert accuracy is not None
    assert correct is not None
    low, high = wilson_interval(correct.sum(dim=1), responses.num_images)
    by_axis: dict[str, dict[str, float]] = {"dx": {}, "dy": {}}
    intervals: dict[str, dict[str, list[float]]] = {"dx": {}, "dy": {}}
    for axis, name in ((1, "dx"), (0, "dy")):
        rows = responses.along(axis)
        if name == "dx" or len(rows) > 1:
            by_axis[name] = {str(step): float(accuracy[row]) for step, row in rows.items()}
            intervals[name] = {str(step): [float(low[row]), float(high[row])] for step, row in rows.items()}
    return {
        "name": trained.name,
        **_kind(trained),
        "parameters": trained.result["parameters"],
        "seed": trained.run.seed,
        "epochs": trained.result["epochs"],
        "seconds": trained.result["seconds"],
        "accuracy_by_shift": by_axis,
        "interval_by_shift": intervals,
        "worst_shift_accuracy": NUMBERS["worst_shift_accuracy"].value(responses),
        "minimum_accuracy": NUMBERS["minimum_accuracy"].value(responses),
        "test_images": responses.num_images,
    }


def write_shift_report(
    runs: Sequence[TrainedRun],
    answers: Sequence[Responses],
    settings: ShiftSettings,
    folder: Path,
    *,
    command: str,
) -> dict[str, object]:
    """Write `report.json` and `examples.npz` of runs on the same data.

    Args:
        runs: The runs.
        answers: What `measure` gave for each.
        settings: What was shifted.
        folder: Where to write.
        command: The command to keep with the numbers.

    Returns:
        What `report.json` holds.

    Raises:
        ValueError: Runs on different data or image sizes.
    """
    check_same_data(runs)
    report: dict[str, object] = {
        "dataset": runs[0].dataset.name,
        **provenance(command),
        "mode": settings.mode,
        "selection": settings.selection,
        "models": [model_entry(run, responses) for run, responses in zip(runs, answers, strict=True)],
    }
    write_bytes(folder / "examples.npz", _examples(runs, answers, settings))
    write_json(folder / "report.json", report)
    return report


def check_same_data(runs: Sequence[TrainedRun]) -> None:
    """Check that runs can be compared.

    Raises:
        ValueError: Runs on different data or image sizes.
    """
    for run in runs[1:]:
        for argument, mine, first in (
            ("data", run.dataset.name, runs[0].dataset.name),
            ("image_size", run.dataset.image_size, runs[0].dataset.image_size),
        ):
            if mine != first:
                raise wrong_value(f"{argument} of {run.folder}", mine, f"{first!r} as in {runs[0].folder}")


def _examples(runs: Sequence[TrainedRun], answers: Sequence[Responses], settings: ShiftSettings) -> bytes:
    """One image of each class as the models of the first seed saw it, at some shifts along dx and dy."""
    split = settings.images(runs[0].dataset.test)
    first = {int(label): index for index, label in reversed(list(enumerate(split.labels.tolist())))}
    chosen = [first[label] for label in sorted(first)][:NUM_EXAMPLES]
    shifts = answers[0].shifts
    far = settings.max_shift
    shown = [shift for shift in shifts if shift in {(0, -far), (0, -far // 2), (0, 0), (0, far // 2), (0, far)}]
    shown += [shift for shift in shifts if shift in {(-far, 0), (far, 0)}]
    images = split.images[chosen]
    moved = [
        translate(images, shift, mode=settings.mode, canvas_size=_canvas_size(runs[0], settings)) for shift in shown
    ]
    one_seed = [pair for pair in zip(runs, answers, strict=True) if pair[0].run.seed == runs[0].run.seed]
    rows = [shifts.index(shift) for shift in shown]
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        images=_grey(torch.stack(moved)),
        shifts=np.array(shown),
        labels=split.labels[chosen].numpy(),
        model_names=np.array([run.name for run, _ in one_seed]),
        predictions=np.stack([_predictions(responses)[rows][:, chosen].numpy() for _, responses in one_seed]),
    )
    return buffer.getvalue()


def _predictions(responses: Responses) -> Int[Tensor, "shifts images"]:
    assert responses.predictions is not None
    return responses.predictions


def _grey(images: Float[Tensor, "shifts examples channels height width"]) -> np.ndarray:
    return (images.mean(dim=2) * 255).round().to(torch.uint8).numpy()
