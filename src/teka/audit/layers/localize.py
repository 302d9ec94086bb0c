"""Localization of the layer that breaks equivariance, by comparing shifted and unshifted images."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit.layers.fixes import FIXES, find_fixes
from teka.audit.layers.layouts import absolute_embeddings, class_tokens, declared_stride, pads_edge
from teka.audit.layers.shift_errors import NOISE_FACTOR, LayerErrors, ShiftErrors
from teka.audit.layers.trace import CallTracer, ModelTrace, TraceEvent, trace_batch
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
        cause: What breaks equivariance, such as "stride 2 without a low-pass filter", or "".
    """

    kind: str
    name: str
    module: str
    error: float
    limit: int | float
    has_interior: bool = True
    between: tuple[str, str] | None = None
    cause: str = ""


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
        """Names of the recommended fixes, as `teka.convert.fix` takes them.

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
    if threshold is not None:
        check_number("threshold", threshold, "a positive number", low=0, exclude=(0,))
    check_sizes({"num_images": num_images, "batch_size": batch_size})
    # These modules are not called or do not support hooks.
    uncalled = (nn.ModuleList, nn.ModuleDict, torch.jit.ScriptModule)
    modules = {
        name: part for name, part in module.named_modules() if not isinstance(part, uncalled)
    }
    if layers is not None:
        layers = check_names("layers", layers, modules)
        modules = {name: part for name, part in modules.items() if name in layers}
    chosen = torch.linspace(0, len(images) - 1, min(num_images, len(images))).round().long()
    tensors = (*module.parameters(), *module.buffers(), images)
    placed = movement.place(images[chosen].to(tensors[0].device))
    # For fractional shifts, the cells of the images themselves cannot be compared.
    checked = movement.check(placed, shifts)
    steps = tuple(shift for shift in checked if any(shift) and not any(step % 1 for step in shift))
    if not steps:
        raise wrong_value("shifts", shifts, "at least one nonzero shift by whole pixels")
    run = module if function is None else function
    with torch.no_grad():
        trace = _trace(run, modules, movement.move(placed[:IMAGES_AT_ONCE], (0, 0)))
        errors = _compare(run, modules, trace, placed, steps, movement, batch_size)
    if threshold is None:
        epsilon = max([tensor.epsilon for tensor in trace.tensors], default=0.0)
        threshold = max(THRESHOLD, THRESHOLD_ROUNDINGS * epsilon)
    measured = errors.measured(threshold)
    absolute = absolute_embeddings(module, [tensor.layout for tensor in trace.tensors])
    if layers is None:
        absolute = tuple(name for name in absolute if _is_used(name, trace))
    breaks = _first_breaks(trace, measured, modules, absolute)
    always = {*(layers or ()), *(layer.name for layer in breaks.values())}
    return LayerFindings(
        findings=_list_findings(trace.events, measured, steps, always),
        first_break=breaks["interior"].name if "interior" in breaks else None,
        threshold=threshold,
        absolute_embeddings=absolute,
        class_tokens=class_tokens(module),
        skipped=_skipped(trace.events, errors, modules),
        max_shift=max(abs(step) for shift in steps for step in shift),
        breaks=breaks,
        flattened=tuple(trace.flattened),
        shifts=steps,
        movement=movement,
        num_images=len(chosen),
        seen_size=trace.seen_size,
        fixes=find_fixes(module, modules, trace, absolute),
    )


def _is_used(name: str, trace: ModelTrace) -> bool:
    """Return True if the module that holds a tensor, or the module around it, was called."""
    holder = name.rpartition(".")[0]
    return any(event.call.module in (holder, holder.rpartition(".")[0]) for event in trace.events)


def _trace(run: Model, modules: Mapping[str, nn.Module], images: Tensor) -> ModelTrace:
    """Trace a forward pass on unshifted images."""
    size = (images.shape[2], images.shape[3])
    width = 1
    while True:
        trace = ModelTrace(len(images), size)
        with CallTracer(run, modules, trace.see) as tracer:
            tracer.run(trace_batch(images, width), "the images unshifted")
        # A strided layer may ignore the outermost pixels. Then overwrite more pixels to find the
        # effect of the edge.
        width *= 2
        if trace.feels_all_sides or width > WIDEST_EDGE * min(size):
            return trace


def _compare(
    run: Model,
    modules: Mapping[str, nn.Module],
    trace: ModelTrace,
    placed: Tensor,
    steps: CheckedShifts,
    movement: Movement,
    batch_size: int,
) -> ShiftErrors:
    """Compare all tensors for shifted images with those for unshifted images."""
    errors = ShiftErrors(trace, steps, movement.wraps)
    with CallTracer(run, modules, errors.see) as tracer:
        for images in placed.split(max(1, min(IMAGES_AT_ONCE, batch_size // 2))):
            num_shifts = max(1, batch_size // len(images) - 1)
            for first in range(0, len(steps), num_shifts):
                shifts = steps[first : first + num_shifts]
                errors.chosen = range(first, first + len(shifts))
                # Unshifted and shifted images share a batch, so that outputs need not be stored.
                batch = torch.cat([movement.move(images, step) for step in ((0, 0), *shifts)])
                tracer.run(batch, f"shifts {', '.join(map(str, shifts))}")
    return errors


def _first_breaks(
    trace: ModelTrace, measured: ByIndex, modules: Mapping[str, nn.Module], absolute: Sequence[str]
) -> dict[str, LayerBreak]:
    """Return the first break of each kind.

    A tensor that no module returned is assigned to the module around the one that received it.
    """
    breaks: dict[str, LayerBreak] = {}
    before = "the images"
    for event in trace.events:
        errors = None if event.tensor is None else measured.get(event.tensor)
        if errors is None or not event.is_new:
            continue
        call, is_output = event.call, event.call.side == "output"
        reads_flattened = is_output and call.module in trace.flattened
        interior, edge, aliasing = errors.interior, errors.border, errors.aliasing
        if not errors.has_interior:
            # If the edge affects every cell, the break counts as one at the edge only if it is the
            # first such break and the module pads.
            if "edge" not in breaks or reads_flattened:
                if is_output and pads_edge(event.module):
                    edge = errors.every
                else:
                    interior = errors.every
            aliasing = None if breaks else aliasing
        for kind, error in (("interior", interior), ("edge", edge), ("aliasing", aliasing)):
            # After a break inside the image, errors at the edge are a consequence.
            is_consequence = kind == "edge" and "interior" in breaks
            if kind in breaks or is_consequence or error is None or error <= errors.limit:
                continue
            # Without a module around it, use the module that received the tensor.
            owner = call if is_output else call.inside or call
            module = modules[owner.module]
            breaks[kind] = LayerBreak(
                kind,
                owner.name,
                type(module).__name__,
                error,
                errors.limit,
                errors.has_interior,
                None if is_output else (before, call.name),
                _find_cause(kind, owner.module, module, reads_flattened, absolute),
            )
        before = call.name
    return breaks


def _find_cause(
    kind: str, name: str, module: nn.Module, reads_flattened: bool, absolute: Sequence[str]
) -> str:
    """Describe what breaks equivariance in a module, or return "" if it is unknown."""
    if kind == "aliasing":
        stride = max(declared_stride(module) or (1,))
        return f"stride {stride} without a low-pass filter" if stride > 1 else ""
    if kind == "edge":
        mode = getattr(module, "padding_mode", "zeros")
        padding = "zero" if mode == "zeros" else mode
        return f"{padding} padding" if pads_edge(module) else ""
    if reads_flattened:
        return "separate weights for each position"
    is_added = any(holder.rpartition(".")[0] == name or holder == name for holder in absolute)
    return "absolute position embeddings" if is_added else ""


def _list_findings(
    events: Sequence[TraceEvent], measured: ByIndex, steps: CheckedShifts, always: set[str]
) -> tuple[LayerFinding, ...]:
    """Return the findings to list.

    Listed are layers with a new tensor, layers that break equivariance or are in `always`, and
    layers that add far more error than their parts.
    """
    findings: list[LayerFinding] = []
    added: dict[str, float] = {}
    listed: set[int | None] = set()
    inputs: dict[str, int | None] = {}
    for event in events:
        module = event.call.module
        if event.call.side == "input":
            inputs[module] = event.tensor
            continue
        errors = None if event.tensor is None else measured.get(event.tensor)
        if errors is None:
            continue
        source = inputs[module]
        before = None if source is None else measured.get(source)
        finding = _finding(event, errors, before, steps)
        inside = f"{module}." if module else ""
        parts = [more for part, more in added.items() if part != module and part.startswith(inside)]
        increase = finding.added or 0.0
        adds_more = increase > max(errors.limit, PART_FACTOR * max(parts, default=0.0))
        is_new = event.tensor != source and event.tensor not in listed
        if is_new or adds_more or module in always or finding.name in always:
            listed.add(event.tensor)
            added[module] = max(increase, added.get(module, 0.0))
            findings.append(finding)
    return tuple(findings)


def _finding(
    event: TraceEvent, errors: LayerErrors, before: LayerErrors | None, steps: CheckedShifts
) -> LayerFinding:
    layout = errors.tensor.layout
    return LayerFinding(
        name=event.call.name,
        kind=type(event.module).__name__,
        layout=layout.name,
        grid=layout.grid,
        stride=tuple([int(x) if x.denominator == 1 else float(x) for x in layout.stride]),
        prefix_tokens=layout.prefix_tokens,
        interior_error=errors.interior,
        border_error=errors.border,
        aliasing_error=errors.aliasing,
        noise=errors.tensor.noise,
        added=None if before is None else errors.added_to(before),
        error=errors.every,
        border=errors.tensor.border,
        exact_step=tuple([errors.exact_step(axis, steps) for axis in range(2)]),
        errors=tuple([None if math.isnan(x) else x for x in errors.counted.tolist()]),
    )


def _skipped(
    events: Sequence[TraceEvent], errors: ShiftErrors, modules: Mapping[str, nn.Module]
) -> dict[str, str]:
    """Return the modules that could not be compared, with the reason."""
    called = {event.call.module for event in events}
    reasons = {}
    for event in events:
        reason = event.reason if event.tensor is None else errors.failed.get(event.tensor)
        if event.call.side == "output" and reason is not None:
            reasons[event.call.name] = reason
    uncalled = [name or "(model)" for name in modules if name not in called]
    return reasons | dict.fromkeys(uncalled, "it was not called")
