"""The parts of an audit: each is tried, and what fails is written down and costs only itself."""

import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from teka.audit import caveats
from teka.audit.changes import CHANGES
from teka.audit.function import ModelError, as_written
from teka.audit.layers.blame import LayerFindings, blame_layers
from teka.audit.measure.distances import NoiseFloor, SensitivityMap, noise_floor, sensitivity_map
from teka.audit.measure.lie_derivative import LieDerivative, lie_derivative
from teka.audit.measure.measure_responses import Deadline, measure_responses
from teka.audit.measure.responses import Responses
from teka.audit.model_output import OUTPUTS
from teka.audit.movement import Movement
from teka.audit.procedures import PRESETS, PresetResult
from teka.audit.report import (
    NOISE,
    VALIDITY,
    ChangeResult,
    Example,
    Failure,
    make_examples,
    worst_images,
)
from teka.audit.settings import PARTS, AuditSettings
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.phase import PhaseTable, best_stride, error_by_phase
from teka.audit.statistics.summarize import summarize
from teka.errors import EXTERNAL_ERRORS, error_message, wrong_value

Progress = Callable[[str, int, int, float], None]
# What is differentiated, compared in double precision or looked into layer by layer, needs few images to be known.
FEW_IMAGES = 32
FIRST_BLOCK = 50  # images, of an audit that stops when it is precise enough
STRIDES = (
    2,
    3,
    4,
    7,
    8,
    14,
    16,
    32,
)  # grids that are looked for in a model without layers to look into, in pixels
AXES = ("dy", "dx")


@dataclass(eq=False)
class Work:
    """What the parts of one audit work with, and what they have found so far, by their names in `PARTS_IN_ORDER`."""

    model: Callable[[Tensor], object]
    images: Tensor
    labels: Tensor | None
    settings: AuditSettings
    progress: Progress | None
    checkpoint: Path | None
    results: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    failures: list[Failure] = field(default_factory=list)
    stride: tuple[int, ...] = (
        1,
        1,
    )  # pixels to a cell of the grid whose phases are told apart, found with them

    def __post_init__(self) -> None:
        self.deadline = Deadline(self.settings.budget_seconds)
        self.sizes = (self.images.shape[2], self.images.shape[3])
        self.shifts = self.settings.shifts_for(self.sizes)
        self.order = torch.arange(len(self.images))
        if self.settings.precision is not None:  # the first ones must stand for all
            self.order = torch.randperm(
                len(self.images), generator=torch.Generator().manual_seed(self.settings.seed)
            )
            self.images = self.images[self.order]
            self.labels = None if self.labels is None else self.labels[self.order]
        self.few = self.images[:FEW_IMAGES].to(self.settings.device)

    def first(self, part: str) -> Any:
        """The first result of a part, or None."""
        return next(iter(self.results[part]), None)

    def attempt(
        self, part: str, name: str, find: Callable[[], Iterator[object]], *, always: bool = False
    ) -> BaseException | None:
        """Do a part, unless time is up, and keep what it yields; what it raises is written down and given back."""
        if self.results["mode"] and not self.deadline.left and not always:
            self.failures.append(Failure(name, "not done: the time budget was spent"))
            return None
        try:
            for result in find():
                self.results[part].append(result)
        # A model may raise anything; one part's failure must not cost the others.
        except EXTERNAL_ERRORS as error:
            message = (
                error_message(error)
                if isinstance(error, ValueError)
                else f"{type(error).__name__}: {error_message(error)}"
            )
            self.failures.append(Failure(name, message, "".join(traceback.format_exception(error))))
            return error
        return None

    def movement(self, mode: str) -> Movement:
        """How the images move in one of the modes."""
        return self.settings.movement(mode, self.sizes)

    def unshifted(self) -> Tensor:
        """What the model sees of a few images that are not moved, in the first mode."""
        movement = self.movement(self.settings.modes[0])
        return movement.move(movement.place(self.few), (0, 0))


def do_parts(work: Work) -> None:
    """Do every part that was asked for, or raise what the first mode did if not a single one could be measured."""
    for part in PARTS_IN_ORDER:
        # Whether the model is deterministic is always measured, since it decides whether the numbers are valid.
        if part.name in PARTS and part.name not in (*work.settings.parts, "noise"):
            continue
        if work.results["mode"] and work.first("mode")[0].output not in part.outputs:
            continue
        over = part.over(work.settings)
        errors = [
            work.attempt(part.name, part.title.format(one), partial(part.find, work, one))
            for one in over
        ]
        first = next(filter(None, errors), None)
        if part.name == "mode" and first is not None and not work.results["mode"]:
            raise ValueError(str(first)) from first


