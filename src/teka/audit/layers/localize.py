"""Find the layer that is to blame: run a model on images and on moved ones, and compare what every layer makes."""

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

# Equivariance is lost within the image, at its edge, or between the cells of a grid.
BREAKS = ("interior", "edge", "aliasing")
EXPLAINED_SHARE = 0.5  # a module is left out of the biggest jumps if a part of it has at least this share of its own
IMAGES_AT_ONCE = (
    8  # images of one batch, and of the survey: more share the cost of the images that do not move
)
WIDEST_EDGE = 0.25  # the part of the image's shorter side that is overwritten at most to see how far the edge is felt
THRESHOLD, THRESHOLD_ROUNDINGS = (
    1e-4,
    4,
)  # by default; or so many roundings of the coarsest dtype among the layers
PART_FACTOR = (
    2.0  # a module that gives what a part gave is listed too if it adds so many times as much error
)
ByIndex = Mapping[int, LayerErrors]


@dataclass(frozen=True)
class LayerBreak:
    """The first layer, in the order of execution, whose error of one kind is above its limit."""

    kind: str  # one of `BREAKS`, the likelier where the edge reaches all cells
    name: str  # of the innermost module in which it happens
    module: str  # its class
    error: float  # at the worst shift
    limit: int | float
    has_interior: bool = True  # cells that are out of reach of the edge
    between: tuple[str, str] | None = (
        None  # in the module's own code, what came before it and after it
    )


@dataclass(frozen=True)
class LayerFinding:
    """Errors of one layer at the worst multiple of its stride, relative to its output; None where none was compared."""

    name: str  # of the module, with its number where a forward pass calls it again: "relu (call 2)"
    kind: str  # its class
    layout: str  # the name of a `teka.audit.layers.layouts.Layout`
    grid: tuple[int, ...]  # cells along every axis; () for a vector
    stride: tuple[
        int | float, ...
    ]  # pixels from cell to cell; for a vector, of the coarsest layer before it
    prefix_tokens: int  # before those of the grid, such as a class token
    interior_error: (
        float | None
    )  # of the cells that the edge of the image cannot reach; None for vectors
    border_error: float | None  # of the other cells; None where there is no interior
    aliasing_error: float | None  # at other shifts, against the best of the neighbouring multiples
    noise: float  # difference of the outputs for two copies of the same images
    added: float | None  # `error` less that of the layer's input at the same shifts
    error: float | None = None  # of all cells that came from inside
    border: tuple[
        tuple[int, int], ...
    ] = ()  # cells that the edge can reach, before and after the interior
    # The fewest pixels along every axis such that all measured shifts by multiples of them are within the threshold.
    exact_step: tuple[int | None, ...] = ()
    errors: tuple[float | None, ...] = ()  # at each shift, of the interior where there is one

    def limit(self, threshold: int | float) -> float:
        """The error above which the layer breaks: the threshold, or 10 times the noise if that is more."""
        return max(threshold, NOISE_FACTOR * self.noise)

    def is_undecided(self, threshold: int | float) -> bool:
        """Return True if the largest error is above the threshold, but may be noise."""
        errors = (self.interior_error, self.border_error, self.aliasing_error, self.error)
        largest = max((error for error in errors if error is not None), default=0.0)
        return threshold < largest <= self.limit(threshold)


