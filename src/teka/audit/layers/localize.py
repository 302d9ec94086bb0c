"""Search for the layers of a model that break shift equivariance.

The search compares the output of every layer for shifted images with its moved output for the
unshifted images.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from teka.audit.layers.fixes import FIXES, find_fixes
from teka.audit.layers.layouts import (
    declared_stride,
    find_absolute_embeddings,
    has_noncircular_padding,
)
from teka.audit.layers.shift_errors import ErrorsByTensor, measure_equivariance_errors
from teka.audit.layers.trace import ModelTrace, TraceEvent, trace_model
from teka.audit.movement import Movement, RealImages
from teka.audit.shifts import CheckedShifts, Shift, SubpixelShift
from teka.checks import (
    check_dense_tensor,
    check_evaluation_mode,
    check_instance,
    check_module,
    check_names,
    check_sizes,
)
from teka.errors import wrong_value

# Kinds of break: inside the image, at its edge, or only at shifts that are not multiples of the
# layer's stride.
BREAKS = ("interior", "edge", "aliasing")
# `largest_increases` leaves out a module if a submodule causes at least this share of its increase.
EXPLAINED_SHARE = 0.5
NUM_IMAGES = 32  # maximum number of images
TRACED_IMAGES = 4
# Largest relative error of an equivariant layer. For dtypes of low precision, it is at least this
# multiple of their machine epsilon.
THRESHOLD = 1e-4
THRESHOLD_ROUNDINGS = 4
# A layer breaks equivariance if its error is above this multiple of its noise.
NOISE_FACTOR = 10.0


def error_limit(threshold: float, noise: float) -> float:
    """Return the largest error that an equivariant layer may have, given its noise.

    Args:
        threshold: Limit for a layer without noise.
        noise: Relative difference of the layer's outputs for two copies of the same images.
    """
    return max(threshold, NOISE_FACTOR * noise)


def is_submodule(name: str, parent: str) -> bool:
    """Return True if the layer `name` is inside the layer `parent`, according to their names."""
    return name.startswith(f"{parent}.") or (parent == "(model)" != name)


@dataclass(frozen=True)
class LayerBreak:
    """First layer that breaks equivariance inside the image, at its edge, or because of aliasing.

    Args:
        kind: Kind of break, one of `BREAKS`. If the edge affects all cells, "interior" and "edge"
            cannot be distinguished, and this is the likelier kind.
        name: Name of the innermost module in which equivariance breaks.
        module: Class of this module.
        error: Relative error at the worst shift.
        limit: Largest error that an equivariant layer with this noise may have.
        between: Names of the submodules before and after the break, if the code of the module
            itself breaks equivariance.
        cause: What breaks equivariance, such as "stride 2 without a low-pass filter", or "".
    """

    kind: str
    name: str
    module: str
    error: float
    limit: int | float
    between: tuple[str, str] | None = None
    cause: str = ""


@dataclass(frozen=True)
class LayerFinding:
    """Equivariance errors of one layer, with a description of its output.

    Errors are relative to the norm of the output. Unless stated otherwise, an error is the largest
    over all shifts by multiples of the layer's stride, or None if it could not be measured.

    Args:
        name: Name of the module, or for example "relu (call 2)" for the second call of a module.
        kind: Class of the module.
        layout: Name of the output's layout, see `teka.audit.layers.layouts.Layout`.
        grid: Number of cells of the output along each axis, or () for a vector.
        stride: Pixels per cell. For a vector, that of the coarsest earlier layer.
        prefix_tokens: Number of tokens before the grid, such as a class token.
        interior_error: Error of the cells that the edge of the image cannot affect, or None if it
            affects all cells.
        border_error: Error of the other cells, or None if the edge affects all cells.
        aliasing_error: Error at shifts that are not multiples of the stride, relative to the best
            neighboring multiple.
        noise: Relative difference of the outputs for two copies of the same images.
        added: Difference between `error` and the error of the layer's input at the same shifts.
        error: Error of all cells whose content was inside the image before the shift.
        border: Number of cells that the edge can affect, before and after along each axis.
        errors: Error at each shift, of the interior if there is one.
    """

    name: str
    kind: str
    layout: str
    grid: tuple[int, ...]
    stride: tuple[float, ...]
    prefix_tokens: int
    interior_error: float | None
    border_error: float | None
    aliasing_error: float | None
    noise: float
    added: float | None
    error: float | None = None
    border: tuple[tuple[int, int], ...] = ()
    errors: tuple[float | None, ...] = ()

    def is_undecided(self, threshold: int | float) -> bool:
        """Return True if noise may be the only reason why an error is above the threshold."""
        errors = (self.interior_error, self.border_error, self.aliasing_error, self.error)
        largest = max((error for error in errors if error is not None), default=0.0)
        return threshold < largest <= error_limit(threshold, self.noise)


@dataclass(frozen=True)
class LayerFindings:
    """Equivariance errors of all layers of a model, and the first layers that break equivariance.

    Args:
        findings: Errors of each layer, in the order in which the layers finished.
        threshold: Largest error of an equivariant layer without noise.
        absolute_embeddings: Names of parameters, buffers and modules with absolute positions.
        skipped: For each module that could not be compared, the reason.
        breaks: First layer for each kind of break: "interior", "edge" and "aliasing". An audit
            leaves them out if no shift changes the output of the model, because then the layers
            compensate for each other.
        shifts: The shifts in pixels, without the zero shift.
        movement: How the images were shifted.
        num_images: Number of images.
        seen_size: Spatial size of the model's input.
        fixes: For each fix and each layer, why the fix cannot be applied, or "" if it can.
    """

    findings: tuple[LayerFinding, ...]
    threshold: int | float
    absolute_embeddings: tuple[str, ...]
    skipped: dict[str, str]
    breaks: dict[str, LayerBreak] = field(default_factory=dict)
    shifts: CheckedShifts = ()
    movement: Movement | None = None
    num_images: int = 0
    seen_size: tuple[int, ...] = ()
    fixes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def first_break(self) -> str | None:
        """Name of the first module that breaks equivariance inside the image, or None."""
        layer = self.breaks.get("interior")
        return layer and layer.name

    @property
    def max_shift(self) -> int | float:
        """Largest shift along any axis in pixels."""
        return max([abs(step) for shift in self.shifts for step in shift], default=0)

    @property
    def recommended_fixes(self) -> tuple[str, ...]:
        """Names of the fixes that `teka.convert.fix` applies by default.

        A fix is recommended if it can change one of the first layers that break equivariance, and
        if it suits the way in which the images were shifted.
        """
        wraps = self.movement is None or self.movement.wraps
        recommended = []
        for fix_name, fix in FIXES.items():
            layer, names = self.breaks.get(fix.kind), self.fixable(fix_name)
            if layer is None or fix.wraps not in (None, wraps):
                continue
            module = layer.name.partition(" (call ")[0]
            # The positions may belong to a submodule of the module that adds them.
            has_part = fix.kind == "interior" and any(is_submodule(name, module) for name in names)
            if module in names or has_part:
                recommended.append(fix_name)
        return tuple(recommended)

    @property
    def undecided(self) -> tuple[LayerFinding, ...]:
        """Layers whose error is above the threshold, but may be caused by noise in the model."""
        return tuple(each for each in self.findings if each.is_undecided(self.threshold))

    def fixable(self, fix: str) -> tuple[str, ...]:
        """Return the names of the layers that a fix can change.

        Args:
            fix: Name of the fix, such as "blur".
        """
        return tuple(name for name, reason in self.fixes.get(fix, {}).items() if not reason)

    def largest_increases(self, count: int = 5) -> tuple[LayerFinding, ...]:
        """Return the layers whose error exceeds that of their input most, the largest first.

        A module is left out if one of its submodules adds at least half as much error.

        Args:
            count: Maximum number of layers.
        """
        added = {
            layer: layer.added
            for layer in self.findings
            if layer.added and layer.added > error_limit(self.threshold, layer.noise)
        }
        largest = []
        for layer in sorted(added, key=added.__getitem__, reverse=True):
            parts = [added[part] for part in added if is_submodule(part.name, layer.name)]
            if max(parts, default=0.0) < EXPLAINED_SHARE * added[layer]:
                largest.append(layer)
        return tuple(largest[:count])


def locate_layers(
    module: nn.Module,
    images: RealImages,
    shifts: Iterable[Shift | SubpixelShift],
    movement: Movement,
    *,
    layers: Sequence[str] | None = None,
    batch_size: int = 64,
) -> LayerFindings:
    """Find the layers of a model that break shift equivariance.

    If the image moves, the output of an equivariant layer moves with it. So the output of each
    layer for shifted images is compared with its output for unshifted images, moved in the same
    way. The error of a layer is relative to the norm of its output, computed over all images, at
    the worst shift. A layer breaks equivariance if its error is above 1e-4 and above 10 times the
    noise, which is the difference between two copies of the same images.

    In half precision, the limit of 1e-4 is replaced by 4 times the machine epsilon. A module that
    only returns its input or the output of a submodule is not listed, unless `layers` names it. The
    page docs/audit_layers.md describes which layers can be compared.

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
        module: Model in evaluation mode, or a part of it. Forward hooks record its tensors.
        images: Images (B, C, H, W). At most 32 are used, evenly spaced.
        shifts: Shifts (dy, dx) in pixels. Zero and fractional shifts are left out.
        movement: How the images are shifted.
        layers: Names of the modules to examine. Default: all modules.
        batch_size: Maximum number of images per forward pass, at least two.

    Raises:
        ValueError: The module is in training mode, a layer does not exist, there is no shift by
            whole pixels except zero, or another argument is invalid.
        ModelError: The model raised an error.
    """
    check_module("module", module)
    check_evaluation_mode("module", module)
    check_dense_tensor("images", images, "images", "channels", "height", "width")
    check_instance("movement", movement, Movement)
    check_sizes({"batch_size": batch_size})
    # These modules are not called or do not support hooks.
    uncalled = (nn.ModuleList, nn.ModuleDict, torch.jit.ScriptModule)
    modules = {
        name: part for name, part in module.named_modules() if not isinstance(part, uncalled)
    }
    if layers is not None:
        layers = check_names("layers", layers, modules)
        modules = {name: part for name, part in modules.items() if name in layers}
    chosen = torch.linspace(0, len(images) - 1, min(NUM_IMAGES, len(images))).round().long()
    tensors = (*module.parameters(), *module.buffers(), images)
    prepared = movement.prepare_images(images[chosen].to(tensors[0].device))
    # A fractional shift already interpolates the images, so their pixels cannot be compared.
    steps = tuple(
        shift
        for shift in movement.parse_shifts(prepared, shifts)
        if any(shift) and not any(step % 1 for step in shift)
    )
    if not steps:
        raise wrong_value("shifts", shifts, "at least one nonzero shift by whole pixels")
    with torch.no_grad():
        trace = trace_model(module, modules, movement.move(prepared[:TRACED_IMAGES], (0, 0)))
        errors = measure_equivariance_errors(module, trace, prepared, steps, movement, batch_size)
    epsilon = max([tensor.epsilon for tensor in trace.tensors], default=0.0)
    threshold = max(THRESHOLD, THRESHOLD_ROUNDINGS * epsilon)
    absolute = find_absolute_embeddings(module, trace.grids)
    if layers is None:
        # Leave out embeddings if neither their module nor its parent was called.
        called = {event.module_name for event in trace.events}
        absolute = tuple(
            name for name in absolute if {_parent(name), _parent(_parent(name))} & called
        )
    breaks = _find_first_breaks(trace, errors, threshold, absolute)
    always_listed = {*(layers or ()), *(layer.name for layer in breaks.values())}
    return LayerFindings(
        findings=_collect_findings(trace, errors, always_listed),
        threshold=threshold,
        absolute_embeddings=absolute,
        skipped=_explain_skipped(trace),
        breaks=breaks,
        shifts=steps,
        movement=movement,
        num_images=len(chosen),
        seen_size=trace.seen_size,
        fixes=find_fixes(module, trace, absolute),
    )


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _is_flattened_head(event: TraceEvent) -> bool:
    """Return True if a layer with weights, such as nn.Linear, turned a flattened map into a vector.

    Such a layer has separate weights for each position, so it breaks equivariance.
    """
    layouts = [tensor and tensor.layout.name for tensor in (event.input_tensor, event.tensor)]
    has_weights = any(True for _ in event.module.parameters(recurse=False))
    return has_weights and layouts == ["flattened", "vector"]


def _find_first_breaks(
    trace: ModelTrace, errors_by_tensor: ErrorsByTensor, threshold: float, absolute: Sequence[str]
) -> dict[str, LayerBreak]:
    """Find the first layer that breaks equivariance, separately for each kind of break.

    A tensor that a module receives, but that no other module returned, was computed by the code of
    the calling module. A break in such a tensor is attributed to the calling module.
    """
    breaks = {}
    before = "the images"
    for event in trace.events:
        tensor = event.tensor
        errors = errors_by_tensor.get(tensor)
        if tensor is None or errors is None or not event.is_new:
            continue
        limit = error_limit(threshold, tensor.noise)
        by_kind = dict(zip(BREAKS, (errors.interior, errors.border, errors.aliasing), strict=True))
        if not errors.has_interior:
            # If the edge affects every cell, a break is attributed to the edge only if it is the
            # first break at the edge and the module pads.
            if "edge" not in breaks or _is_flattened_head(event):
                is_padded = event.is_output and has_noncircular_padding(event.module)
                by_kind["edge" if is_padded else "interior"] = errors.all_cells
            if breaks:
                by_kind["aliasing"] = None
        for kind, error in by_kind.items():
            # After a break inside the image, errors at the edge are a consequence.
            is_consequence = kind == "edge" and "interior" in breaks
            if kind in breaks or is_consequence or error is None or error <= limit:
                continue
            # The outermost module has no caller, so use the module that received the tensor.
            owner = event if event.is_output else event.caller or event
            breaks[kind] = LayerBreak(
                kind,
                owner.name,
                type(owner.module).__name__,
                error,
                limit,
                None if event.is_output else (before, event.name),
                _cause_of_break(kind, owner, absolute),
            )
        before = event.name
    return breaks


def _cause_of_break(kind: str, event: TraceEvent, absolute: Sequence[str]) -> str:
    """Name the property of a layer that breaks equivariance, such as "zero padding".

    If no property explains the break, the result is an empty string.
    """
    module = event.module
    if kind == "aliasing":
        stride = max(declared_stride(module) or (1,))
        return f"stride {stride} without a low-pass filter" if stride > 1 else ""
    if kind == "edge":
        mode = getattr(module, "padding_mode", "zeros")
        padding = "zero" if mode == "zeros" else mode
        return f"{padding} padding" if has_noncircular_padding(module) else ""
    if _is_flattened_head(event):
        return "separate weights for each position"
    is_added = any(event.module_name in (name, _parent(name)) for name in absolute)
    return "absolute position embeddings" if is_added else ""


def _collect_findings(
    trace: ModelTrace, errors_by_tensor: ErrorsByTensor, always_listed: set[str]
) -> tuple[LayerFinding, ...]:
    """Collect the errors of all layers that return a new tensor.

    Args:
        trace: Record of a forward pass.
        errors_by_tensor: Errors of the tensors in the trace.
        always_listed: Names of layers that are listed even if they return their input or the output
            of a submodule.
    """
    findings = []
    listed = set()
    for event in trace.events:
        tensor = event.tensor
        errors = errors_by_tensor.get(tensor)
        if tensor is None or errors is None or not event.is_output:
            continue
        is_new = tensor is not event.input_tensor and tensor not in listed
        if not (is_new or always_listed.intersection((event.name, event.module_name))):
            continue
        listed.add(tensor)
        before = errors_by_tensor.get(event.input_tensor)
        findings.append(
            LayerFinding(
                name=event.name,
                kind=type(event.module).__name__,
                layout=tensor.layout.name,
                grid=tensor.layout.grid,
                stride=tuple(map(float, tensor.layout.stride)),
                prefix_tokens=tensor.layout.prefix_tokens,
                interior_error=errors.interior,
                border_error=errors.border,
                aliasing_error=errors.aliasing,
                noise=tensor.noise,
                added=before and errors.increase_over(before),
                error=errors.all_cells,
                border=tensor.border,
                errors=tuple(None if math.isnan(x) else x for x in errors.per_shift.tolist()),
            )
        )
    return tuple(findings)


def _explain_skipped(trace: ModelTrace) -> dict[str, str]:
    """Return the reason for each module that could not be compared, by the name of the module."""
    reasons = {}
    for event in trace.events:
        reason = event.reason if event.tensor is None else event.tensor.failure
        if event.is_output and reason:
            reasons[event.name] = reason
    called = {event.module_name for event in trace.events}
    uncalled = [name or "(model)" for name in trace.modules if name not in called]
    return reasons | dict.fromkeys(uncalled, "it was not called")
