"""Fixes of layers that break equivariance, which need no training, and the layers they apply to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from teka.audit.layers.layouts import PADDING, pads_edge, pair, position_axes
from teka.audit.layers.trace import ModelTrace

Shape = tuple[int, ...]
SAMPLING = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)


@dataclass(frozen=True)
class Fix:
    """Change of some layers of a model that needs no training, applied by `teka.convert.fix`.

    Args:
        name: Name of the fix.
        kind: Kind of break that it repairs, of `teka.audit.layers.localize.BREAKS`.
        does: What it does, in a sentence.
        source: Publication.
        wraps: Whether it is recommended for circular shifts (True), others (False) or both (None).
    """

    name: str
    kind: str
    does: str
    source: str
    wraps: bool | None


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
        ),
        Fix(
            "blur",
            "aliasing",
            "a strided layer is evaluated at every cell, low-pass filtered, and then sampled",
            "Zhang 2019",
            False,
        ),
        Fix(
            "polyphase",
            "aliasing",
            "a strided layer is evaluated at every cell with circular edges, and the content "
            "determines which subgrid is kept",
            "Chaman & Dokmanić 2021",
            True,
        ),
        Fix(
            "positions",
            "interior",
            "a learned position embedding is replaced by its mean over the positions",
            "the ablation of Dosovitskiy et al. 2021, Appendix D.4, which trains without any",
            None,
        ),
    )
}


def find_fixes(
    model: nn.Module, trace: ModelTrace, absolute: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the layers that each fix applies to, with why the fix is impossible or "".

    Args:
        model: The model.
        trace: Trace of a forward pass, with the modules to consider.
        absolute: Names of parameters, buffers and modules that hold absolute positions.
    """
    map_sizes = _find_map_sizes(trace)
    padded, strided = {}, {}
    for name, module in trace.modules.items():
        sizes = map_sizes.get(name, [])
        reason = "" if sizes else "it was not called, or not with a map"
        if type(module) not in (*SAMPLING, *PADDING):
            reason = f"it is a {type(module).__name__}, whose own code may do something else"
        is_padding = isinstance(module, PADDING) and not isinstance(module, nn.CircularPad2d)
        is_sampling = isinstance(module, SAMPLING)
        if is_padding or (is_sampling and pads_edge(module)):
            padded[name] = reason or _why_not_circular(module, sizes)
        # A layer that was fixed before has another class with the attribute "sampling".
        if is_sampling and max(pair(module.stride)) > 1 and not hasattr(module, "sampling"):
            strided[name] = reason or _why_not_sampled(module, sizes)
    positions = _find_positions(model, trace, absolute)
    return {"circular": padded, "blur": strided, "polyphase": strided, "positions": positions}


def _find_map_sizes(trace: ModelTrace) -> dict[str, list[tuple[Shape, Shape]]]:
    """Return the sizes of the map that each module receives and returns, at each of its calls."""
    sizes: dict[str, list[tuple[Shape, Shape]]] = {}
    for event in trace.events:
        if event.source is None or event.tensor is None:
            continue
        shapes = event.source.shape, event.tensor.shape
        if len(shapes[0]) == len(shapes[1]) == 3:
            sizes.setdefault(event.module_name, []).append((shapes[0][1:], shapes[1][1:]))
    return sizes


def _why_not_circular(module: Any, sizes: Sequence[tuple[Shape, Shape]]) -> str:
    """Return why the padding of a layer cannot be circular, or ""."""
    if isinstance(module, nn.MaxPool2d | nn.AvgPool2d):
        return _why_not_sampled(module, sizes)
    if isinstance(module, nn.Conv2d):
        is_same = module.padding == "same"
        rows, columns = [span // 2 for span in _spans(module)] if is_same else pair(module.padding)
    else:
        left, right, top, bottom = module.padding
        rows, columns = max(top, bottom), max(left, right)
        if min(module.padding) < 0:
            return "it crops"
    is_wider = any(rows > height or columns > width for (height, width), _ in sizes)
    return "it pads by more than its map" if is_wider else ""


def _why_not_sampled(
    module: nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d, sizes: Sequence[tuple[Shape, Shape]]
) -> str:
    """Return why a layer cannot be evaluated at every cell and then sampled, or ""."""
    if getattr(module, "return_indices", False):
        return "its indices are asked for"
    if any(pair(module.padding)) and not getattr(module, "count_include_pad", True):
        return "it leaves its padding out of the mean"
    steps = pair(module.stride)
    for before, after in sizes:
        if any(
            step * cells != side for side, step, cells in zip(before, steps, after, strict=True)
        ):
            made, given, stride = (" × ".join(map(str, each)) for each in (after, before, steps))
            return f"it makes {made} cells of {given} by steps of {stride}"
        if any(span - 1 > side for span, side in zip(_spans(module), before, strict=True)):
            return "its window is larger than its map"
    return ""


def _spans(module: nn.Module) -> list[int]:
    """Return the number of cells that a window spans along both axes, with dilation."""
    sizes, steps = pair(module.kernel_size), pair(getattr(module, "dilation", 1))
    return [step * (size - 1) + 1 for size, step in zip(sizes, steps, strict=True)]


def _find_positions(model: nn.Module, trace: ModelTrace, absolute: Sequence[str]) -> dict[str, str]:
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    reasons = {}
    for holder in absolute:
        held = [name for name in tensors if name == holder or name.startswith(f"{holder}.")]
        reason = "none of its axes is a position" if held else "its code computes them"
        placed = [name for name in held if position_axes(tuple(tensors[name].shape), trace.grids)]
        reasons |= dict.fromkeys(placed, "") or {holder: reason}
    return reasons