@dataclass(frozen=True)
class LayerFindings:
    """What was measured of all layers, in the order in which they finished, and which of them are to blame."""

    findings: tuple[LayerFinding, ...]
    first_break: str | None  # the first module that breaks within the image
    threshold: int | float  # the error below which no layer breaks
    absolute_embeddings: tuple[str, ...]  # names of parameters, buffers and modules
    class_tokens: tuple[str, ...]
    skipped: dict[str, str]  # of each module that could not be compared, why
    max_shift: int | float  # the longest step along an axis, in pixels
    breaks: dict[str, LayerBreak] = field(default_factory=dict)  # the first of each of `BREAKS`
    flattened: tuple[
        str, ...
    ] = ()  # modules that read a flattened map, each cell by its own weights
    shifts: CheckedShifts = ()  # without zero
    movement: Movement | None = None
    num_images: int = 0
    seen_size: tuple[int, ...] = ()  # of what the model got
    # By the name of each fix, the layers that it is for, with why one cannot have it, or "".
    fixes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def advised(self) -> tuple[str, ...]:
        """The fixes, as `teka.convert.mend` makes them, for those layers that break first which can have them."""
        wraps = self.movement is None or self.movement.wraps
        usual = [
            fix for fix in FIXES.values() if fix.wraps in (None, wraps) and fix.kind in self.breaks
        ]
        return tuple(
            fix.name
            for fix in usual
            if any(self._breaks_at(fix.kind, one) for one in self.mendable(fix.name))
        )

    @property
    def undecided(self) -> tuple[LayerFinding, ...]:
        """Return the layers whose error cannot be distinguished from noise."""
        return tuple(one for one in self.findings if one.is_undecided(self.threshold))

    def mendable(self, fix: str) -> tuple[str, ...]:
        """The layers that can have a fix."""
        return tuple(name for name, reason in self.fixes.get(fix, {}).items() if not reason)

    def _breaks_at(self, kind: str, name: str) -> bool:
        """Whether the first break of a kind is that of a layer, or of the module around a tensor that is added."""
        module = self.breaks[kind].name.partition(" (call ")[0]
        around = kind == "interior" and (module == "(model)" or name.startswith(f"{module}."))
        return module == name or around

    def find(self, name: str) -> LayerFinding | None:
        """The finding of a layer by its name, or None."""
        return next((finding for finding in self.findings if finding.name == name), None)

    def biggest_jumps(self, count: int = 5) -> tuple[LayerFinding, ...]:
        """The layers that add most error, the most first; modules of which a part adds half as much are left out."""
        rising = [
            one
            for one in self.findings
            if one.added is not None and one.added > one.limit(self.threshold)
        ]

        def explains(part: LayerFinding, whole: LayerFinding) -> bool:
            inside = part is not whole and (
                part.name.startswith(f"{whole.name}.") or whole.name == "(model)"
            )
            return inside and (part.added or 0.0) >= EXPLAINED_SHARE * (whole.added or 0.0)

        own = [one for one in rising if not any(explains(part, one) for part in rising)]
        return tuple(sorted(own, key=lambda one: -(one.added or 0.0))[:count])


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
    """Compare every layer's output for moved images with its output for the images, moved by as many of its own cells.

    Forward hooks see what every module gets and gives; docs/audit_layers.md says what is recognised and compared. An
    error is that of the worst shift, over all images. Modules that hand on what they got or what a part of them gave
    are not listed, unless they are named in `layers`.

    Args:
        module: The model, in evaluation, or the part of it to look into.
        images: Images (B, C, H, W).
        shifts: The set of shifts (dy, dx). The zero shift is left out, and those by parts of a pixel are.
        movement: How images are moved.
        function: What runs the model on images, say with its own normalisation; the module itself by default.
        layers: Names of the modules to look at; all by default.
        threshold: The error below which no layer breaks; by default 1e-4, or 4 roundings of the layers' dtype.
        num_images: How many of the images are used at most, evenly spaced.
        batch_size: Images in a forward pass at most, but at least two.

    Raises:
        ValueError: A module in training mode, no such layer, images that are no images, a movement that is a change,
            no shift but zero, one that does not fit, or a threshold or number that is not positive.
        ModelError: The model raised; the message says where.
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
    unseen = (
        nn.ModuleList,
        nn.ModuleDict,
        torch.jit.ScriptModule,
    )  # which are not called, or take no hooks
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
    # Moved by a part of a pixel, the images themselves have no cells to compare.
    checked = movement.check(placed, shifts)
    steps = tuple(shift for shift in checked if any(shift) and not any(step % 1 for step in shift))
    if not steps:
        raise wrong_value("shifts", shifts, "at least one by whole pixels that is not zero")
    run = module if function is None else function
    still = movement.move(placed, (0, 0))
    survey, width = None, 1
    # Pixels that no cell sees say nothing of how far padding reaches: more of them are overwritten then.
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
                # The images and their moved selves are in one batch, so that no output outlives its layer.
                batch = torch.cat([movement.move(images, step) for step in ((0, 0), *here)])
                trace.run(batch, f"shifts {', '.join(map(str, here))}")
    if threshold is None:
        threshold = max([THRESHOLD, *(THRESHOLD_ROUNDINGS * slot.epsilon for slot in survey.slots)])
    measured = errors.measured(threshold)
    breaks = _first_breaks(survey, measured, followed)
    always = {*(layers or ()), *(one.name for one in breaks.values())}
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
    """The first break of each kind; of a tensor that no module gave, in the module around the one that got it."""
    found: dict[str, LayerBreak] = {}
    before = "the images"
    for stop in survey.stops:
        numbers = None if stop.slot is None else measured.get(stop.slot)
        if numbers is None or not stop.is_new:
            continue
        visit, is_output = stop.visit, stop.visit.side == "output"
        here = call_name(visit.module, visit.call)
        reads_flattened = is_output and visit.module in survey.flattened
        within, at_edge = numbers.interior, numbers.border
        # Where the edge reaches every cell, its break is at the edge only if none was before and the module pads.
        if not numbers.has_interior and ("edge" not in found or reads_flattened):
            if stop.pads_edge and is_output:
                at_edge = numbers.every
            else:
                within = numbers.every
        between_cells = numbers.aliasing if numbers.has_interior or not found else None
        for kind, error in (("interior", within), ("edge", at_edge), ("aliasing", between_cells)):
            # What has broken within is broken at the edge too.
            if (
                kind in found
                or (kind == "edge" and "interior" in found)
                or error is None
                or error <= numbers.limit
            ):
                continue
            # Without a module around it, say because not all were followed, the one that got it stands for the place.
            module, call = (not is_output and visit.inside) or (visit.module, visit.call)
            where = call_name(module, call), type(followed[module]).__name__
            between = None if is_output else (before, here)
            found[kind] = LayerBreak(
                kind, *where, error, numbers.limit, numbers.has_interior, between
            )
        before = here
    return found


def _list_findings(
    stops: Sequence[TraceEvent], measured: ByIndex, steps: CheckedShifts, always: set[str]
) -> tuple[LayerFinding, ...]:
    """The layers that give something new, are to blame or named, as `always` says, or add far more than their parts."""
    found: list[LayerFinding] = []
    added: dict[str, float] = {}
    given: set[int | None] = set()
    inputs: dict[tuple[str, int], int | None] = {}
    for stop in stops:
        module = stop.visit.module
        if stop.visit.side == "input":
            inputs[module, stop.visit.call] = stop.slot
            continue
        numbers = None if stop.slot is None else measured.get(stop.slot)
        if numbers is None:
            continue
        got = inputs[module, stop.visit.call]
        one = _finding(stop, numbers, None if got is None else measured.get(got), steps)
        inside = f"{module}." if module else ""
        parts = [more for part, more in added.items() if part != module and part.startswith(inside)]
        adds_more = (one.added or 0.0) > max(numbers.limit, PART_FACTOR * max(parts, default=0.0))
        is_new = stop.slot != got and stop.slot not in given
        if is_new or adds_more or module in always or one.name in always:
            given.add(stop.slot)
            added[module] = max(one.added or 0.0, added.get(module, 0.0))
            found.append(one)
    return tuple(found)


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
    """For each module that could not be compared, why."""
    given = [
        (call_name(one.visit.module, one.visit.call), one)
        for one in stops
        if one.visit.side == "output"
    ]
    found = {
        name: one.reason if one.slot is None else errors.failed.get(one.slot) for name, one in given
    }
    called = {stop.visit.module for stop in stops}
    found |= {call_name(name, 1): "it was not called" for name in followed if name not in called}
    return {name: reason for name, reason in found.items() if reason is not None}
