"""The parts of an audit: each is tried, and what fails is written down."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from teka.audit.caveats import (
    Caveat,
    batch_mates,
    chance,
    collapse,
    few_images,
    fill_value,
    non_determinism,
    phases_unseen,
    random_features,
)
from teka.audit.example import Example, make_examples, worst_images
from teka.audit.function import ModelError, module_of
from teka.audit.layers import LayerFindings, blame_layers
from teka.audit.measure.lie_derivative import LieDerivative, lie_derivative
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.measure.noise_floor import NoiseFloor, noise_floor
from teka.audit.measure.responses import Responses
from teka.audit.measure.sensitivity_map import SensitivityMap, sensitivity_map
from teka.audit.presets import PRESETS, PresetResult
from teka.audit.report import Failure
from teka.audit.settings import AuditSettings
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.phase import PhaseTable, best_stride, error_by_phase
from teka.audit.statistics.summarize import summarize
from teka.errors import FOREIGN, wrong_value

Progress = Callable[[str, int, int, float], None]
# What is differentiated, compared in double precision or looked into layer by layer, needs few images to be known.
FEW_IMAGES = 32
# Grids that are looked for in a model without layers to look into, in pixels.
STRIDES = (2, 3, 4, 7, 8, 14, 16, 32)


@dataclass
class AuditResults:
    """What the parts of an audit have found so far."""

    metrics: list[Metrics] = field(default_factory=list)
    responses: list[Responses] = field(default_factory=list)
    phases: dict[str, PhaseTable] = field(default_factory=dict)
    noise: NoiseFloor | None = None
    derivatives: list[LieDerivative] = field(default_factory=list)
    sensitivity: dict[str, SensitivityMap] = field(default_factory=dict)
    layers: LayerFindings | None = None
    presets: list[PresetResult] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


@dataclass
class AuditWork:
    """The parts of one audit, one after the other; what fails is written down, and costs only itself.

    Args:
        model: The model, in evaluation if it is a module.
        images: Images (N, C, H, W).
        labels: Their classes (N,), or None.
        settings: What to do.
        started: When the audit began, on the clock of `time.monotonic`.
        progress: Called with the name of a part, the entries done, their total and the seconds left.
        checkpoint: A folder for the state of the measurements, or None.
        results: What was found.
        stride: Pixels to a cell of the grid whose phases are told apart; found with the phases.
    """

    model: Callable[[Tensor], object]
    images: Tensor
    labels: Tensor | None
    settings: AuditSettings
    started: float
    progress: Progress | None
    checkpoint: Path | None
    results: AuditResults = field(default_factory=AuditResults)
    stride: tuple[int, ...] = (1, 1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Height and width of the images."""
        return tuple(self.images.shape[2:])

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the budget is spent; None without one."""
        budget = self.settings.budget_seconds
        return None if budget is None else budget - (time.monotonic() - self.started)

    def run(self) -> None:
        """Do every part that was asked for."""
        settings, few = self.settings, self.images[:FEW_IMAGES]
        self._attempt("noise", "noise floor", self._noise)
        first: BaseException | None = None
        for index, mode in enumerate(settings.modes):
            error = self._attempt(None, f"mode {mode}", lambda at=index, mode=mode: self._mode(at, mode))
            first = first or error
        if not self.results.metrics and first is not None:
            raise ValueError(str(first)) from first
        self._attempt("layers", "layers", lambda: self._layers(few))
        self._attempt(None, "phases", self._phases)
        if settings.preset is not None:
            self._attempt(None, f"preset {settings.preset}", self._preset)
        for axis, direction in enumerate(("dy", "dx")):
            self._attempt("derivative", f"derivative along {direction}", lambda axis=axis: self._derivative(few, axis))
        for mode in settings.modes:
            self._attempt("sensitivity", f"sensitivity in mode {mode}", lambda mode=mode: self._sensitivity(few, mode))
        self._attempt(None, "examples", self._examples)

    def caveats(self) -> list[Caveat]:
        """What could mislead, of what was measured and of the model and the images."""
        results, settings = self.results, self.settings
        repeat = 0.0 if results.noise is None else results.noise.repeat
        found = [*non_determinism(repeat), *few_images(len(self.images), settings.confidence)]
        module = module_of(self.model)
        if module is not None:
            found += random_features(module)
        few = self.images[:FEW_IMAGES]
        self._attempt(None, "batch mates", lambda: found.extend(batch_mates(self.model, self._unmoved(few), repeat)))
        for mode in settings.modes:
            found += fill_value(self.images, settings.movement(mode, self.sizes))
        for responses in results.responses[:1]:
            if responses.output == "logits":
                found += [*collapse(responses), *chance(responses)]
            found += phases_unseen(responses.shifts, self.stride)
        return list(dict.fromkeys(found))

    def _attempt(self, part: str | None, name: str, work: Callable[[], None]) -> BaseException | None:
        """Do a part, unless it was not asked for or time is up; what it raises is written down and given back."""
        if part is not None and part not in self.settings.parts:
            return None
        left = self.seconds_left
        if left is not None and left <= 0 and self.results.metrics:
            self.results.failures.append(Failure(name, "not done: the time budget was spent"))
            return None
        try:
            work()
        # A model may raise anything; one part's failure must not cost the others.
        except FOREIGN as error:
            self.results.failures.append(Failure(name, _in_words(error), "".join(traceback.format_exception(error))))
            return error
        return None

    def _report(self, part: str) -> Callable[[int, int, float], None] | None:
        if self.progress is None:
            return None
        return lambda done, total, left: self.progress(part, done, total, left)  # pyright: ignore[reportOptionalCall]

    def _noise(self) -> None:
        self.results.noise = noise_floor(
            self.model, self._unmoved(self.images[:FEW_IMAGES]), batch_size=self.settings.batch_size
        )

    def _unmoved(self, images: Tensor) -> Tensor:
        """What the model sees of images that are not moved, in the first mode."""
        movement = self.settings.movement(self.settings.modes[0], self.sizes)
        return movement.move(movement.place(images.to(self.settings.device)), (0, 0))

    def _mode(self, index: int, mode: str) -> None:
        settings, left = self.settings, self.seconds_left
        # The modes that are still to come get as much.
        budget = None if left is None else max(left / (len(settings.modes) - index), 1e-3)
        error = None
        try:
            responses = measure_responses(
                self.model,
                self.images,
                settings.shifts_for(self.sizes),
                settings.movement(mode, self.sizes),
                labels=self.labels,
                output=settings.output,
                stride=settings.stride,
                batch_size=settings.batch_size,
                device=settings.device,
                budget_seconds=budget,
                progress=self._report(mode),
                checkpoint=None if self.checkpoint is None else self.checkpoint / f"{mode}.safetensors",
            )
        except ModelError as raised:
            # What was measured before it happened is as good as any.
            if raised.responses is None or not raised.responses.complete[raised.responses.zero]:
                raise
            responses, error = raised.responses, raised
        metrics = summarize(
            responses, confidence=settings.confidence, num_resamples=settings.num_resamples, seed=settings.seed
        )
        self.results.responses.append(responses)
        self.results.metrics.append(metrics)
        if error is not None:
            raise error

    def _layers(self, few: Tensor) -> None:
        if not isinstance(self.model, torch.nn.Module):
            raise wrong_value("model", type(self.model).__name__, "a torch.nn.Module, to look into its layers")
        settings, shifts = self.settings, self.settings.shifts_for(self.sizes)
        # Along one axis at a time is enough to see a layer break, and every layer is compared at every shift.
        along = [shift for shift in shifts if sum(map(bool, shift)) == 1]
        movement = settings.movement(settings.modes[0], self.sizes)
        self.results.layers = blame_layers(
            self.model, few.to(settings.device), along or shifts, movement, layers=settings.layers
        )

    def _stride(self) -> tuple[int, ...]:
        """Pixels to a cell of the coarsest grid that some shift is a multiple of; without layers, what errors tell."""
        if self.results.layers is not None:
            grids = [one for one in self.results.layers.findings if one.grid and min(one.grid) > 1]
            reach = [max(abs(shift[axis]) for shift in self.settings.shifts_for(self.sizes)) for axis in (0, 1)]
            sides = [[int(one.stride[axis]) for one in grids if one.stride[axis] <= reach[axis]] for axis in (0, 1)]
            return tuple(max([1, *found]) for found in sides)
        responses = self.results.responses[0]
        if len(responses.take_complete().shifts) < 2:
            return (1, 1)
        number = "agreement" if responses.output == "logits" else "error"
        choice = best_stride(responses, STRIDES, number=number, seed=self.settings.seed)
        known = choice.stride is not None and choice.p_value < 1 - self.settings.confidence
        return (choice.stride if known and choice.stride else 1,) * 2

    def _phases(self) -> None:
        self.stride = stride = self._stride()
        if max(stride) > 1:
            for responses in self.results.responses:
                self.results.phases[responses.movement.mode] = error_by_phase(
                    responses,
                    stride,
                    confidence=self.settings.confidence,
                    num_resamples=self.settings.num_resamples,
                    seed=self.settings.seed,
                )

    def _preset(self) -> None:
        settings = self.settings
        self.results.presets.append(
            PRESETS[str(settings.preset)](
                self.model,
                self.images,
                self.labels,
                batch_size=settings.batch_size,
                seed=settings.seed,
                confidence=settings.confidence,
                device=settings.device,
            )
        )

    def _derivative(self, few: Tensor, axis: int) -> None:
        self.results.derivatives.append(
            lie_derivative(self.model, self._unmoved(few), axis=axis, batch_size=self.settings.batch_size)
        )

    def _sensitivity(self, few: Tensor, mode: str) -> None:
        settings = self.settings
        self.results.sensitivity[mode] = sensitivity_map(
            self.model,
            few.to(settings.device),
            settings.shifts_for(self.sizes),
            settings.movement(mode, self.sizes),
            batch_size=settings.batch_size,
        )

    def _examples(self) -> None:
        for responses in self.results.responses:
            self.results.examples += make_examples(
                self.model,
                self.images,
                responses,
                worst_images(responses, self.settings.num_examples),
                batch_size=self.settings.batch_size,
                device=self.settings.device,
            )


def _in_words(error: BaseException) -> str:
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
