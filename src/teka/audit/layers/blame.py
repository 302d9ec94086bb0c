"""Find the layer that is to blame: run a model on images and on moved ones, and compare what every layer makes."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit.function import ModelError, check_evaluation_mode
from teka.audit.layers.findings import LayerBreak, LayerFinding, LayerFindings
from teka.audit.layers.recogniser import absolute_embeddings, class_tokens
from teka.audit.layers.shift_errors import Measured, ShiftErrors
from teka.audit.layers.survey import Stop, Survey, Trace, call_name, survey_batch
from teka.audit.movement import Movement
from teka.audit.shifts import Shift, SubpixelShift
from teka.errors import FOREIGN, unknown_name, wrong_shape, wrong_value

# Images of one batch, and of the survey: more share the cost of the images that do not move.
IMAGES_AT_ONCE = 8
# The part of the image's shorter side that is overwritten at most to see how far the edge is felt.
WIDEST_EDGE = 0.25
# Without a threshold given: 1e-4, or so many roundings of the coarsest dtype among the layers.
THRESHOLD = 1e-4
THRESHOLD_ROUNDINGS = 4
# A module that gives what a part of it gave is listed too if it adds so many times as much error as any part.
PART_FACTOR = 2.0


def blame_layers(
    module: nn.Module,
    images: Float[Tensor, "batch channels height width"],
    shifts: Iterable[Shift | SubpixelShift],
    movement: Movement,
    *,
    function: Callable[[Tensor], object] | None = None,
    layers: Sequence[str] | None = None,
    threshold: int | float | None = None,
    num_images: int = 32,
    batch_size: int = 64,
) -> LayerFindings:
    """Compare every layer's output for moved images with its output for the images, moved by as many of its own cells.

    Forward hooks see what every module gets and gives. Maps, grids of tokens and vectors are recognised by shape
    (`teka.audit.layers.recogniser`); the cells that the edge can reach are found by overwriting the outermost pixels
    (`survey_batch`); `ShiftErrors` has the formula. The images and their moved selves are in one batch, so that no
    output outlives its layer. An error is that of the worst shift, over all images.

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

    Returns:
        What was measured of each layer, and the first to break. Modules that hand on what they got (identities,
        dropout) or what a part of them gave are not listed, unless they are named in `layers`.

    Raises:
        ValueError: A module in training mode, no such layer, images that are no images, no shift but zero, one that
            does not fit, or a threshold or number that is not positive.
        ModelError: The model raised; the message says where.
    """
    check_evaluation_mode("module", module)
    if images.ndim != 4 or 0 in images.shape or not images.is_floating_point():
        raise wrong_shape(
            "images", images.shape, "(batch, channels, height, width) of floating-point numbers, not empty"
        )
    for argument, number in (("threshold", threshold), ("num_images", num_images), ("batch_size", batch_size)):
        if number is not None and not number > 0:
            raise wrong_value(argument, number, "a positive number")
    # Lists of modules are never called themselves.
    parts = {name: part for name, part in module.named_modules() if not isinstance(part, nn.ModuleList | nn.ModuleDict)}
    for name in layers or ():
        if name not in parts:
            raise unknown_name("layers", name, [one for one in parts if one])
    followed = {name: part for name, part in parts.items() if layers is None or name in layers}
    chosen = torch.linspace(0, len(images) - 1, min(num_images, len(images))).round().long()
    place = next((tensor.device for tensor in (*module.parameters(), *module.buffers())), images.device)
    placed = movement.place(images[chosen].to(place))
    # Moved by a part of a pixel, the images themselves have no cells to compare.
    checked = movement.check(placed, shifts)
    steps = tuple(shift for shift in checked if any(shift) and not any(step % 1 for step in shift))
    if not steps:
        raise wrong_value("shifts", shifts, "at least one by whole pixels that is not zero")
    run = module if function is None else function
    still = movement.move(placed, (0, 0))
    survey = _survey(run, followed, still[:IMAGES_AT_ONCE])
    errors = _compare(run, followed, survey, placed, steps, movement, batch_size)
    if threshold is None:
        coarsest = max((slot.epsilon for slot in survey.slots), default=0.0)
        threshold = max(THRESHOLD, THRESHOLD_ROUNDINGS * coarsest)
    measured = errors.measured(threshold)
    breaks = _first_breaks(survey, measured, followed)
    always = {*(layers or ()), *(one.name for one in breaks.values())}
    return LayerFindings(
        findings=_list_findings(survey.stops, measured, steps, always),
        first_break=breaks["interior"].name if "interior" in breaks else None,
        threshold=threshold,
        absolute_embeddings=absolute_embeddings(module, [slot.layout for slot in survey.slots]),
        class_tokens=class_tokens(module),
        skipped=_skipped(survey.stops, errors, followed),
        max_shift=max(abs(step) for shift in steps for step in shift),
        breaks=breaks,
        flattened=tuple(survey.flattened),
        shifts=steps,
        movement=movement,
        num_images=len(chosen),
        seen_size=tuple(still.shape[2:]),
    )


def _survey(run: Callable[[Tensor], object], followed: Mapping[str, nn.Module], still: Tensor) -> Survey:
    width = 1
    while True:
        survey = Survey(len(still), (still.shape[2], still.shape[3]))
        with torch.no_grad(), Trace(followed, survey.see) as trace:
            _run(run, survey_batch(still, width), trace, "the images unshifted")
        # Pixels that no cell sees say nothing of how far padding reaches: more of them are overwritten then.
        width *= 2
        if survey.feels_all_sides or width > min(still.shape[2:]) * WIDEST_EDGE:
            return survey


def _compare(
    run: Callable[[Tensor], object],
    followed: Mapping[str, nn.Module],
    survey: Survey,
    placed: Tensor,
    steps: tuple[tuple[int | float, ...], ...],
    movement: Movement,
    batch_size: int,
) -> ShiftErrors:
    seen = tuple(movement.move(placed[:1], (0, 0)).shape[2:])
    errors = ShiftErrors(survey.slots, survey.stops, steps, seen, movement.wraps)
    at_once = max(1, min(IMAGES_AT_ONCE, batch_size // 2))
    with torch.no_grad(), Trace(followed, errors.see) as trace:
        for images in placed.split(at_once):
            room = max(1, batch_size // len(images) - 1)
            for first in range(0, len(steps), room):
                now = range(first, min(first + room, len(steps)))
                errors.start(now)
                moved = [movement.move(images, steps[index]) for index in now]
                batch = torch.cat([movement.move(images, (0, 0)), *moved])
                _run(run, batch, trace, f"shifts {', '.join([str(steps[index]) for index in now])}")
    return errors


def _run(run: Callable[[Tensor], object], batch: Tensor, trace: Trace, what: str) -> None:
    trace.start(len(batch))
    try:
        run(batch)
    except FOREIGN as error:
        raise ModelError(f"the model raised {type(error).__name__} for {what}: {error}") from error


def _first_breaks(
    survey: Survey, measured: Mapping[int, Measured], followed: Mapping[str, nn.Module]
) -> dict[str, LayerBreak]:
    """The first break of each kind.

    A tensor of which no cell is out of reach of the edge cannot tell a break from the edge. If nothing has broken at
    the edge before, it counts as a break at the edge where its module declares padding, and within the image elsewhere.
    If it was made of a flattened map it counts as a break within the image in any case. As aliasing it counts if
    nothing has broken at all before. An edge is named only if nothing has broken within the image before.

    A break is that of the module that gives the tensor. If a module gets a broken tensor that no module gave, it
    happened in the own code of the module around it, between two of its parts.
    """
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
        if not numbers.has_interior and ("edge" not in found or reads_flattened):
            if stop.pads_edge and is_output:
                at_edge = numbers.every
            else:
                within = numbers.every
        between_cells = numbers.aliasing if numbers.has_interior or not found else None
        for kind, error in (("interior", within), ("edge", at_edge), ("aliasing", between_cells)):
            # What has broken within is broken at the edge too.
            is_told = kind in found or (kind == "edge" and "interior" in found)
            if is_told or error is None or error <= numbers.limit:
                continue
            # Without a module around it, say because not all were followed, the one that got it stands for the place.
            module, call = (not is_output and visit.inside) or (visit.module, visit.call)
            name, between = call_name(module, call), None if is_output else (before, here)
            broken, has_interior = type(followed[module]).__name__, numbers.has_interior
            found[kind] = LayerBreak(kind, name, broken, error, numbers.limit, has_interior, between)
        before = here
    return found


def _list_findings(
    stops: Sequence[Stop], measured: Mapping[int, Measured], steps: Sequence[tuple[int | float, ...]], always: set[str]
) -> tuple[LayerFinding, ...]:
    """The layers in the order in which they finished.

    A module that hands on what it got, or what a part of it gave, is listed if it is to blame or named, as `always`
    says, or if it adds far more error than any of its parts.
    """
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
        parts = [
            more for part, more in added.items() if part != module and (not module or part.startswith(f"{module}."))
        ]
        adds_more = (one.added or 0.0) > max(numbers.limit, PART_FACTOR * max(parts, default=0.0))
        is_new = stop.slot != got and stop.slot not in given
        if is_new or adds_more or module in always or one.name in always:
            given.add(stop.slot)
            added[module] = max(one.added or 0.0, added.get(module, 0.0))
            found.append(one)
    return tuple(found)


def _finding(
    stop: Stop, numbers: Measured, before: Measured | None, steps: Sequence[tuple[int | float, ...]]
) -> LayerFinding:
    layout = numbers.slot.layout
    return LayerFinding(
        name=call_name(stop.visit.module, stop.visit.call),
        kind=stop.kind,
        layout=layout.name,
        grid=layout.grid,
        stride=tuple([int(step) if step.denominator == 1 else float(step) for step in layout.stride]),
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


def _skipped(stops: Sequence[Stop], errors: ShiftErrors, followed: Mapping[str, nn.Module]) -> dict[str, str]:
    """For each module that could not be compared, why."""
    found = {
        call_name(stop.visit.module, stop.visit.call): stop.reason
        if stop.slot is None
        else errors.failed.get(stop.slot)
        for stop in stops
        if stop.visit.side == "output"
    }
    called = {stop.visit.module for stop in stops}
    uncalled = {call_name(name, 1): "it was not called" for name in followed if name not in called}
    return {name: reason for name, reason in found.items() if reason is not None} | uncalled
