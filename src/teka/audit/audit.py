"""Audit of a model in several stages. If one stage fails, the other stages still run."""

import dataclasses
import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from teka.audit import caveats
from teka.audit.caveats import Caveat, warn_about_training_mode
from teka.audit.layers.localize import LayerFindings, locate_layers
from teka.audit.measure.measure_responses import Deadline, measure_responses
from teka.audit.measure.noise import NoiseFloor, noise_floor
from teka.audit.measure.outputs import check_labels
from teka.audit.measure.responses import Responses
from teka.audit.model_call import Model, ModelError, evaluation_mode, tensor_hash, weights_hash
from teka.audit.movement import Movement
from teka.audit.protocols import PROTOCOLS, ProtocolResult
from teka.audit.report import (
    NOISE,
    VALIDITY,
    AuditReport,
    Example,
    Failure,
    PackedResponses,
    make_examples,
    worst_images,
)
from teka.audit.settings import AuditSettings, StepSet
from teka.audit.statistics.metrics import Metrics, summarize
from teka.audit.verdict import verdict
from teka.checks import (
    check_callable,
    check_dense,
    check_instance,
    check_names,
    check_path,
    check_sequence,
    module_of,
    unwrap_compiled,
)
from teka.errors import EXTERNAL_ERRORS, error_message, wrong_argument, wrong_value
from teka.provenance import provenance

Progress = Callable[[str, int, int, float], None]
# Noise and layers are known from few images.
FEW_IMAGES = 32


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
        noise: Differences between outputs of the same images.
        responses: Responses of the model in each measured mode.
        metrics: Metrics of each measured mode.
        layers: Which layers break equivariance.
        protocols: Results of published protocols.
        examples: Images whose predictions change most.
        caveats: Reasons why the results could mislead.
        failures: Stages that failed.
    """

    model: Model
    images: Tensor
    labels: Tensor | None
    settings: AuditSettings
    progress: Progress | None = None
    checkpoint: Path | None = None
    noise: NoiseFloor | None = None
    responses: list[Responses] = field(default_factory=list)
    metrics: list[Metrics] = field(default_factory=list)
    layers: LayerFindings | None = None
    protocols: list[ProtocolResult] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    caveats: list[Caveat] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.deadline = Deadline(self.settings.budget_seconds)
        self.sizes = (self.images.shape[2], self.images.shape[3])
        self.shifts = self.settings.shifts_for(self.sizes)
        self.few_images = self.images[:FEW_IMAGES].to(self.settings.device)

    def attempt(
        self, name: str, stage: Callable[[], None], *, ignore_budget: bool = False
    ) -> BaseException | None:
        """Run a stage of the audit. If it fails, record the error in the report and continue.

        If the time budget is spent, the stage is skipped and recorded as not done. The first mode
        is measured in any case, so that a report has results.

        Args:
            name: Name of the stage in the report.
            stage: The stage.
            ignore_budget: Run the stage even if the time budget is spent.

        Returns:
            The error that the stage raised, or None.
        """
        if self.responses and not self.deadline.seconds_left and not ignore_budget:
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
        """Return the `Movement` of the audited images in a mode."""
        return self.settings.movement(mode, self.sizes)

    def unshifted_images(self) -> Tensor:
        """Return up to 32 unshifted images, prepared as the model's input in the first mode."""
        movement = self.movement(self.settings.modes[0])
        return movement.move(movement.place(self.few_images), (0, 0))


def run_main_stages(context: AuditContext) -> None:
    """Measure the model's outputs in every mode of shifting, and check whether they are valid.

    Raises:
        ValueError: No mode could be measured. The message is that of the first mode.
    """
    settings = context.settings
    # The noise of two equal calls determines if the results are valid.
    context.attempt(NOISE, partial(_measure_noise, context, precision=False))
    errors = [
        context.attempt(f"mode {mode}", partial(_measure_mode, context, mode))
        for mode in settings.modes
    ]
    first_error = next(filter(None, errors), None)
    if first_error is not None and not context.responses:
        raise ValueError(str(first_error)) from first_error
    context.attempt("examples", partial(_choose_examples, context))
    context.attempt(VALIDITY, partial(_check_validity, context), ignore_budget=True)


