"""Find the layer that is to blame: run a model on images and on moved ones, and compare what every layer makes."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit.evaluation_mode import check_evaluation_mode
from teka.audit.layers.collect import Collection
from teka.audit.layers.layer_findings import LayerFindings
from teka.audit.layers.position_parameters import absolute_embeddings, class_tokens
from teka.audit.layers.shift_errors import ShiftErrors
from teka.audit.layers.survey import Survey, survey_batch
from teka.audit.layers.trace import Trace
from teka.audit.measure.outputs import ModelError
from teka.audit.movement import Movement
from teka.audit.shifts import Shift, SubpixelShift
from teka.audit.translate import SUBPIXEL_MODES
from teka.errors import FOREIGN, unknown_name, wrong_shape, wrong_value

# Images of one batch, and of the survey: more share the cost of the images that do not move.
IMAGES_AT_ONCE = 8
# The part of the image's shorter side that is overwritten at most to see how far the edge is felt.
WIDEST_EDGE = 0.25
# Modes in which what leaves at one side enters at the other, so that every cell came from inside.
WRAPPING_MODES = ("circular", *SUBPIXEL_MODES)


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
    followed = _followed(module, layers)
    chosen = torch.linspace(0, len(images) - 1, min(num_images, len(images))).round().long()
    place = next((tensor.device for tensor in (*module.parameters(), *module.buffers())), images.device)
    placed = movement.place(images[chosen].to(place))
    # Moved by a part of a pixel, the images themselves have no cells to compare.
    steps = tuple(shift for shift in movement.check(placed, shifts) if any(shift) and all(map(_is_whole, shift)))
    if not steps:
        raise wrong_value("shifts", shifts, "at least one by whole pixels that is not zero")
    run = module if function is None else function
    still = movement.move(placed, (0, 0))
    survey = _survey(run, followed, still[:IMAGES_AT_ONCE])
    errors = _compare(run, followed, survey, placed, steps, movement, batch_size)
    found = Collection(followed, survey, errors, threshold)
    return LayerFindings(
        findings=found.findings(layers or ()),
        first_break=found.breaks["interior"].name if "interior" in found.breaks else None,
        threshold=found.threshold,
        absolute_embeddings=absolute_embeddings(module, [slot.layout for slot in survey.slots]),
        class_tokens=class_tokens(module),
        skipped=found.skipped(),
        max_shift=max(abs(step) for shift in steps for step in shift),
        breaks=found.breaks,
        flattened=tuple(survey.flattened),
        shifts=steps,
        movement=movement,
        num_images=len(chosen),
        seen_size=tuple(still.shape[2:]),
    )


def _followed(module: nn.Module, layers: Sequence[str] | None) -> dict[str, nn.Module]:
    # Lists of modules are never called themselves.
    parts = {name: part for name, part in module.named_modules() if not isinstance(part, nn.ModuleList | nn.ModuleDict)}
    for name in layers or ():
        if name not in parts:
            raise unknown_name("layers", name, [one for one in parts if one])
    return parts if layers is None else {name: part for name, part in parts.items() if name in layers}


def _is_whole(step: int | float) -> bool:
    return float(step).is_integer()


def _survey(run: Callable[[Tensor], object], followed: Mapping[str, nn.Module], still: Tensor) -> Survey:
    width = 1
    while True:
        survey = Survey(len(still), (still.shape[2], still.shape[3]))
        with torch.no_grad(), Trace(followed, survey.see) as trace:
            _run(run, survey_batch(still, width), trace, "the images unmoved")
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
    errors = ShiftErrors(survey.slots, survey.stops, steps, seen, movement.mode in WRAPPING_MODES)
    at_once = max(1, min(IMAGES_AT_ONCE, batch_size // 2))
    with torch.no_grad(), Trace(followed, errors.see) as trace:
        for images in placed.split(at_once):
            room = max(1, batch_size // len(images) - 1)
            for first in range(0, len(steps), room):
                now = range(first, min(first + room, len(steps)))
                errors.start(now)
                moved = [movement.move(images, steps[index]) for index in now]
                batch = torch.cat([movement.move(images, (0, 0)), *moved])
                _run(run, batch, trace, f"shifts {', '.join(str(steps[index]) for index in now)}")
    return errors


def _run(run: Callable[[Tensor], object], batch: Tensor, trace: Trace, what: str) -> None:
    trace.start(len(batch))
    try:
        run(batch)
    except FOREIGN as error:
        raise ModelError(f"the model raised {type(error).__name__} for {what}: {error}") from error
