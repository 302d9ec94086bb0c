"""Fixes of layers that break equivariance, which need no training, and the layers they apply to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from teka.audit.layers.layouts import PADDING, pads_edge, pair, position_axes
from teka.audit.layers.trace import ModelTrace

Shape = tuple[int, ...]
SAMPLING = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)
OTHER_CLASS = "it is a {}, whose own code may do something else"
NOT_CALLED = "it was not called, or not with a map"


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
    """Change of some layers of a model that needs no training, applied by `teka.convert.fix`.

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


def _find_strided(traced: TracedModel) -> dict[str, str]:
    strided = {}
    for name, module in traced.modules.items():
        # A layer that was fixed before has another class with this attribute.
        is_fixed = hasattr(module, "sampling")
        if isinstance(module, SAMPLING) and not is_fixed and max(pair(module.stride)) > 1:
            strided[name] = _why_not_sampled(module, traced.calls.get(name, ()))
    return strided


def _find_padded(traced: TracedModel) -> dict[str, str]:
    padded = {}
    for name, module in traced.modules.items():
        calls = traced.calls.get(name, ())
        if isinstance(module, PADDING) and not isinstance(module, nn.CircularPad2d):
            left, right, top, bottom = module.padding
            padded[name] = _why_not_padded((max(top, bottom), max(left, right)), calls)
            if min(module.padding) < 0:
                padded[name] = "it crops"
        elif isinstance(module, nn.Conv2d) and type(module) is not nn.Conv2d and pads_edge(module):
            padded[name] = OTHER_CLASS.format(type(module).__name__)
        elif isinstance(module, nn.Conv2d) and pads_edge(module):
            same = [span // 2 for span in _spans(module)]
            padding = same if isinstance(module.padding, str) else module.padding
            padded[name] = _why_not_padded(padding, calls)
        elif isinstance(module, SAMPLING) and pads_edge(module):
            padded[name] = _why_not_sampled(module, calls)
    return padded


def _why_not_sampled(
    module: nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d, calls: Sequence[tuple[Shape, Shape]]
) -> str:
    """Return why a layer cannot be evaluated at every cell and then sampled, or ""."""
    if type(module) not in SAMPLING:
        return OTHER_CLASS.format(type(module).__name__)
    if not calls:
        return NOT_CALLED
    if getattr(module, "return_indices", False):
        return "its indices are asked for"
    if any(pair(module.padding)) and not getattr(module, "count_include_pad", True):
        return "it leaves its padding out of the mean"
    steps = pair(module.stride)
    for (_, *sizes), (_, *cells) in calls:
        sides = list(zip(sizes, steps, cells, strict=True))
        if any(step * cell != size for size, step, cell in sides):
            made, given, stride = (" × ".join(map(str, sides)) for sides in (cells, sizes, steps))
            return f"it makes {made} cells of {given} by steps of {stride}"
        if any(span - 1 > size for span, size in zip(_spans(module), sizes, strict=True)):
            return "its window is larger than its map"
    return ""


def _why_not_padded(padding: Sequence[int], calls: Sequence[tuple[Shape, Shape]]) -> str:
    """Return why a padding cannot be circular, or ""."""
    for (_, height, width), _ in calls:
        if padding[0] > height or padding[1] > width:
            return "it pads by more than its map"
    return "" if calls else NOT_CALLED


def _spans(module: nn.Module) -> list[int]:
    """Return the number of cells that a window spans along both axes, with dilation."""
    sizes, steps = pair(module.kernel_size), pair(getattr(module, "dilation", 1))
    return [step * (size - 1) + 1 for size, step in zip(sizes, steps, strict=True)]


def _find_positions(traced: TracedModel) -> dict[str, str]:
    reasons = {}
    for name in traced.absolute:
        held = [each for each in traced.tensors if each == name or each.startswith(f"{name}.")]
        placed = [each for each in held if position_axes(traced.tensors[each], traced.grids)]
        reason = "none of its axes is a position" if held else "its code computes them"
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
    model: nn.Module, modules: Mapping[str, nn.Module], trace: ModelTrace, absolute: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the layers that each fix applies to, with why it is impossible or "".

    Args:
        model: The model.
        modules: Modules to consider, by name.
        trace: Trace of a forward pass.
        absolute: Names of parameters, buffers and modules that hold absolute positions.
    """
    calls: dict[str, list[tuple[Shape, Shape]]] = {}
    inputs: dict[str, Shape] = {}
    for event in trace.events:
        shape = () if event.tensor is None else trace.tensors[event.tensor].shape
        name = event.call.module
        if event.call.side == "input":
            inputs[name] = shape
        elif len(shape) == len(inputs[name]) == 3:
            calls.setdefault(name, []).append((inputs[name], shape))
    holders = (*model.named_parameters(), *model.named_buffers())
    tensors = {name: tuple(tensor.shape) for name, tensor in holders if tensor.is_floating_point()}
    layouts = [tensor.layout for tensor in trace.tensors if tensor.layout.grid]
    grids = dict.fromkeys((layout.grid, layout.prefix_tokens) for layout in layouts)
    traced = TracedModel(modules, calls, tensors, absolute, tuple(grids))
    return {name: fix.find(traced) for name, fix in FIXES.items()}