def run_detail_stages(context: AuditContext, *, is_interruptible: bool) -> None:
    """Run the requested optional stages: layers, a published protocol, and rounding errors.

    Args:
        context: The audit, after `run_main_stages`.
        is_interruptible: Whether a `KeyboardInterrupt` is recorded as a failure of the remaining
            stages instead of being raised.
    """
    settings = context.settings
    stages = {}
    if "layers" in settings.parts:
        stages["layers"] = _examine_layers
    if settings.protocol is not None:
        stages[f"protocol {settings.protocol}"] = _run_protocol
    if "noise" in settings.parts:
        stages["rounding errors"] = partial(_measure_noise, precision=True)
    names = list(stages)
    for index, (name, stage) in enumerate(stages.items()):
        if context.progress is not None:
            context.progress(name, index, len(stages), math.inf)
        try:
            context.attempt(name, partial(stage, context))
        except KeyboardInterrupt:
            if not is_interruptible:
                raise
            context.failures += [Failure(left, "interrupted") for left in names[index:]]
            break


def _measure_noise(context: AuditContext, *, precision: bool) -> None:
    context.noise = noise_floor(
        context.model,
        context.unshifted_images(),
        batch_size=context.settings.batch_size,
        precision=precision,
    )


def _measure_mode(context: AuditContext, mode: str) -> None:
    """Measure every image at every shift."""
    settings = context.settings
    # The remaining modes get an equal share of the remaining time.
    num_remaining = len(settings.modes) - settings.modes.index(mode)
    error = None
    try:
        responses = measure_responses(
            context.model,
            context.images,
            context.shifts,
            context.movement(mode),
            labels=context.labels,
            output=settings.output,
            stride=settings.stride,
            batch_size=settings.batch_size,
            device=settings.device,
            budget_seconds=max(context.deadline.seconds_left / num_remaining, 1e-9),
            progress=None if context.progress is None else partial(context.progress, mode),
            checkpoint=None
            if context.checkpoint is None
            else context.checkpoint / f"{mode}.safetensors",
        )
    except ModelError as raised:
        # Keep the responses from before the error.
        responses = raised.responses
        error = raised
        if responses is None or not responses.complete[responses.zero]:
            raise
    context.responses.append(responses)
    context.metrics.append(summarize(responses, **settings.intervals))
    if error is not None:
        raise error


def _examine_layers(context: AuditContext) -> None:
    model: Any = unwrap_compiled(context.model)
    # To save time, use only shifts along one axis, which reveal the same layers.
    along_axes = [shift for shift in context.shifts if shift.count(0) == 1]
    mode = context.settings.modes[0]
    context.layers = locate_layers(
        model,
        context.few_images,
        along_axes or context.shifts,
        context.movement(mode),
        layers=context.settings.layers,
    )
    # If the output is exact, the layers compensate for each other, as after `teka fix`.
    if any(metrics.is_exact and metrics.movement.mode == mode for metrics in context.metrics):
        context.layers = replace(context.layers, breaks={})
    context.caveats += caveats.warn_about_missed_aliasing(context.shifts, _largest_stride(context))


def _largest_stride(context: AuditContext) -> tuple[int, ...]:
    """Return the largest stride of any layer along each axis, at most the largest shift."""
    assert context.layers is not None
    strides = [
        layer.stride for layer in context.layers.findings if layer.grid and min(layer.grid) > 1
    ]
    reach = context.settings.reach(context.sizes)
    return tuple(
        max([1, *(int(stride[axis]) for stride in strides if stride[axis] <= reach[axis])])
        for axis in range(2)
    )


def _run_protocol(context: AuditContext) -> None:
    # The kind of the output may be ambiguous for the few images of a protocol.
    settings = replace(context.settings, output=context.responses[0].output)
    assert settings.protocol is not None
    run = PROTOCOLS[settings.protocol]
    context.protocols.append(run(context.model, context.images, context.labels, settings))


