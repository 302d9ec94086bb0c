"""Fixes of layers that break equivariance, which need no training, and the layers they apply to."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from teka.audit.layers.layouts import PADDING, pads_edge, pair
from teka.audit.layers.trace import ModelTrace

Shape = tuple[int, ...]
SAMPLING = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)
OTHER_CLASS = "it is a {}, whose own code may do something else"


@dataclass(frozen=True)
class TracedModel:
    """Observations of one forward pass, by which the layers that a fix applies to are found.

    Args:
        modules: Modules by name.
        calls: Shapes of input and output at each call of a module, without the batch axis.
        tensors: Shapes of parameters and buffers by name.
        absolute: Names of parameters, buffers and modules that hold absolute positions.
        grids: Grids of maps and tokens, with the number of tokens before the grid.
    """

    modules: Mapping[str, nn.Module]
    calls: Mapping[str, Sequence[tuple[Shape, Shape]]]
    tensors: Mapping[str, Shape]
    absolute: Sequence[str]
    grids: Sequence[tuple[Shape, int]]


@dataclass(frozen=True)
class Fix:
    """Change of some layers of a model that needs no training, applied by `teka.convert.mend`.

    Args:
        name: Name of the fix.
        kind: Kind of break that it repairs, of `teka.audit.layers.localize.BREAKS`.
        does: What it does, in a sentence.
        source: Publication.
        wraps: Whether it is recommended for circular shifts (True), others (False) or both (None).
        find: Function that returns names of layers, each with why the fix is impossible or "".
    """

    name: str
    kind: str
    does: str
    source: str
    wraps: bool | None
    find: Callable[[TracedModel], dict[str, str]]


def place_axes(shape: Shape, grids: Iterable[tuple[Shape, int]]) -> tuple[Shape, int] | None:
    """Return the axes of a tensor that are positions, and the number of leading prefix tokens.

    The result is None if no grid fits the shape.
    """
    first = int(len(shape) > 2 and shape[0] == 1)
    sides = shape[first:]
    for grid, prefix in grids:
        for before in (prefix, 0) if len(sides) == 2 else ():
            if sides[:1] == (before + math.prod(grid),):
                return (first,), before
        for axis in (1, 0) if len(sides) == 3 else ():
            if sides[axis : axis + 2] == grid:
                return (first + axis, first + axis + 1), 0
    return None


def _find_strided(seen: TracedModel) -> dict[str, str]:
    strided = {}
    for name, module in seen.modules.items():
        # A layer that was fixed before has another class with this attribute.
        is_fixed = hasattr(module, "sampling")
        if isinstance(module, SAMPLING) and not is_fixed and max(pair(module.stride)) > 1:
            strided[name] = _why_not_sampled(module, seen.calls.get(name, ()))
    return strided


def _why_not_sampled(
    module: nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d, calls: Sequence[tuple[Shape, Shape]]
) -> str:
    if type(module) not in SAMPLING:
        return OTHER_CLASS.format(type(module).__name__)
    if not calls:
        return "it was not called, or not with a map"
    if getattr(module, "return_indices", False):
        return "its indices are asked for"
    if (
        isinstance(module, nn.AvgPool2d)
        and any(pair(module.padding))
        and not module.count_include_pad
    ):
        return "it leaves its padding out of the mean"
    steps = pair(module.stride)
    reach = [size - 1 for size in _spans(module)]
    for (_, height, width), (_, *cells) in calls:
        if (
            cells != [height // steps[0], width // steps[1]]
            or height % steps[0]
            or width % steps[1]
        ):
            made = " × ".join(map(str, cells))
            stride = " × ".join(map(str, steps))
            return f"it makes {made} cells of {height} × {width} by steps of {stride}"
        if reach[0] > height or reach[1] > width:
            return "its window is larger than its map"
    return ""


def _spans(module: nn.Module) -> list[int]:
    """Return the number of cells that a window spans along both axes, with dilation."""
    sizes, steps = pair(module.kernel_size), pair(getattr(module, "dilation", 1))
    return [step * (size - 1) + 1 for size, step in zip(sizes, steps, strict=True)]


def _find_padded(seen: TracedModel) -> dict[str, str]:
    reasons = {}
    for name, module in seen.modules.items():
        calls = seen.calls.get(name, ())
        if isinstance(module, PADDING) and not isinstance(module, nn.CircularPad2d):
            reasons[name] = "" if calls else "it was not called, or not with a map"
            left, right, top, bottom = module.padding
            for (_, height, width), _ in calls:
                if min(module.padding) < 0 or max(left, right) > width or max(top, bottom) > height:
                    reasons[name] = "it crops, or pads by more than its map"
        elif isinstance(module, SAMPLING) and pads_edge(module):
            reasons[name] = _why_not_wrapped(module, calls)
    return reasons


def _why_not_wrapped(
    module: nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d, calls: Sequence[tuple[Shape, Shape]]
) -> str:
    if type(module) is not nn.Conv2d:
        return _why_not_sampled(module, calls)
    if not calls:
        return "it was not called, or not with a map"
    same = [span // 2 for span in _spans(module)]
    padding = same if isinstance(module.padding, str) else module.padding
    fits = all(padding[0] <= height and padding[1] <= width for (_, height, width), _ in calls)
    return "" if fits else "it pads by more than its map"


def _find_positions(seen: TracedModel) -> dict[str, str]:
    reasons = {}
    for name in seen.absolute:
        held = (
            [name]
            if name in seen.tensors
            else [tensor for tensor in seen.tensors if tensor.startswith(f"{name}.")]
        )
        placed = [tensor for tensor in held if place_axes(seen.tensors[tensor], seen.grids)]
        reason = "no axis of it is known to be the place" if held else "its code computes them"
        reasons |= dict.fromkeys(placed, "") or {name: reason}
    return reasons


# In the order in which they are applied.
FIXES = {
    fix.name: fix
    for fix in (
        Fix(
            "circular",
            "edge",
            "padding continues with the other side of the map instead of zeros",
            "Chaman & Dokmanić 2021",
            True,
            _find_padded,
        ),
        Fix(
            "blur",
            "aliasing",
            "a strided layer is evaluated at every cell, low-pass filtered, and then sampled",
            "Zhang 2019",
            False,
            _find_strided,
        ),
        Fix(
            "polyphase",
            "aliasing",
            "a strided layer is evaluated at every cell with circular edges, and the content "
            "determines which subgrid is kept",
            "Chaman & Dokmanić 2021",
            True,
            _find_strided,
        ),
        Fix(
            "positions",
            "interior",
            "a learned position embedding is replaced by its mean over the positions",
            "the ablation of Dosovitskiy et al. 2021, Appendix D.4, which trains without any",
            None,
            _find_positions,
        ),
    )
}


def find_fixes(
    model: nn.Module, followed: Mapping[str, nn.Module], survey: ModelTrace, absolute: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the layers that each fix applies to, with why it is impossible or "".

    Args:
        model: The model.
        followed: Modules to consider, by name.
        survey: Trace of a forward pass.
        absolute: Names of parameters, buffers and modules that hold absolute positions.
    """
    shapes: dict[tuple[str, int], list[Shape]] = {}
    for stop in survey.stops:
        shape = () if stop.slot is None else survey.slots[stop.slot].shape
        shapes.setdefault((stop.visit.module, stop.visit.call), []).append(shape)
    calls: dict[str, list[tuple[Shape, Shape]]] = {}
    for (name, _), (input_shape, output_shape) in shapes.items():
        if len(input_shape) == len(output_shape) == 3:
            calls.setdefault(name, []).append((input_shape, output_shape))
    held = (*model.named_parameters(), *model.named_buffers())
    tensors = {name: tuple(tensor.shape) for name, tensor in held if tensor.is_floating_point()}
    grids = dict.fromkeys(
        (slot.layout.grid, slot.layout.prefix_tokens) for slot in survey.slots if slot.layout.grid
    )
    seen = TracedModel(followed, calls, tensors, absolute, tuple(grids))
    return {name: fix.find(seen) for name, fix in FIXES.items()}
