"""Audit of a model under shifts of its images: the function `audit` and the stages that it runs.

If a stage fails, its error is recorded, and the other stages still run.
"""

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from teka.audit import caveats
from teka.audit.caveats import Caveat, warn_about_training_mode
from teka.audit.layers.localize import LayerFindings, locate_layers
from teka.audit.measure.compare_outputs import parse_labels
from teka.audit.measure.measure_responses import Deadline, measure_responses
from teka.audit.measure.noise import NoiseFloor, noise_floor
from teka.audit.measure.responses import Responses
from teka.audit.model_call import (
    Model,
    ModelError,
    evaluate_in_batches,
    evaluation_mode,
    tensor_hash,
    weights_hash,
)
from teka.audit.protocols import PROTOCOLS, ProtocolResult
from teka.audit.report import (
    NOISE,
    VALIDITY,
    AuditReport,
    ExampleImage,
    Failure,
    PackedResponses,
    create_examples,
    find_least_consistent_images,
)
from teka.audit.settings import AuditSettings, StepSet
from teka.audit.statistics.metrics import Metrics, summarize
from teka.audit.verdict import verdict
from teka.checks import (
    check_callable,
    check_dense_tensor,
    check_instance,
    check_instances,
    check_names,
    find_owning_module,
    unwrap_compiled,
)
from teka.errors import EXTERNAL_ERRORS, error_message, wrong_argument, wrong_value
from teka.files import check_folder_is_writable
from teka.provenance import gather_provenance
from teka.reporting.formatting import format_count

Progress = Callable[[str, int, int, float], None]
# Number of images that suffice to measure noise and to find the layers that break equivariance.
FEW_IMAGES = 32