def _choose_examples(context: AuditContext) -> None:
    for responses in context.responses:
        worst = worst_images(responses, context.settings.num_examples)
        context.examples += make_examples(
            context.model, context.images, responses, worst, context.settings
        )


def _check_validity(context: AuditContext) -> None:
    """Warn about conditions that make the results invalid or misleading."""
    settings = context.settings
    responses = context.responses[0]
    noise = 0.0 if context.noise is None else context.noise.repeat
    warnings = context.caveats
    warnings += caveats.warn_about_nondeterminism(noise)
    warnings += caveats.warn_about_few_images(responses.num_images, settings.confidence)
    module = module_of(context.model)
    if module is not None:
        warnings += caveats.warn_about_random_features(module)
    # A caveat that holds in several modes is listed once.
    by_name: dict[str, Caveat] = {}
    for each in context.responses:
        for caveat in (
            *caveats.warn_about_equal_predictions(each),
            *caveats.warn_about_chance_accuracy(each),
        ):
            by_name.setdefault(caveat.name, caveat)
    warnings += by_name.values()
    for mode in settings.modes:
        warnings += caveats.warn_about_fill_value(context.images, context.movement(mode))
    if context.labels is not None:
        warnings += caveats.warn_about_unused_labels(responses)
    if settings.output == "auto":
        warnings += caveats.warn_about_single_values(responses)
    # Checks that call the model come last, because an error of the model ends this stage.
    images = context.unshifted_images()
    if responses.predictions is None:
        warnings += caveats.warn_about_constant_output(
            context.model, images, responses.output, settings.batch_size
        )
    warnings += caveats.warn_about_batch_dependence(context.model, images, noise)