def find_caveats(work: Work) -> list[caveats.Caveat]:
    """What could mislead, of what was measured and of the model and the images."""
    settings, noise = work.settings, work.first("noise")
    repeat = 0.0 if noise is None else noise.repeat
    given = (
        work.model,
        work.unshifted(),
        [responses for responses, _ in work.results["mode"]],
        repeat,
    )
    how: Any = {"batch_size": settings.batch_size, "confidence": settings.confidence}
    work.attempt("validity", VALIDITY, lambda: caveats.validity(*given, **how), always=True)
    found = list(work.results["validity"])
    for mode in settings.modes:
        found += caveats.fill_value(work.images, work.movement(mode))
    responses = work.first("mode")[0]
    if work.labels is not None:
        found += caveats.unused_labels(responses)
    found += caveats.single_values(settings.output, responses)
    found += caveats.phases_unseen(responses.shifts, work.stride)
    return list(dict.fromkeys(found))


def _noise(work: Work, _one: str) -> Iterator[NoiseFloor]:
    precision = "noise" in work.settings.parts
    yield noise_floor(
        work.model, work.unshifted(), batch_size=work.settings.batch_size, precision=precision
    )


def _mode(work: Work, mode: str) -> Iterator[tuple[Responses, Metrics]]:
    """Every image at every shift; with a precision block after block of images, until the interval is narrow enough."""
    settings, found, error = work.settings, None, None
    # The modes that are still to come get as much.
    until = Deadline(
        max(work.deadline.left / (len(settings.modes) - list(settings.modes).index(mode)), 1e-9)
    )
    for start, stop in block_ends(len(work.images), settings.precision):
        try:
            block = _ask(work, mode, slice(start, stop), until.left)
        except ModelError as raised:
            # What was measured before it happened is as good as any.
            found, error = raised.responses if found is None else found, raised
            break
        found = block if found is None else found.join(block)
        if not until.left or is_precise(found, settings):
            break
    if found is None or (error is not None and not found.complete[found.zero]):
        raise error or ValueError("there are no images")
    yield found, summarize(found, **settings.intervals)
    if error is not None:
        raise error


def _ask(work: Work, mode: str, images: slice, seconds: float) -> Responses:
    labels = None if work.labels is None else work.labels[images]
    file = f"{mode}-{images.start}" if images.start else mode
    return _measure(
        work, mode, work.movement(mode), work.shifts, work.images[images], labels, seconds, file
    )


def _measure(
    work: Work,
    name: str,
    movement: Movement,
    shifts: Sequence[Sequence[int | float]],
    images: Tensor,
    labels: Tensor | None,
    seconds: float,
    file: str,
) -> Responses:
    settings = work.settings
    return measure_responses(
        work.model,
        images,
        shifts,
        movement,
        labels=labels,
        output=settings.output,
        stride=settings.stride,
        batch_size=settings.batch_size,
        device=settings.device,
        budget_seconds=max(seconds, 1e-9),
        progress=None if work.progress is None else partial(work.progress, name),
        checkpoint=None if work.checkpoint is None else work.checkpoint / f"{file}.safetensors",
    )


def _change(work: Work, name: str) -> Iterator[ChangeResult]:
    """The images as the model sees them unshifted, changed; and changed back, where that interpolates."""
    change, unshifted, found = CHANGES[name], work.movement(work.settings.modes[0]), []
    images = unshifted.move(unshifted.place(work.images), (0, 0))
    for back in (False, True) if change.interpolates else (False,):
        movement = Movement(name, work.settings.background, there_and_back=back)
        asked = [(amount,) for amount in change.amounts]
        label = f"{name}, there and back" if back else name
        given = (
            work,
            label,
            movement,
            asked,
            images,
            work.labels,
            work.deadline.left,
            label.replace(", ", "-"),
        )
        found.append(summarize(_measure(*given), **work.settings.intervals))
    yield ChangeResult(found[0], found[1] if len(found) > 1 else None)


def block_ends(num_images: int, precision: float | int | None) -> Iterator[tuple[int, int]]:
    """Where blocks of images begin and end: one of all, or with a precision so many that each doubles them."""
    start, stop = 0, num_images if precision is None else min(FIRST_BLOCK, num_images)
    while start < num_images:
        yield start, stop
        start, stop = stop, min(2 * stop, num_images)


