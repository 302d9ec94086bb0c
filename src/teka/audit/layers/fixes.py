"""What mends a layer to blame without training: each fix, the layers that it is for, and why some cannot have it."""

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
    """What one pass over a model saw, by which the layers that a fix is for are found."""

    modules: Mapping[str, nn.Module]
    calls: Mapping[
        str, Sequence[tuple[Shape, Shape]]
    ]  # shapes that a module got and gave at each call, without batch
    tensors: Mapping[str, Shape]  # of parameters and buffers
    absolute: Sequence[str]  # names of parameters, buffers and modules that hold absolute positions
    grids: Sequence[
        tuple[Shape, int]
    ]  # of maps and tokens, with the number of tokens before the grid


@dataclass(frozen=True)
class Fix:
    """A change to some layers of a model that needs no training; `teka.convert.mend` makes it."""

    name: str
    kind: str  # of `teka.audit.layers.localize.BREAKS`, which it mends
    does: str
    source: str
    wraps: bool | None  # advised for images that move round the torus, for others, or for both
    find: Callable[
        [TracedModel], dict[str, str]
    ]  # names of layers, with why they cannot have it, or ""


def place_axes(shape: Shape, grids: Iterable[tuple[Shape, int]]) -> tuple[Shape, int] | None:
    """The axes of a tensor that are places, and how many of the first belong to no grid; None if no grid fits."""
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
    strided = ((name, one) for name, one in seen.modules.items() if isinstance(one, SAMPLING))
    # What is mended already has another class, and says so.
    found = {
        name: one
        for name, one in strided
        if max(pair(one.stride)) > 1 and not hasattr(one, "sampling")
    }
    return {name: _why_not_sampled(one, seen.calls.get(name, ())) for name, one in found.items()}


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
    steps, reach = pair(module.stride), [size - 1 for size in _spans(module)]
    for (_, height, width), (_, *cells) in calls:
        if (
            cells != [height // steps[0], width // steps[1]]
            or height % steps[0]
            or width % steps[1]
        ):
            made = " × ".join(map(str, cells))
            return f"it makes {made} cells of {height} × {width} by steps of {' × '.join(map(str, steps))}"
        if reach[0] > height or reach[1] > width:
            return "its window is larger than its map"
    return ""


def _spans(module: nn.Module) -> list[int]:
    """Cells from the first to the last that a window sees, along both axes."""
    sizes, steps = pair(module.kernel_size), pair(getattr(module, "dilation", 1))
    return [step * (size - 1) + 1 for size, step in zip(sizes, steps, strict=True)]


def _find_padded(seen: TracedModel) -> dict[str, str]:
    found = {}
    for name, module in seen.modules.items():
        calls = seen.calls.get(name, ())
        if isinstance(module, PADDING) and not isinstance(module, nn.CircularPad2d):
            found[name] = "" if calls else "it was not called, or not with a map"
            left, right, top, bottom = module.padding
            for (_, height, width), _ in calls:
                if min(module.padding) < 0 or max(left, right) > width or max(top, bottom) > height:
                    found[name] = "it crops, or pads by more than its map"
        elif isinstance(module, SAMPLING) and pads_edge(module):
            found[name] = _why_not_wrapped(module, calls)
    return found


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
    found = {}
    for name in seen.absolute:
        held = (
            [name]
            if name in seen.tensors
            else [one for one in seen.tensors if one.startswith(f"{name}.")]
        )
        placed = [one for one in held if place_axes(seen.tensors[one], seen.grids)]
        reason = "no axis of it is known to be the place" if held else "its code computes them"
        found |= dict.fromkeys(placed, "") or {name: reason}
    return found


# In the order in which they are applied.
FIXES = {
    fix.name: fix
    for fix in (
        Fix(
            "circular",
            "edge",
            "padding goes on at the other side of the map instead of with zeros",
            "Chaman & Dokmanić 2021",
            True,
            _find_padded,
        ),
        Fix(
            "blur",
            "aliasing",
            "a strided layer takes every cell, and a binomial low pass comes before sampling",
            "Zhang 2019",
            False,
            _find_strided,
        ),
        Fix(
            "polyphase",
            "aliasing",
            "a strided layer takes every cell, round the torus, and the content chooses from which offset to keep them",
            "Chaman & Dokmanić 2021",
            True,
            _find_strided,
        ),
        Fix(
            "positions",
            "interior",
            "a learned position embedding becomes its mean over the places",
            "the ablation of Dosovitskiy et al. 2021, Appendix D.4, which trains without any",
            None,
            _find_positions,
        ),
    )
}


def find_fixes(
    model: nn.Module, followed: Mapping[str, nn.Module], survey: ModelTrace, absolute: Sequence[str]
) -> dict[str, dict[str, str]]:
    """By the name of each fix, the layers among those followed that it is for, with why one cannot have it, or ""."""
    shapes: dict[tuple[str, int], list[Shape]] = {}
    for stop in survey.stops:
        shape = () if stop.slot is None else survey.slots[stop.slot].shape
        shapes.setdefault((stop.visit.module, stop.visit.call), []).append(shape)
    calls: dict[str, list[tuple[Shape, Shape]]] = {}
    for (name, _), (came, gave) in shapes.items():
        if len(came) == len(gave) == 3:
            calls.setdefault(name, []).append((came, gave))
    held = (*model.named_parameters(), *model.named_buffers())
    tensors = {name: tuple(tensor.shape) for name, tensor in held if tensor.is_floating_point()}
    grids = dict.fromkeys(
        (slot.layout.grid, slot.layout.prefix_tokens) for slot in survey.slots if slot.layout.grid
    )
    seen = TracedModel(followed, calls, tensors, absolute, tuple(grids))
    return {name: fix.find(seen) for name, fix in FIXES.items()}