@dataclass(eq=False)
class AuditRun:
    """Running audit: its inputs, the results so far, and a method for each stage.

    Args:
        model: The model.
        images: Images (N, C, H, W).
        labels: Labels of the images, or None.
        settings: Settings of the audit.
        progress: Function that is called with the name of the stage, the number of finished
            entries, the total number of entries, and the estimated number of seconds left.
        checkpoint: Folder for the state of interrupted measurements, or None.
        class_names: Name of each class, or None.
        caveats: Reasons why the results could mislead. Stages append to this list.
        noise: Differences between repeated outputs of the model for the same images.
        responses: Errors and predictions of the model in each mode that was measured.
        metrics: Metrics in each mode that was measured.
        layers: Layers that break equivariance.
        protocols: Results of published protocols.
        examples: Images whose predictions change at most shifts.
        failures: Stages that failed.
    """

    model: Model
    images: Tensor
    labels: Tensor | None
    settings: AuditSettings
    progress: Progress | None
    checkpoint: Path | None
    class_names: Sequence[str] | None
    caveats: list[Caveat]
    noise: NoiseFloor | None = None
    responses: list[Responses] = field(default_factory=list)
    metrics: list[Metrics] = field(default_factory=list)
    layers: LayerFindings | None = None
    protocols: list[ProtocolResult] = field(default_factory=list)
    examples: list[ExampleImage] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.deadline = Deadline(self.settings.budget_seconds)
        self.sizes = (self.images.shape[2], self.images.shape[3])
        self.shifts = self.settings.shifts_for(self.sizes)
        self.few_images = self.images[:FEW_IMAGES].to(self.settings.device)

    def run_stage(
        self, name: str, stage: Callable[[], None], *, ignore_budget: bool = False
    ) -> BaseException | None:
        """Run a stage of the audit. If it raises an error, record the error instead of raising it.

        Once the time budget is spent, stages are skipped and recorded as failures. The first mode
        is always measured, so that every report has results.

        Args:
            name: Name of the stage in the report.
            stage: Function that runs the stage.
            ignore_budget: Whether to run the stage even if the time budget is spent.

        Returns:
            The error that the stage raised, or None.
        """
        if self.responses and not self.deadline.seconds_left and not ignore_budget:
            self.failures.append(Failure(name, "the time budget was spent"))
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

    def prepare_unshifted_images(self) -> Tensor:
        """Return the first 32 images as the model sees them at the zero shift.

        In the mode "canvas", for example, the model sees them on a larger canvas. If several modes
        are measured, the first one counts.
        """
        movement = self.settings.movement(self.settings.modes[0], self.sizes)
        return movement.move(movement.prepare_images(self.few_images), (0, 0))

    def run_required_stages(self) -> None:
        """Run the stages that every audit has.

        They measure randomness in the model and the effect of shifts in every mode, choose example
        images, and check whether the results are valid.

        Raises:
            ValueError: No mode could be measured. The message is the error message of the first
                mode.
        """
        # Results are invalid if two calls on the same images give different outputs.
        self.run_stage(NOISE, partial(self.measure_noise, precision=False))
        errors = [
            self.run_stage(f"mode {mode}", partial(self.measure_shift_mode, mode))
            for mode in self.settings.modes
        ]
        if not self.responses:
            raise ValueError(str(errors[0])) from errors[0]
        self.run_stage("examples", self.choose_examples)
        self.run_stage(VALIDITY, self.check_validity, ignore_budget=True)

    def run_optional_stages(self, *, is_interruptible: bool) -> None:
        """Run the optional stages that the settings request.

        They examine the layers, run a published protocol, and measure rounding errors.

        Args:
            is_interruptible: Whether a `KeyboardInterrupt` ends these stages and is recorded in the
                report. Otherwise the exception is raised.
        """
        settings = self.settings
        stages = {}
        if "layers" in settings.parts:
            stages["layers"] = self.examine_layers
        if settings.protocol is not None:
            stages[f"protocol {settings.protocol}"] = self.run_protocol
        if "noise" in settings.parts:
            stages["rounding errors"] = partial(self.measure_noise, precision=True)
        for index, (name, stage) in enumerate(stages.items()):
            if self.progress is not None:
                self.progress(name, index, len(stages), math.inf)
            try:
                self.run_stage(name, stage)
            except KeyboardInterrupt:
                if not is_interruptible:
                    raise
                self.failures += [Failure(left, "interrupted") for left in list(stages)[index:]]
                break

    def measure_noise(self, *, precision: bool) -> None:
        """Measure how much the model's output varies for the same images.

        Args:
            precision: Whether to measure rounding errors in addition to randomness.
        """
        self.noise = noise_floor(
            self.model,
            self.prepare_unshifted_images(),
            batch_size=self.settings.batch_size,
            precision=precision,
        )

    def measure_shift_mode(self, mode: str) -> None:
        """Evaluate the model on every image at every shift in one mode, and compute the metrics.

        If the model raises an error, the results at the shifts before the error are kept.
        """
        settings = self.settings
        # Divide the remaining time equally among the remaining modes.
        num_remaining = len(settings.modes) - settings.modes.index(mode)
        error = None
        try:
            responses = measure_responses(
                self.model,
                self.images,
                self.shifts,
                settings.movement(mode, self.sizes),
                labels=self.labels,
                output=settings.output,
                stride=settings.stride,
                batch_size=settings.batch_size,
                device=settings.device,
                budget_seconds=max(self.deadline.seconds_left / num_remaining, 1e-9),
                progress=None if self.progress is None else partial(self.progress, mode),
                checkpoint=self.checkpoint and self.checkpoint / f"{mode}.safetensors",
            )
        except ModelError as raised:
            responses = raised.responses
            error = raised
            if responses is None or not responses.complete[responses.zero]:
                raise
        self.responses.append(responses)
        self.metrics.append(summarize(responses, **settings.interval_options))
        if error is not None:
            raise error

    def examine_layers(self) -> None:
        """Locate the layers of the model that break equivariance."""
        model = unwrap_compiled(self.model)
        if not isinstance(model, torch.nn.Module):
            message = (
                "The layers were not compared, because the model is a function. Only the layers of "
                "a torch.nn.Module can be compared."
            )
            self.caveats.append(Caveat("layers not compared", "note", message))
            return
        # To save time, use only shifts along a single axis. They reveal the same layers.
        along_axes = [shift for shift in self.shifts if shift.count(0) == 1]
        mode = self.settings.modes[0]
        layers = locate_layers(
            model,
            self.few_images,
            along_axes or self.shifts,
            self.settings.movement(mode, self.sizes),
            layers=self.settings.layers,
        )
        # If the output is exact, later layers undo the errors of earlier ones, as after `teka fix`.
        if any(metrics.is_exact and metrics.movement.mode == mode for metrics in self.metrics):
            layers = replace(layers, breaks={})
        self.layers = layers
        strides = [layer.stride for layer in layers.findings if layer.grid and min(layer.grid) > 1]
        # The largest stride along each axis. Strides larger than the largest shift are ignored.
        stride = [
            max([1, *(int(sides[axis]) for sides in strides if sides[axis] <= most)])
            for axis, most in enumerate(self.settings.largest_steps(self.sizes))
        ]
        self.caveats += caveats.warn_about_missed_aliasing(self.shifts, stride)

    def run_protocol(self) -> None:
        """Run the published protocol that the settings request."""
        # A protocol may use so few images that the kind of the output would be ambiguous.
        settings = replace(self.settings, output=self.responses[0].output)
        assert settings.protocol is not None
        run = PROTOCOLS[settings.protocol]
        self.protocols.append(run(self.model, self.images, self.labels, settings))

    def choose_examples(self) -> None:
        """Choose the images whose predictions change at most shifts, separately for each mode."""
        for responses in self.responses:
            worst = find_least_consistent_images(responses, self.settings.num_examples)
            self.examples += create_examples(
                self.model, self.images, responses, worst, self.settings
            )

    def check_validity(self) -> None:
        """Check for conditions that make the results invalid or misleading, and add caveats."""
        settings = self.settings
        responses = self.responses[0]
        noise = 0.0 if self.noise is None else self.noise.repeat
        warnings = self.caveats
        warnings += caveats.warn_about_nondeterminism(noise)
        warnings += caveats.warn_about_few_images(responses.num_images, settings.confidence)
        module = find_owning_module(self.model)
        if module is not None:
            warnings += caveats.warn_about_random_features(module)
        if self.labels is not None:
            warnings += caveats.warn_about_unused_labels(responses)
        # Checks that call the model come last, because an error of the model ends this stage.
        images = self.prepare_unshifted_images()
        where = "on images that are not moved"
        outputs = evaluate_in_batches(self.model, images, where, settings.batch_size)
        # List a caveat only once, even if it applies to several modes.
        by_name = {}
        for each in self.responses:
            for caveat in (
                *caveats.warn_about_equal_predictions(each, outputs, self.class_names),
                *caveats.warn_about_chance_accuracy(each),
                *caveats.warn_about_fill_value(self.images, each.movement),
            ):
                by_name.setdefault(caveat.name, caveat)
        warnings += by_name.values()
        if settings.output == "auto":
            warnings += caveats.warn_about_guessed_kind(responses, outputs)
        if responses.predictions is None:
            warnings += caveats.warn_about_constant_output(
                images, outputs, responses.output, self.class_names
            )
        warnings += caveats.warn_about_batch_dependence(self.model, images, noise)


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
    """Measure how the output of a model changes when its images are shifted.

    The report contains the accuracy and the consistency at each shift, the layers that break
    equivariance, and reasons why the results could be misleading. A module is audited in evaluation
    mode, and its previous mode is restored afterwards. If a stage of the audit fails, the report
    contains its error, and the other stages still run.

    >>> import torch, teka
    >>> model = torch.nn.Sequential(
    ...     torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4)
    ... )
    >>> settings = teka.audit.AuditSettings(shifts=[(0, 1), (1, 0)], parts=())
    >>> report = teka.audit.audit(model, torch.rand(20, 3, 8, 8), settings=settings)
    >>> report.number("consistency")
    1.0

    Args:
        model: Function or module that takes images (B, C, H, W). It returns logits, probabilities,
            classes, features, maps or boxes, or an object with a field that contains one of these;
            see `measure_responses`. In mode "canvas" the model must accept images of the size of
            the canvas, and in mode "crop" images of the size of the window. Layers are examined
            only if the model is a `torch.nn.Module`.
        images: Floating-point images (N, C, H, W) in the format that the model expects. For modes
            that fill pixels with a background, pass images before normalization, and make the
            normalization part of the model.
        labels: Classes (N,) as integers from 0, multi-label targets (N, K) of 0 and 1, or None.
        settings: Settings of the audit. By default `AuditSettings()`.
        shifts: Shifts that replace those in `settings`.
        name: Name of the model. By default the name of its class.
        class_names: Name of each class.
        model_facts: Other facts about the model for the report.
        data_facts: Other facts about the images for the report, such as the name of the data set.
        caveats: Caveats that the report lists in addition to those that the audit finds.
        checkpoint: Folder for the state of interrupted measurements, or None. A measurement is
            resumed if the folder contains its state. A missing folder is created.
        progress: Function that is called with the name of the stage, the number of finished
            entries, the total number of entries, and the estimated number of seconds left.
        on_result: Function that is called with a report of the main results, before the optional
            stages: layers, published protocols and numerical precision. A `KeyboardInterrupt`
            during these stages only ends them, and the report of all other results is returned.
        command: Command that is recorded in the report.

    Raises:
        ValueError: The images or labels have a wrong shape or type, there are no images, or no mode
            could be measured. In the last case, the message is the error message of the first mode.
    """
    check_callable("model", model)
    for argument, value, kind in (
        ("settings", settings, AuditSettings),
        ("name", name, str),
        ("command", command, str),
        ("model_facts", model_facts, dict),
        ("data_facts", data_facts, dict),
    ):
        if value is not None:
            check_instance(argument, value, kind)
    settings = settings or AuditSettings()
    if shifts is not None:
        settings = replace(settings, shifts=shifts)
    _check_images_and_labels(images, labels, class_names)
    caveats = check_instances("caveats", caveats, Caveat, "a list of caveats")
    for argument, function in (("progress", progress), ("on_result", on_result)):
        if function is not None:
            check_callable(argument, function)
    if checkpoint is not None:
        checkpoint = check_folder_is_writable("checkpoint", checkpoint)
    _check_layer_names(model, settings)
    run = AuditRun(model, images, labels, settings, progress, checkpoint, class_names, caveats)
    module = find_owning_module(model)
    if module is not None:
        run.caveats += warn_about_training_mode(module)
    model_class = type(module or model).__name__
    facts = {
        "kind": model_class,
        "parameters": None if module is None else sum(map(torch.numel, module.parameters())),
        "weights_sha256": weights_hash(model),
        **(model_facts or {}),
    }
    data = {
        "num_images": len(images),
        "used": format_count(len(images), "image"),
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
            settings=settings.to_dict(run.sizes),
            metrics=tuple(run.metrics),
            noise_floor=run.noise,
            layers=run.layers,
            protocols=tuple(run.protocols),
            caveats=tuple(dict.fromkeys(run.caveats)),
            failures=tuple(run.failures),
            examples=tuple(run.examples),
            verdict=(),
            provenance={**gather_provenance(command), "seconds": round(run.deadline.seconds, 2)},
            responses=tuple(map(PackedResponses.pack, run.responses)),
        )
        return replace(report, verdict=verdict(report))

    with evaluation_mode(module):
        run.run_required_stages()
        if on_result is not None:
            on_result(make_report())
        run.run_optional_stages(is_interruptible=on_result is not None)
    return make_report()


def _check_layer_names(model: object, settings: AuditSettings) -> None:
    """Raise an error if the settings name layers that the model lacks, before the audit starts."""
    if settings.layers is None or "layers" not in settings.parts:
        return
    module = unwrap_compiled(model)
    if not isinstance(module, torch.nn.Module):
        hint = f"The model is a {type(module).__name__} and not a module."
        raise wrong_value("layers", list(settings.layers), "None", hint)
    check_names("layers", settings.layers, [name for name, _ in module.named_modules() if name])


def _check_images_and_labels(
    images: Tensor, labels: Tensor | None, class_names: Sequence[str] | None
) -> None:
    check_dense_tensor("images", images, "images", "channels", "height", "width")
    if not images.isfinite().all():
        raise wrong_argument("images", "NaN or infinity", "finite values")
    if labels is not None:
        labels = parse_labels(labels, len(images))
    if class_names is None:
        return
    num_classes = len(check_names("class_names", class_names))
    if labels is not None and labels.ndim == 1 and int(labels.max()) >= num_classes:
        expected = f"classes from 0 to {num_classes - 1}, as class_names has"
        raise wrong_value("labels", int(labels.max()), expected)
