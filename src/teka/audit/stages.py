"""The stages of an audit. A stage that fails is recorded and does not stop the others."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from teka.audit import caveats
from teka.audit.caveats import Caveat
from teka.audit.changes import CHANGES
from teka.audit.layers.localize import LayerFindings, locate_layers
from teka.audit.measure.distances import NoiseFloor, SensitivityMap, noise_floor, sensitivity_map
from teka.audit.measure.lie_derivative import LieDerivative, lie_derivative
from teka.audit.measure.measure_responses import Deadline, measure_responses
from teka.audit.measure.responses import Responses
from teka.audit.model_call import ModelError, as_written
from teka.audit.movement import Movement
from teka.audit.protocols import PROTOCOLS, ProtocolResult
from teka.audit.report import (
    NOISE,
    VALIDITY,
    ChangeResult,
    Example,
    Failure,
    make_examples,
    worst_images,
)
from teka.audit.settings import AuditSettings
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.phase import PhaseTable, best_stride, error_by_phase
from teka.audit.statistics.summarize import summarize
from teka.errors import EXTERNAL_ERRORS, error_message, wrong_value

Progress = Callable[[str, int, int, float], None]
# Derivatives, noise and layers are known from few images.
FEW_IMAGES = 32
FIRST_BLOCK = 50  # number of images of the first block of an audit with a precision
# Strides that are tried for a model whose layers are unknown, in pixels.
STRIDES = (2, 3, 4, 7, 8, 14, 16, 32)
AXES = ("dy", "dx")
# The values of boxes are positions in any order, and classes have no distance.
WITHOUT_DISTANCE = ("boxes", "classes")


@dataclass(eq=False)
class AuditContext:
    """Inputs and results of one audit, shared by its stages.

    Args:
        model: The model.
        images: Images (N, C, H, W).
        labels: Their labels, or None.
        settings: Settings of the audit.
        progress: Called with the name of a stage, the finished entries, all entries and the seconds
            left.
        checkpoint: Folder that keeps the state of interrupted measurements, or None.
        noise: Difference of two equal calls.
        responses: Responses of the model in each measured mode.
        metrics: Metrics of each measured mode.
        changes: Results of changes other than shifts.
        layers: Which layers break equivariance.
        stride: Stride of the model in pixels, whose phases are compared.
        phases: Metrics by phase of each mode.
        protocols: Results of published protocols.
        derivatives: Derivatives along the axes.
        sensitivity: Sensitivity to shifts in each mode.
        examples: Images whose predictions change most.
        caveats: Reasons why the results could mislead.
        failures: Stages that failed.
    """

    model: Callable[[Tensor], object]
    images: Tensor
    labels: Tensor | None
    settings: AuditSettings
    progress: Progress | None = None
    checkpoint: Path | None = None
    noise: NoiseFloor | None = None
    responses: list[Responses] = field(default_factory=list)
    metrics: list[Metrics] = field(default_factory=list)
    changes: list[ChangeResult] = field(default_factory=list)
    layers: LayerFindings | None = None
    stride: tuple[int, ...] = (1, 1)
    phases: dict[str, PhaseTable] = field(default_factory=dict)
    protocols: list[ProtocolResult] = field(default_factory=list)
    derivatives: list[LieDerivative] = field(default_factory=list)
    sensitivity: dict[str, SensitivityMap] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)
    caveats: list[Caveat] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.deadline = Deadline(self.settings.budget_seconds)
        self.sizes = (self.images.shape[2], self.images.shape[3])
        self.shifts = self.settings.shifts_for(self.sizes)
        self.order = torch.arange(len(self.images))
        if self.settings.precision is not None:
            # The first images must represent all images.
            generator = torch.Generator().manual_seed(int(self.settings.seed))
            self.order = torch.randperm(len(self.images), generator=generator)
            self.images = self.images[self.order]
            self.labels = None if self.labels is None else self.labels[self.order]
        self.few_images = self.images[:FEW_IMAGES].to(self.settings.device)

    def attempt(
        self, name: str, stage: Callable[[], None], *, ignore_budget: bool = False
    ) -> BaseException | None:
        """Run a stage and record its failure.

        After the first mode, stages are skipped when the time budget is spent.

        Args:
            name: Name of the stage in the report.
            stage: The stage.
            ignore_budget: Run the stage even if the time budget is spent.

        Returns:
            The error that the stage raised, or None.
        """
        if self.responses and not self.deadline.left and not ignore_budget:
            self.failures.append(Failure(name, "not done: the time budget was spent"))
            return None
        try:
            stage()
        # The code of the model may raise anything.
        except EXTERNAL_ERRORS as error:
            message = error_message(error)
            if not isinstance(error, ValueError):
                message = f"{type(error).__name__}: {message}"
            lines = "".join(traceback.format_exception(error))
            self.failures.append(Failure(name, message, lines))
            return error
        return None

    def movement(self, mode: str) -> Movement:
        """Return how images are moved in a mode."""
        return self.settings.movement(mode, self.sizes)

    def unshifted_images(self) -> Tensor:
        """Return a few images without a shift, as the model sees them in the first mode."""
        movement = self.movement(self.settings.modes[0])
        return movement.move(movement.place(self.few_images), (0, 0))


def run_stages(context: AuditContext) -> None:
    """Run all requested stages of an audit.

    Raises:
        ValueError: No mode could be measured. The message is that of the first mode.
    """
    settings = context.settings
    # Always measure the noise, because it decides whether the results are valid.
    context.attempt(NOISE, partial(_measure_noise, context))
    errors = [
        context.attempt(f"mode {mode}", partial(_measure_mode, context, mode))
        for mode in settings.modes
    ]
    first_error = next(filter(None, errors), None)
    if first_error is not None and not context.responses:
        raise ValueError(str(first_error)) from first_error
    output = context.responses[0].output
    if output != "boxes":
        for change in settings.changes:
            context.attempt(change, partial(_measure_change, context, change))
    if "layers" in settings.parts:
        context.attempt("layers", partial(_examine_layers, context))
    context.attempt("phases", partial(_compare_phases, context))
    if settings.protocol is not None:
        context.attempt(f"protocol {settings.protocol}", partial(_run_protocol, context))
    if "derivative" in settings.parts and output not in WITHOUT_DISTANCE:
        for axis, direction in enumerate(AXES):
            context.attempt(
                f"derivative along {direction}", partial(_measure_derivative, context, axis)
            )
    if "sensitivity" in settings.parts and output not in WITHOUT_DISTANCE:
        for mode in settings.modes:
            context.attempt(
                f"sensitivity in mode {mode}", partial(_measure_sensitivity, context, mode)
            )
    context.attempt("examples", partial(_choose_examples, context))
    context.attempt(VALIDITY, partial(_check_validity, context), ignore_budget=True)
    context.caveats += _other_caveats(context)


def _measure_noise(context: AuditContext) -> None:
    settings = context.settings
    context.noise = noise_floor(
        context.model,
        context.unshifted_images(),
        batch_size=settings.batch_size,
        precision="noise" in settings.parts,
    )


def _measure_mode(context: AuditContext, mode: str) -> None:
    """Measure every image at every shift.

    With a precision, images are measured in blocks until the interval is narrow enough.
    """
    settings = context.settings
    responses, error = None, None
    # The remaining modes get an equal share of the remaining time.
    num_remaining = len(settings.modes) - list(settings.modes).index(mode)
    deadline = Deadline(max(context.deadline.left / num_remaining, 1e-9))
    for start, stop in block_ends(len(context.images), settings.precision):
        labels = None if context.labels is None else context.labels[start:stop]
        try:
            block = _measure_responses(
                context,
                mode,
                context.movement(mode),
                context.shifts,
                context.images[start:stop],
                labels,
                deadline.left,
                f"{mode}-{start}" if start else mode,
            )
        except ModelError as raised:
            # Keep the responses from before the error.
            error = raised
            responses = raised.responses if responses is None else responses
            break
        responses = block if responses is None else responses.join(block)
        if not deadline.left or is_precise(responses, settings):
            break
    if responses is None or (error is not None and not responses.complete[responses.zero]):
        raise error or ValueError("there are no images")
    context.responses.append(responses)
    context.metrics.append(summarize(responses, **settings.intervals))
    if error is not None:
        raise error


def _measure_responses(
    context: AuditContext,
    name: str,
    movement: Movement,
    shifts: Sequence[Sequence[int | float]],
    images: Tensor,
    labels: Tensor | None,
    seconds: float,
    file: str,
) -> Responses:
    settings = context.settings
    return measure_responses(
        context.model,
        images,
        shifts,
        movement,
        labels=labels,
        output=settings.output,
        stride=settings.stride,
        batch_size=settings.batch_size,
        device=settings.device,
        budget_seconds=max(seconds, 1e-9),
        progress=None if context.progress is None else partial(context.progress, name),
        checkpoint=None
        if context.checkpoint is None
        else context.checkpoint / f"{file}.safetensors",
    )


def _measure_change(context: AuditContext, name: str) -> None:
    """Change the unshifted images, and undo the change if it interpolates."""
    change = CHANGES[name]
    movement = context.movement(context.settings.modes[0])
    images = movement.move(movement.place(context.images), (0, 0))
    amounts = [(amount,) for amount in change.amounts]
    metrics = []
    for is_undone in (False, True) if change.interpolates else (False,):
        label = f"{name}, there and back" if is_undone else name
        responses = _measure_responses(
            context,
            label,
            Movement(name, context.settings.background, there_and_back=is_undone),
            amounts,
            images,
            context.labels,
            context.deadline.left,
            label.replace(", ", "-"),
        )
        metrics.append(summarize(responses, **context.settings.intervals))
    context.changes.append(ChangeResult(metrics[0], metrics[1] if len(metrics) > 1 else None))


def block_ends(num_images: int, precision: float | int | None) -> Iterator[tuple[int, int]]:
    """Yield where blocks of images start and end.

    Without a precision there is one block. With a precision each block doubles the number of
    measured images.
    """
    start, stop = 0, num_images if precision is None else min(FIRST_BLOCK, num_images)
    while start < num_images:
        yield start, stop
        start, stop = stop, min(2 * stop, num_images)


def is_precise(responses: Responses, settings: AuditSettings) -> bool:
    """Return True if the interval of the consistency or the mean IoU is narrow enough.

    Half of its width must be at most `settings.precision` percentage points.
    """
    if settings.precision is None:
        return False
    numbers = summarize(responses, **settings.intervals).numbers
    number = numbers.get("consistency", numbers.get("overlap"))
    if number is None:
        expected = "None; this output has no consistency and no mean IoU"
        raise wrong_value("precision", settings.precision, expected)
    return number.half_width is not None and 100 * number.half_width <= settings.precision


def _examine_layers(context: AuditContext) -> None:
    model = as_written(context.model)
    if not isinstance(model, torch.nn.Module):
        expected = "a torch.nn.Module, to look into its layers"
        raise wrong_value("model", type(model).__name__, expected)
    # A layer that breaks equivariance does so along one axis, and every shift costs a comparison.
    along_axes = [shift for shift in context.shifts if shift.count(0) == 1]
    context.layers = locate_layers(
        model,
        context.few_images,
        along_axes or context.shifts,
        context.movement(context.settings.modes[0]),
        layers=context.settings.layers,
    )


def _compare_phases(context: AuditContext) -> None:
    """Compare shifts by their remainder modulo the stride of the model.

    The stride is the coarsest one of the layers that the shifts reach. If the layers are unknown,
    it is the one that explains the errors best.
    """
    settings, responses = context.settings, context.responses[0]
    if context.layers is not None:
        strides = [
            layer.stride for layer in context.layers.findings if layer.grid and min(layer.grid) > 1
        ]
        reach = settings.reach(context.sizes)
        within = [
            [int(stride[axis]) for stride in strides if stride[axis] <= reach[axis]]
            for axis in range(2)
        ]
        context.stride = tuple(max([1, *along_axis]) for along_axis in within)
    elif len(responses.take_complete().shifts) > 1:
        number = "error" if responses.predictions is None else "agreement"
        choice = best_stride(responses, STRIDES, number=number, seed=settings.seed)
        if choice.stride and choice.p_value < 1 - settings.confidence:
            context.stride = choice.stride, choice.stride
    if max(context.stride) > 1:
        for responses in context.responses:
            mode = responses.movement.mode
            context.phases[mode] = error_by_phase(responses, context.stride, **settings.intervals)


def _run_protocol(context: AuditContext) -> None:
    # The images of a protocol may leave the kind of the output open.
    settings = replace(context.settings, output=context.responses[0].output)
    assert settings.protocol is not None
    run = PROTOCOLS[settings.protocol]
    context.protocols.append(run(context.model, context.images, context.labels, settings))


def _measure_derivative(context: AuditContext, axis: int) -> None:
    context.derivatives.append(
        lie_derivative(
            context.model,
            context.unshifted_images(),
            axis=axis,
            batch_size=context.settings.batch_size,
        )
    )


def _measure_sensitivity(context: AuditContext, mode: str) -> None:
    context.sensitivity[mode] = sensitivity_map(
        context.model,
        context.few_images,
        context.shifts,
        context.movement(mode),
        batch_size=context.settings.batch_size,
    )


def _choose_examples(context: AuditContext) -> None:
    settings = context.settings
    for responses in context.responses:
        worst = worst_images(responses, settings.num_examples)
        for example in make_examples(context.model, context.images, responses, worst, settings):
            context.examples.append(replace(example, index=int(context.order[example.index])))


def _check_validity(context: AuditContext) -> None:
    settings = context.settings
    found = caveats.validity(
        context.model,
        context.unshifted_images(),
        context.responses,
        0.0 if context.noise is None else context.noise.repeat,
        batch_size=settings.batch_size,
        confidence=settings.confidence,
    )
    # Keep the caveats from before an error.
    for caveat in found:
        context.caveats.append(caveat)


def _other_caveats(context: AuditContext) -> Iterator[Caveat]:
    responses = context.responses[0]
    for mode in context.settings.modes:
        yield from caveats.fill_value(context.images, context.movement(mode))
    if context.labels is not None:
        yield from caveats.unused_labels(responses)
    yield from caveats.single_values(context.settings.output, responses)
    yield from caveats.phases_unseen(responses.shifts, context.stride)