def audit(
    model: Model,
    images: Tensor,
    labels: Tensor | None = None,
    settings: AuditSettings | None = None,
    *,
    shifts: StepSet | None = None,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    model_facts: dict[str, object] | None = None,
    data_facts: dict[str, object] | None = None,
    caveats: Sequence[Caveat] = (),
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
    on_result: Callable[[AuditReport], object] | None = None,
    command: str = "teka.audit.audit",
) -> AuditReport:
    """Measure how the outputs of a model change when its images are shifted.

    The report contains accuracy and consistency at each shift, the layers that break equivariance,
    and reasons why the results could be misleading. A module is measured in evaluation mode, and
    its mode is restored afterwards. If a stage of the audit fails, the report records its error,
    and the other stages still run.

    >>> import torch, teka
    >>> model = torch.nn.Sequential(
    ...     torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4)
    ... )
    >>> settings = teka.audit.AuditSettings(shifts=[(0, 1), (1, 0)], parts=())
    >>> report = teka.audit.audit(model, torch.rand(20, 3, 8, 8), settings=settings)
    >>> report.number("consistency")
    1.0

    Args:
        model: Takes images (B, C, H, W) and returns an output that `measure_responses` describes:
            logits, probabilities, classes, features, maps or boxes, or an object with one of these
            in a field. In mode "canvas" it must take images of the size of the canvas, in mode
            "crop" of the size of the window. Layers are examined only in a `torch.nn.Module`.
        images: Images (N, C, H, W) in floating point, as the model takes them. If the mode fills
            with a background, use images before normalization, and put the normalization into the
            model.
        labels: Classes (N,) as integers from 0, or (N, K) of 0 and 1 for a multi-label classifier,
            or None.
        settings: Shifts, modes and everything else that is measured. By default `AuditSettings()`.
        shifts: Replaces the shifts of `settings`.
        name: Name of the model. By default the name of its class.
        class_names: Name of each class.
        model_facts: Other facts about the model for the report.
        data_facts: Other facts about the images for the report, such as the name of the data set.
        caveats: Caveats that the caller knows.
        checkpoint: Folder that keeps the state of interrupted measurements, or None. A measurement
            whose state is in it is resumed.
        progress: Called with the name of a stage, the finished entries, all entries and the seconds
            left.
        on_result: Called with the report of the main results, before the stages that explain them:
            layers, published protocols and numerical precision. From then on, a
            `KeyboardInterrupt` ends these stages, and the report of everything else is returned.
        command: Command that the report records.

    Raises:
        ValueError: Images or labels of a wrong shape or type, no images, or no mode that could be
            measured. The message is then that of the first mode.
    """
    check_callable("model", model)
    if settings is not None:
        check_instance("settings", settings, AuditSettings)
    settings = settings or AuditSettings()
    if shifts is not None:
        settings = dataclasses.replace(settings, shifts=shifts)
    _check_data(images, labels, class_names)
    for argument, value, kind in (
        ("name", name, str),
        ("command", command, str),
        ("model_facts", model_facts, dict),
        ("data_facts", data_facts, dict),
    ):
        if value is not None:
            check_instance(argument, value, kind)
    for caveat in check_sequence("caveats", caveats, "a list of caveats"):
        check_instance("caveats", caveat, Caveat)
    for argument, function in (("progress", progress), ("on_result", on_result)):
        if function is not None:
            check_callable(argument, function)
    if checkpoint is not None:
        checkpoint = check_path("checkpoint", checkpoint)
        if not checkpoint.is_dir():
            raise wrong_value("checkpoint", str(checkpoint), "a folder that exists")
    _check_layers(model, settings)
    context = AuditContext(
        model, images, labels, settings, progress, checkpoint, caveats=list(caveats)
    )
    module = module_of(model)
    if module is not None:
        context.caveats += warn_about_training_mode(module)
    model_class = type(module or model).__name__
    facts = {
        "kind": model_class,
        "parameters": None if module is None else sum(map(torch.numel, module.parameters())),
        "weights_sha256": weights_hash(model),
        **(model_facts or {}),
    }
    data = {
        "num_images": len(images),
        "image_shape": list(images.shape[1:]),
        "labelled": labels is not None,
        "class_names": None if class_names is None else list(class_names),
        "sha256": tensor_hash(images),
        **(data_facts or {}),
    }

    def make_report() -> AuditReport:
        report = AuditReport(
            name=name or model_class,
            model=facts,
            data=data,
            settings=settings.to_dict(context.sizes),
            metrics=tuple(context.metrics),
            noise_floor=context.noise,
            layers=context.layers,
            protocols=tuple(context.protocols),
            caveats=tuple(dict.fromkeys(context.caveats)),
            failures=tuple(context.failures),
            examples=tuple(context.examples),
            verdict=(),
            provenance={**provenance(command), "seconds": round(context.deadline.seconds, 2)},
            responses=tuple(map(PackedResponses.pack, context.responses)),
        )
        return dataclasses.replace(report, verdict=verdict(report))

    with evaluation_mode(module):
        run_main_stages(context)
        if on_result is not None:
            on_result(make_report())
        run_detail_stages(context, is_interruptible=on_result is not None)
    return make_report()


def _check_layers(model: object, settings: AuditSettings) -> None:
    """Check that the requested layers exist, before anything is measured."""
    if settings.layers is None or "layers" not in settings.parts:
        return
    module = unwrap_compiled(model)
    if not isinstance(module, torch.nn.Module):
        hint = f"The model is a {type(module).__name__} and not a module."
        raise wrong_value("layers", list(settings.layers), "None", hint)
    check_names("layers", settings.layers, [name for name, _ in module.named_modules() if name])


def _check_data(images: Tensor, labels: Tensor | None, class_names: Sequence[str] | None) -> None:
    check_dense("images", images, "images", "channels", "height", "width")
    if not images.isfinite().all():
        raise wrong_argument("images", "NaN or infinity", "finite values")
    if labels is not None:
        labels = check_labels(labels, len(images))
    if class_names is None:
        return
    num_classes = len(check_names("class_names", class_names))
    if labels is not None and labels.ndim == 1 and int(labels.max()) >= num_classes:
        expected = f"classes from 0 to {num_classes - 1}, as class_names has"
        raise wrong_value("labels", int(labels.max()), expected)
