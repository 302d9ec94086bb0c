"""Localization of the layer that breaks equivariance, by comparing shifted and unshifted images."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit.layers.fixes import FIXES, find_fixes
from teka.audit.layers.layouts import absolute_embeddings, class_tokens
from teka.audit.layers.shift_errors import NOISE_FACTOR, LayerErrors, ShiftErrors
from teka.audit.layers.trace import CallTracer, ModelTrace, TraceEvent, call_name, trace_batch
from teka.audit.model_call import Model, check_evaluation_mode
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShifts, Shift, SubpixelShift
from teka.checks import (
    check_callable,
    check_dense,
    check_instance,
    check_module,
    check_names,
    check_number,
    check_sizes,
    check_tensor,
)
from teka.errors import wrong_value

# Equivariance is lost inside the image, at its edge, or between the cells of a grid.
BREAKS = ("interior", "edge", "aliasing")
# A module is not a jump of its own if one of its parts has at least this share of its increase.
EXPLAINED_SHARE = 0.5
# Images per batch. More images share the cost of the unshifted ones.
IMAGES_AT_ONCE = 8
# Largest fraction of the image's shorter side that is overwritten to find the effect of the edge.
WIDEST_EDGE = 0.25
# Default threshold, and minimum threshold in roundings of the coarsest dtype of the layers.
THRESHOLD = 1e-4
THRESHOLD_ROUNDINGS = 4
# A module that returns a part's output is listed too if it adds this multiple of the part's error.
PART_FACTOR = 2.0
ByIndex = Mapping[int, LayerErrors]


@dataclass(frozen=True)
class LayerBreak:
    """First layer in the order of execution whose error of one kind is above its limit.

    Args:
        kind: Kind of break, of `BREAKS`. If the edge affects all cells, it is the likelier kind.
        name: Name of the innermost module in which equivariance breaks.
        module: Class of this module.
        error: Relative error at the worst shift.
        limit: Largest error of an equivariant layer.
        has_interior: Whether there are cells that the edge does not affect.
        between: The modules before and after the break, if it is in the code of the module itself.
    """

    kind: str
    name: str
    module: str
    error: float
    limit: int | float
    has_interior: bool = True
    between: tuple[str, str] | None = None


@dataclass(frozen=True)
class LayerFinding:
    """Equivariance errors of one layer, relative to the norm of its output.

    Errors are those of the worst shift by a multiple of the layer's stride. An error is None if no
    cell could be compared.

    Args:
        name: Name of the module, with the index of the call from the second on: "relu (call 2)".
        kind: Class of the module.
        layout: Name of the layout, of `teka.audit.layers.layouts.Layout`.
        grid: Number of cells along each axis; () for a vector.
        stride: Pixels per cell. For a vector, that of the coarsest earlier layer.
        prefix_tokens: Number of tokens before the grid, such as a class token.
        interior_error: Error of the cells that the edge of the image cannot affect.
        border_error: Error of the other cells, or None without an interior.
        aliasing_error: Error at shifts that are not multiples of the stride, relative to the best
            neighboring multiple.
        noise: Difference of the outputs for two copies of the same images.
        added: Increase of `error` over that of the layer's input at the same shifts.
        error: Error of all cells whose content was inside the image.
        border: Number of cells that the edge can affect, before and after along each axis.
        exact_step: For each axis, the smallest step in pixels whose multiples all have errors
            below the threshold.
        errors: Error at each shift, of the interior if there is one.
    """

    name: str
    kind: str
    layout: str
    grid: tuple[int, ...]
    stride: tuple[int | float, ...]
    prefix_tokens: int
    interior_error: float | None
    border_error: float | None
    aliasing_error: float | None
    noise: float
    added: float | None
    error: float | None = None
    border: tuple[tuple[int, int], ...] = ()
    exact_step: tuple[int | None, ...] = ()
    errors: tuple[float | None, ...] = ()

    def limit(self, threshold: int | float) -> float:
        """Return the largest error of an equivariant layer: threshold or 10 times the noise."""
        return max(threshold, NOISE_FACTOR * self.noise)

    def is_undecided(self, threshold: int | float) -> bool:
        """Return True if the largest error is above the threshold, but may be noise."""
        errors = (self.interior_error, self.border_error, self.aliasing_error, self.error)
        largest = max((error for error in errors if error is not None), default=0.0)
        return threshold < largest <= self.limit(threshold)


@dataclass(frozen=True)
class LayerFindings:
    """Equivariance errors of all layers, and the layers that break equivariance first.

    Args:
        findings: Errors of the layers, in the order in which they finished.
        first_break: Name of the first module that breaks equivariance inside the image, or None.
        threshold: Largest error of an equivariant layer.
        absolute_embeddings: Names of parameters, buffers and modules with absolute positions.
        class_tokens: Names of parameters with class tokens.
        skipped: Modules that could not be compared, with the reason.
        max_shift: Largest step along an axis in pixels.
        breaks: First layer of each kind of break, by the names in `BREAKS`.
        flattened: Modules that read a flattened map, with separate weights for each cell.
        shifts: The shifts without zero.
        movement: How the images were shifted.
        num_images: Number of images.
        seen_size: Spatial size of the model's input.
        fixes: For each fix, the layers it applies to, with why it is impossible or "".
    """

    findings: tuple[LayerFinding, ...]
    first_break: str | None
    threshold: int | float
    absolute_embeddings: tuple[str, ...]
    class_tokens: tuple[str, ...]
    skipped: dict[str, str]
    max_shift: int | float
    breaks: dict[str, LayerBreak] = field(default_factory=dict)
    flattened: tuple[str, ...] = ()
    shifts: CheckedShifts = ()
    movement: Movement | None = None
    num_images: int = 0
    seen_size: tuple[int, ...] = ()
    fixes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def advised(self) -> tuple[str, ...]:
        """Names of the recommended fixes, as `teka.convert.mend` takes them.

        A fix is recommended if it applies to a layer that breaks equivariance first.
        """
        wraps = self.movement is None or self.movement.wraps
        usual = [
            fix for fix in FIXES.values() if fix.wraps in (None, wraps) and fix.kind in self.breaks
        ]
        return tuple(
            fix.name
            for fix in usual
            if any(self._breaks_at(fix.kind, name) for name in self.mendable(fix.name))
        )

    @property
    def undecided(self) -> tuple[LayerFinding, ...]:
        """Layers whose error cannot be distinguished from noise."""
        return tuple(each for each in self.findings if each.is_undecided(self.threshold))

    def mendable(self, fix: str) -> tuple[str, ...]:
        """Return the names of the layers to which a fix can be applied."""
        return tuple(name for name, reason in self.fixes.get(fix, {}).items() if not reason)

    def _breaks_at(self, kind: str, name: str) -> bool:
        """Return True if a layer is the first break of a kind, or part of the breaking module."""
        module = self.breaks[kind].name.partition(" (call ")[0]
        around = kind == "interior" and (module == "(model)" or name.startswith(f"{module}."))
        return module == name or around

    def find(self, name: str) -> LayerFinding | None:
        """Return the finding of a layer by its name, or None."""
        return next((finding for finding in self.findings if finding.name == name), None)

    def biggest_jumps(self, count: int = 5) -> tuple[LayerFinding, ...]:
        """Return the layers that increase the error most, in descending order.

        A module is left out if one of its parts explains at least half of its increase.

        Args:
            count: Maximum number of layers.
        """
        rising = [
            each
            for each in self.findings
            if each.added is not None and each.added > each.limit(self.threshold)
        ]

        def explains(part: LayerFinding, whole: LayerFinding) -> bool:
            inside = part is not whole and (
                part.name.startswith(f"{whole.name}.") or whole.name == "(model)"
            )
            return inside and (part.added or 0.0) >= EXPLAINED_SHARE * (whole.added or 0.0)

        own = [each for each in rising if not any(explains(part, each) for part in rising)]
        return tuple(sorted(own, key=lambda each: -(each.added or 0.0))[:count])


def locate_layers(
    module: nn.Module,
    images: Float[Tensor, "batch channels height width"],
    shifts: Iterable[Shift | SubpixelShift],
    movement: Movement,
    *,
    function: Model | None = None,
    layers: Sequence[str] | None = None,
    threshold: int | float | None = None,
    num_images: int = 32,
    batch_size: int = 64,
) -> LayerFindings:
    """Find the layers that break shift equivariance.

    Every layer's output for shifted images is compared with its output for unshifted images,
    shifted by the corresponding number of cells. Forward hooks record inputs and outputs of all
    modules. Errors are those of the worst shift, over all images. A module that only passes on its
    input or the output of a part is not listed, unless `layers` names it. docs/audit_layers.md
    describes the layers that are recognized and compared.

    >>> import torch
    >>> from torch import nn
    >>> from teka.audit import Movement, axis_shifts, locate_layers
    >>> strided = nn.Conv2d(1, 4, 3, stride=2, padding=1)
    >>> model = nn.Sequential(strided, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    >>> images = torch.rand(20, 1, 8, 8)

    >>> layers = locate_layers(model, images, axis_shifts(2), Movement("circular"))
    >>> layers.breaks["aliasing"].name
    '0'

    Args:
        module: The model in evaluation mode, or the part of it to examine.
        images: Images (B, C, H, W).
        shifts: Shifts (dy, dx). Zero and fractional shifts are left out.
        movement: How the images are shifted.
        function: Function that runs the model on images, for example with normalization.
            Default: the module.
        layers: Names of the modules to examine. Default: all modules.
        threshold: Largest error of an equivariant layer. Default: 1e-4, or 4 roundings of the
            layers' dtype if that is larger.
        num_images: Maximum number of images, which are chosen evenly spaced.
        batch_size: Maximum number of images per forward pass, at least two.

    Raises:
        ValueError: The module is in training mode, a layer does not exist, there is no shift by
            whole pixels except zero, or another argument is invalid.
        ModelError: The model raised an error.
    """
    check_module("module", module)
    check_evaluation_mode("module", module)
    check_dense("images", images)
    check_tensor("images", images, "images", "channels", "height", "width")
    check_instance("movement", movement, Movement)
    if function is not None:
        check_callable("function", function)
    if movement.change is not None:
        raise wrong_value("movement.mode", movement.mode, "one that shifts images")
    if threshold is not None:
        check_number("threshold", threshold, "a positive number", low=0, exclude=(0,))
    check_sizes({"num_images": num_images, "batch_size": batch_size})
    # These modules are not called or do not support hooks.
    unseen = (nn.ModuleList, nn.ModuleDict, torch.jit.ScriptModule)
    parts = {name: part for name, part in module.named_modules() if not isinstance(part, unseen)}
    if layers is not None:
        layers = check_names("layers", layers, parts)
    followed = (
        parts if layers is None else {name: part for name, part in parts.items() if name in layers}
    )
    chosen = torch.linspace(0, len(images) - 1, min(num_images, len(images))).round().long()
    place = next(
        (tensor.device for tensor in (*module.parameters(), *module.buffers())), images.device
    )
    placed = movement.place(images[chosen].to(place))
    # For fractional shifts, the cells of the images themselves cannot be compared.
    checked = movement.check(placed, shifts)
    steps = tuple(shift for shift in checked if any(shift) and not any(step % 1 for step in shift))
    if not steps:
        raise wrong_value("shifts", shifts, "at least one nonzero shift by whole pixels")
    run = module if function is None else function
    still = movement.move(placed, (0, 0))
    survey = None
    width = 1
    # A strided layer may ignore the outermost pixels. Then overwrite more pixels to find the
    # effect of the edge.
    while survey is None or not (
        survey.feels_all_sides or width > min(still.shape[2:]) * WIDEST_EDGE
    ):
        survey = ModelTrace(min(len(still), IMAGES_AT_ONCE), (still.shape[2], still.shape[3]))
        with torch.no_grad(), CallTracer(run, followed, survey.see) as trace:
            trace.run(trace_batch(still[:IMAGES_AT_ONCE], width), "the images unshifted")
        width *= 2
    errors = ShiftErrors(survey, steps, movement.wraps)
    with torch.no_grad(), CallTracer(run, followed, errors.see) as trace:
        for images in placed.split(max(1, min(IMAGES_AT_ONCE, batch_size // 2))):
            room = max(1, batch_size // len(images) - 1)
            for first in range(0, len(steps), room):
                errors.chosen = range(first, min(first + room, len(steps)))
                here = steps[first : first + room]
                # Unshifted and shifted images share a batch, so that outputs need not be stored.
                batch = torch.cat([movement.move(images, step) for step in ((0, 0), *here)])
                trace.run(batch, f"shifts {', '.join(map(str, here))}")
    if threshold is None:
        threshold = max([THRESHOLD, *(THRESHOLD_ROUNDINGS * slot.epsilon for slot in survey.slots)])
    measured = errors.measured(threshold)
    breaks = _first_breaks(survey, measured, followed)
    always = {*(layers or ()), *(each.name for each in breaks.values())}
    absolute = absolute_embeddings(module, [slot.layout for slot in survey.slots])
    return LayerFindings(
        findings=_list_findings(survey.stops, measured, steps, always),
        first_break=breaks["interior"].name if "interior" in breaks else None,
        threshold=threshold,
        absolute_embeddings=absolute,
        class_tokens=class_tokens(module),
        skipped=_skipped(survey.stops, errors, followed),
        max_shift=max(abs(step) for shift in steps for step in shift),
        breaks=breaks,
        flattened=tuple(survey.flattened),
        shifts=steps,
        movement=movement,
        num_images=len(chosen),
        seen_size=survey.seen_size,
        fixes=find_fixes(module, followed, survey, absolute),
    )


def _first_breaks(
    survey: ModelTrace, measured: ByIndex, followed: Mapping[str, nn.Module]
) -> dict[str, LayerBreak]:
    """Return the first break of each kind.

    A tensor that no module returned is assigned to the module around the one that received it.
    """
    breaks: dict[str, LayerBreak] = {}
    before = "the images"
    for stop in survey.stops:
        numbers = None if stop.slot is None else measured.get(stop.slot)
        if numbers is None or not stop.is_new:
            continue
        visit, is_output = stop.visit, stop.visit.side == "output"
        here = call_name(visit.module, visit.call)
        reads_flattened = is_output and visit.module in survey.flattened
        within, at_edge = numbers.interior, numbers.border
        # If the edge affects every cell, the break counts as one at the edge only if it is the
        # first such break and the module pads.
        if not numbers.has_interior and ("edge" not in breaks or reads_flattened):
            if stop.pads_edge and is_output:
                at_edge = numbers.every
            else:
                within = numbers.every
        between_cells = numbers.aliasing if numbers.has_interior or not breaks else None
        for kind, error in (("interior", within), ("edge", at_edge), ("aliasing", between_cells)):
            # After a break inside the image, errors at the edge are a consequence.
            if (
                kind in breaks
                or (kind == "edge" and "interior" in breaks)
                or error is None
                or error <= numbers.limit
            ):
                continue
            # Without a module around it, use the module that received the tensor.
            module, call = (not is_output and visit.inside) or (visit.module, visit.call)
            where = call_name(module, call), type(followed[module]).__name__
            between = None if is_output else (before, here)
            breaks[kind] = LayerBreak(
                kind, *where, error, numbers.limit, numbers.has_interior, between
            )
        before = here
    return breaks


def _list_findings(
    stops: Sequence[TraceEvent], measured: ByIndex, steps: CheckedShifts, always: set[str]
) -> tuple[LayerFinding, ...]:
    """Return the findings to list.

    Listed are layers with a new tensor, layers that break equivariance or are in `always`, and
    layers that add far more error than their parts.
    """
    findings: list[LayerFinding] = []
    added: dict[str, float] = {}
    listed: set[int | None] = set()
    inputs: dict[tuple[str, int], int | None] = {}
    for stop in stops:
        module = stop.visit.module
        if stop.visit.side == "input":
            inputs[module, stop.visit.call] = stop.slot
            continue
        numbers = None if stop.slot is None else measured.get(stop.slot)
        if numbers is None:
            continue
        source = inputs[module, stop.visit.call]
        before = None if source is None else measured.get(source)
        finding = _finding(stop, numbers, before, steps)
        inside = f"{module}." if module else ""
        parts = [more for part, more in added.items() if part != module and part.startswith(inside)]
        increase = finding.added or 0.0
        adds_more = increase > max(numbers.limit, PART_FACTOR * max(parts, default=0.0))
        is_new = stop.slot != source and stop.slot not in listed
        if is_new or adds_more or module in always or finding.name in always:
            listed.add(stop.slot)
            added[module] = max(increase, added.get(module, 0.0))
            findings.append(finding)
    return tuple(findings)


def _finding(
    stop: TraceEvent, numbers: LayerErrors, before: LayerErrors | None, steps: CheckedShifts
) -> LayerFinding:
    layout = numbers.slot.layout
    return LayerFinding(
        name=call_name(stop.visit.module, stop.visit.call),
        kind=stop.kind,
        layout=layout.name,
        grid=layout.grid,
        stride=tuple(
            [int(step) if step.denominator == 1 else float(step) for step in layout.stride]
        ),
        prefix_tokens=layout.prefix_tokens,
        interior_error=numbers.interior,
        border_error=numbers.border,
        aliasing_error=numbers.aliasing,
        noise=numbers.slot.noise,
        added=None if before is None else numbers.added_to(before),
        error=numbers.every,
        border=numbers.slot.border,
        exact_step=tuple([numbers.exact_step(axis, steps) for axis in range(len(steps[0]))]),
        errors=tuple([None if error != error else error for error in numbers.counted.tolist()]),
    )


def _skipped(
    stops: Sequence[TraceEvent], errors: ShiftErrors, followed: Mapping[str, nn.Module]
) -> dict[str, str]:
    """Return the modules that could not be compared, with the reason."""
    reasons: dict[str, str | None] = {}
    for stop in stops:
        if stop.visit.side == "output":
            name = call_name(stop.visit.module, stop.visit.call)
            reasons[name] = stop.reason if stop.slot is None else errors.failed.get(stop.slot)
    called = {stop.visit.module for stop in stops}
    for name in followed:
        if name not in called:
            reasons[call_name(name, 1)] = "it was not called"
    return {name: reason for name, reason in reasons.items() if reason is not None}
