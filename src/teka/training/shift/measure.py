"""Trained runs measured at every shift: what is shifted and how, and what of it goes into a report."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from teka.audit import Movement, Responses, axis_shifts, measure_responses, wilson_interval
from teka.checks import check_name, check_sizes
from teka.data import Split, lossless_selection
from teka.errors import wrong_value
from teka.models import Performer
from teka.provenance import provenance
from teka.training.shift.page import Examples
from teka.training.shift.report import AXES, BUILT_IN, ModelResult, ShiftReport
from teka.training.trained_run import TrainedRun

MODES = ("zero", "lossless", "canvas", "circular")
SELECTIONS = ("all", "figure1")
FIGURE1_CLASS = 1
NUM_EXAMPLES = 10


@dataclass(frozen=True)
class ShiftSettings:
    """What is shifted, how far and how.

    Args:
        max_shift: Largest shift in pixels, along each axis in both directions.
        mode: What happens at the edges: "zero" (pixels that leave the image are lost, and background enters),
            "lossless" (the same, but an error if anything but background would be lost), "canvas" (the image is first
            pasted on a background that is larger by max_shift on every side, a size that the model must take) or
            "circular" (pixels that leave on one side enter on the other).
        selection: "all" test images, or "figure1": class 1 with at least 8 blank columns on both sides, shifted along
            dx alone (Horn et al. 2021, Figure 1).
        batch_size: Images at a time.
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
    def shifts(self) -> tuple[tuple[int, ...], ...]:
        """Every shift (dy, dx)."""
        shifts = sorted(axis_shifts(self.max_shift))
        return tuple(shift for shift in shifts if shift[0] == 0 or self.selection != "figure1")

    def images(self, split: Split) -> Split:
        """The images that are shifted."""
        split = Split(split.images[:], split.labels)  # reads picture files
        if self.selection == "all":
            return split
        keep = lossless_selection(split.images, split.labels, class_index=FIGURE1_CLASS, margin=8)
        if not keep.any():
            raise wrong_value(
                "selection", self.selection, "images of class 1 with 8 blank columns on both sides"
            )
        return split.take(keep.nonzero().flatten())

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
    split, movement, model = (
        settings.images(trained.dataset.test),
        settings.movement(trained),
        trained.model,
    )
    seen = movement.seen_size(trained.dataset.image_size)
    if not can_see(model, seen, trained.dataset.image_size):
        raise wrong_value(
            "mode", settings.mode, f"another: model={trained.run.model!r} takes no {seen} pixels"
        )
    show = None if progress is None else lambda done, total, _: progress(done, total)
    options = {
        "labels": split.labels,
        "output": "logits",
        "batch_size": settings.batch_size,
        "progress": show,
    }
    with seeing(model, seen):
        return measure_responses(model, split.images, settings.shifts, movement, **options)


def can_see(model: nn.Module, size: Sequence[int], own_size: Sequence[int]) -> bool:
    """Whether a model made for images of its own size takes those of another."""
    return tuple(size) == tuple(own_size) or (isinstance(model, Performer) and model.takes(size))


@contextlib.contextmanager
def seeing(model: nn.Module, size: Sequence[int]) -> Iterator[None]:
    """Let a Performer take images of another size for as long as the block runs; other models stay as they are."""
    if not isinstance(model, Performer):
        yield
        return
    before = model.image_size
    model.resize(tuple(size))
    try:
        yield
    finally:
        model.resize(before)


def backend_of(model: nn.Module, batch: int) -> str:
    """The backends that a model's layers choose for so many images at once; "torch" of one without such layers."""
    chosen_backends: Any = getattr(model, "chosen_backends", None)
    return "torch" if chosen_backends is None else ", ".join(chosen_backends(batch))


def accuracies(responses: Responses) -> dict[str, Any]:
    """Accuracy at each shift, the lowest of them, and the share of images correct at every shift."""
    correct = responses.correct
    assert correct is not None
    by_shift = tuple(correct.double().mean(dim=1).tolist())
    always = correct.all(dim=0).double().mean().item()
    return {
        "accuracy_by_shift": by_shift,
        "minimum_accuracy": min(by_shift),
        "worst_shift_accuracy": always,
    }