def is_precise(responses: Responses, settings: AuditSettings) -> bool:
    """Whether half of the interval of the consistency, or of the mean IoU, is at most the precision asked for."""
    if settings.precision is None:
        return False
    numbers = summarize(responses, **settings.intervals).numbers
    number = numbers.get("consistency", numbers.get("overlap"))
    if number is None:
        raise wrong_value(
            "precision", settings.precision, "None; this output has no consistency and no mean IoU"
        )
    return number.half_width is not None and 100 * number.half_width <= settings.precision


def _layers(work: Work, _one: str) -> Iterator[LayerFindings]:
    model = as_written(work.model)
    if not isinstance(model, torch.nn.Module):
        raise wrong_value(
            "model", type(model).__name__, "a torch.nn.Module, to look into its layers"
        )
    # Along one axis at a time is enough to see a layer break, and every layer is compared at every shift.
    along = [shift for shift in work.shifts if shift.count(0) == 1]
    movement = work.movement(work.settings.modes[0])
    yield blame_layers(model, work.few, along or work.shifts, movement, layers=work.settings.layers)


def _phases(work: Work, _one: str) -> Iterator[tuple[str, PhaseTable]]:
    """By the coarsest grid that some shift is a multiple of; without layers, by what errors tell of it."""
    settings, layers, responses = work.settings, work.first("layers"), work.first("mode")[0]
    if layers is not None:
        grids = [one.stride for one in layers.findings if one.grid and min(one.grid) > 1]
        within = [[stride[axis] for stride in grids] for axis in range(2)]
        reach = settings.reach(work.sizes)
        work.stride = tuple(
            max([1, *(int(one) for one in within[axis] if one <= reach[axis])]) for axis in range(2)
        )
    elif len(responses.take_complete().shifts) > 1:
        number = "error" if responses.predictions is None else "agreement"
        choice = best_stride(responses, STRIDES, number=number, seed=settings.seed)
        if choice.stride and choice.p_value < 1 - settings.confidence:
            work.stride = choice.stride, choice.stride
    for responses, _ in work.results["mode"] if max(work.stride) > 1 else ():
        yield responses.movement.mode, error_by_phase(responses, work.stride, **settings.intervals)


def _preset(work: Work, name: str) -> Iterator[PresetResult]:
    # The kind that was found, which the images of the procedure alone may leave open.
    settings = replace(work.settings, output=work.first("mode")[0].output)
    yield PRESETS[name](work.model, work.images, work.labels, settings)


def _derivative(work: Work, direction: str) -> Iterator[LieDerivative]:
    images, batch_size = work.unshifted(), work.settings.batch_size
    yield lie_derivative(work.model, images, axis=AXES.index(direction), batch_size=batch_size)


def _sensitivity(work: Work, mode: str) -> Iterator[SensitivityMap]:
    movement = work.movement(mode)
    yield sensitivity_map(
        work.model, work.few, work.shifts, movement, batch_size=work.settings.batch_size
    )


def _examples(work: Work, _one: str) -> Iterator[Example]:
    settings = work.settings
    for responses, _ in work.results["mode"]:
        worst = worst_images(responses, settings.num_examples)
        for example in make_examples(work.model, work.images, responses, worst, settings):
            yield replace(example, index=int(work.order[example.index]))


@dataclass(frozen=True)
class Part:
    """A part of an audit, which is done once for each thing it is over; one of `PARTS` only if asked for."""

    name: str
    title: str
    find: Callable[[Work, str], Iterator[object]]
    over: Callable[[AuditSettings], Sequence[str]] = lambda _: ("",)
    outputs: Sequence[str] = OUTPUTS  # of which it says something


# The values of boxes are positions, in any order, and those of classes are no sizes.
CONTINUOUS = tuple(output for output in OUTPUTS if output not in ("boxes", "classes"))
CHANGED = tuple(output for output in OUTPUTS if output != "boxes")
PARTS_IN_ORDER = (
    Part("noise", NOISE, _noise),
    Part("mode", "mode {}", _mode, lambda settings: settings.modes),
    Part("change", "{}", _change, lambda settings: settings.changes, CHANGED),
    Part("layers", "layers", _layers),
    Part("phases", "phases", _phases),
    Part(
        "preset",
        "preset {}",
        _preset,
        lambda settings: [] if settings.preset is None else [settings.preset],
    ),
    Part("derivative", "derivative along {}", _derivative, lambda _: AXES, CONTINUOUS),
    Part(
        "sensitivity",
        "sensitivity in mode {}",
        _sensitivity,
        lambda settings: settings.modes,
        CONTINUOUS,
    ),
    Part("examples", "examples", _examples),
)