def model_result(trained: TrainedRun, responses: Responses) -> ModelResult:
    """What a run's answers are worth along each axis and at their worst."""
    run, model, correct, found = (
        trained.run,
        trained.model,
        responses.correct,
        accuracies(responses),
    )
    assert correct is not None
    low, high = (
        ends.tolist() for ends in wilson_interval(correct.sum(dim=1), responses.num_images)
    )
    by_shift = found.pop("accuracy_by_shift")
    accuracy: dict[str, dict[int, float]] = {axis: {} for axis in AXES}
    intervals: dict[str, dict[int, tuple[float, float]]] = {axis: {} for axis in AXES}
    for axis, name in enumerate(reversed(AXES)):
        rows = {int(step): row for step, row in responses.along(axis).items()}
        if len(rows) > 1:
            accuracy[name] = {step: by_shift[row] for step, row in rows.items()}
            intervals[name] = {step: (low[row], high[row]) for step, row in rows.items()}
    has_parts = hasattr(model, "chosen_backends")
    kernel = run.content or "constant" if run.model == "self_attention" else run.kernel
    return ModelResult(
        name=trained.name,
        position=run.position if has_parts else BUILT_IN,
        kernel=kernel if has_parts else BUILT_IN,
        backend=backend_of(model, run.batch_size),
        seed=run.seed,
        sampling=run.network.sampling,
        **{name: trained.result[name] for name in ("parameters", "epochs", "seconds")},
        accuracy_by_shift=accuracy,
        interval_by_shift=intervals,
        **found,
        test_images=responses.num_images,
    )


def make_report(
    runs: Sequence[TrainedRun],
    responses: Sequence[Responses],
    settings: ShiftSettings,
    command: str,
) -> ShiftReport:
    """The report of runs on the same data and what `measure` gave for each."""
    check_same_data(runs)
    about = {"dataset": runs[0].dataset.name, **provenance(command)}
    models = tuple(map(model_result, runs, responses))
    return ShiftReport(**about, mode=settings.mode, selection=settings.selection, models=models)


def check_same_data(runs: Sequence[TrainedRun]) -> None:
    """Check that runs have the same data and image size, and can be compared."""
    for run, (argument, name) in itertools.product(
        runs[1:], {"data": "name", "image_size": "image_size"}.items()
    ):
        mine, first = getattr(run.dataset, name), getattr(runs[0].dataset, name)
        if mine != first:
            raise wrong_value(
                f"{argument} of {run.folder}", mine, f"{first!r} as in {runs[0].folder}"
            )
    for second, first in itertools.combinations(reversed(runs), 2):
        if second.name != first.name:
            continue
        if second.run.seed == first.run.seed:
            expected = (
                f"one for each model, but {first.folder} is {first.name!r} with this seed too"
            )
            raise wrong_value(f"seed of {second.folder}", second.run.seed, expected)
        sizes = [sum(map(torch.numel, run.model.parameters())) for run in (second, first)]
        if sizes[0] != sizes[1]:
            expected = f"{sizes[1]} as in {first.folder}, which is {first.name!r} too"
            raise wrong_value(f"parameters of {second.folder}", sizes[0], expected)


def make_examples(
    runs: Sequence[TrainedRun], responses: Sequence[Responses], settings: ShiftSettings
) -> Examples:
    """One image of each class as the models of the first seed saw it, at some shifts along dx and dy."""
    split, movement = settings.images(runs[0].dataset.test), settings.movement(runs[0])
    first = {int(label): index for index, label in reversed(list(enumerate(split.labels.tolist())))}
    chosen = [first[label] for label in sorted(first)][:NUM_EXAMPLES]
    far, shifts = settings.max_shift, responses[0].shifts
    along = [(0, -far), (0, -far // 2), (0, 0), (0, far // 2), (0, far), (-far, 0), (far, 0)]
    shown = [shift for shift in dict.fromkeys(along) if shift in shifts]
    placed = movement.place(split.images[chosen])
    moved = torch.stack([movement.move(placed, shift) for shift in shown])
    rows = [shifts.index(shift) for shift in shown]
    predictions = {
        run.name: answered.predictions[rows][:, chosen].tolist()
        for run, answered in zip(runs, responses, strict=True)
        if run.run.seed == runs[0].run.seed and answered.predictions is not None
    }
    grey = (moved.mean(dim=2) * 255).round().to(torch.uint8)
    return Examples(grey, shown, split.labels[chosen].tolist(), predictions)
