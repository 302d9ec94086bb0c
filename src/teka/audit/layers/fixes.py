"""Fixes that make a model less sensitive to shifts without training, and layers they can change.

This module only describes the fixes. `teka.convert.fix` applies them.
"""

import operator
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from teka.audit.layers.layouts import (
    PADDING,
    Shape,
    as_pair,
    find_position_axes,
    has_noncircular_padding,
)
from teka.audit.layers.trace import ModelTrace

# Height and width of the input and output map of a layer, for each of its calls.
MapSizes = Sequence[tuple[Shape, Shape]]
WITH_STRIDE = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)


class LayerFix(NamedTuple):
    """Description of a fix: a change to layers that makes a model less sensitive to shifts.

    Args:
        kind: Kind of break that the fix reduces, one of `teka.audit.layers.localize.BREAKS`.
        effect: What the fix does to a layer, as a clause for the user.
        source: Publication of the fix.
        wraps: True if the fix is recommended only for circular shifts, False if only for other
            shifts, and None if for both.
    """

    kind: str
    effect: str
    source: str
    wraps: bool | None


# Fixes by name, in the order in which they are applied.
FIXES = {
    "circular": LayerFix(
        "edge",
        "padding takes values from the opposite side of the feature map instead of zeros",
        "Chaman & Dokmanić 2021",
        True,
    ),
    "blur": LayerFix(
        "aliasing",
        "a layer with a stride is evaluated with stride 1, and its output is low-pass filtered "
        "before it is downsampled",
        "Zhang 2019",
        False,
    ),
    "polyphase": LayerFix(
        "aliasing",
        "a layer with a stride is evaluated with stride 1 and circular padding, and the pixel at "
        "which downsampling starts depends on the content of the image",
        "Chaman & Dokmanić 2021",
        True,
    ),
    "positions": LayerFix(
        "interior",
        "a learned position embedding is replaced by its mean over the positions",
        "Dosovitskiy et al. 2021, Appendix D.4 (training without position embeddings)",
        None,
    ),
}


def find_fixes(
    model: nn.Module, trace: ModelTrace, absolute: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Find the layers that each fix is meant for, and explain if it cannot be applied to them.

    Args:
        model: The model.
        trace: Record of a forward pass, with the modules to consider.
        absolute: Names of parameters, buffers and modules that hold absolute positions.

    Returns:
        For each fix, its layers by name, each with the reason why the fix cannot be applied, or ""
        if it can.
    """
    map_sizes = defaultdict(list)
    for event in trace.events:
        if event.input_tensor is not None and event.tensor is not None:
            before, after = event.input_tensor.shape, event.tensor.shape
            if len(before) == len(after) == 3:
                map_sizes[event.module_name].append((before[1:], after[1:]))
    padded, strided = {}, {}
    for name, module in trace.modules.items():
        sizes = map_sizes[name]
        reason = "" if sizes else "it was not called, or not with a map"
        if type(module) not in (*WITH_STRIDE, *PADDING):
            reason = f"it is a {type(module).__name__}, whose own code may do something else"
        is_padding = isinstance(module, PADDING) and not isinstance(module, nn.CircularPad2d)
        has_stride = isinstance(module, WITH_STRIDE)
        if is_padding or (has_stride and has_noncircular_padding(module)):
            padded[name] = reason or _obstacle_to_circular_padding(module, sizes)
        # A layer that was fixed before has another class with the attribute "sampling".
        if has_stride and max(as_pair(module.stride)) > 1 and not hasattr(module, "sampling"):
            strided[name] = reason or _obstacle_to_late_downsampling(module, sizes)
    positions = _obstacles_to_averaging_positions(model, trace, absolute)
    return {"circular": padded, "blur": strided, "polyphase": strided, "positions": positions}


def _obstacle_to_circular_padding(module: Any, sizes: MapSizes) -> str:
    """Explain why the padding of a layer cannot be made circular, or return "" if it can."""
    if isinstance(module, nn.MaxPool2d | nn.AvgPool2d):
        return _obstacle_to_late_downsampling(module, sizes)
    if isinstance(module, nn.Conv2d):
        rows, columns = as_pair(module.padding)
        if module.padding == "same":
            rows, columns = (size // 2 for size in _window_sizes(module))
    else:
        left, right, top, bottom = module.padding
        rows, columns = max(top, bottom), max(left, right)
        if min(module.padding) < 0:
            return "it crops"
    is_wider = any(rows > height or columns > width for (height, width), _ in sizes)
    return "it pads by more than its map" if is_wider else ""


def _obstacle_to_late_downsampling(module: Any, sizes: MapSizes) -> str:
    """Explain why a layer cannot be evaluated with stride 1 and downsampled later.

    If it can, the result is an empty string. The fixes "blur" and "polyphase" depend on it.
    """
    if getattr(module, "return_indices", False):
        return "it also returns indices"
    if any(as_pair(module.padding)) and not getattr(module, "count_include_pad", True):
        return "its mean leaves out the padding"
    steps = as_pair(module.stride)
    for before, after in sizes:
        if before != tuple(map(operator.mul, after, steps)):
            return (
                f"its output size {after} times its stride {steps} is not its input size {before}"
            )
        if any(map(operator.gt, _window_sizes(module), (side + 1 for side in before))):
            return "its window is larger than its map"
    return ""


def _window_sizes(module: Any) -> list[int]:
    """Return the height and width of a layer's kernel, including its dilation."""
    sizes, steps = as_pair(module.kernel_size), as_pair(getattr(module, "dilation", 1))
    return [step * (size - 1) + 1 for size, step in zip(sizes, steps, strict=True)]


def _obstacles_to_averaging_positions(
    model: nn.Module, trace: ModelTrace, absolute: Sequence[str]
) -> dict[str, str]:
    """Explain why position embeddings of a model cannot be averaged over the positions.

    The result contains the reason for each embedding by its name, or "" if it can be averaged.
    """
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    reasons = {}
    for holder in absolute:
        held = [name for name in tensors if name == holder or name.startswith(f"{holder}.")]
        reason = "none of its axes is a position" if held else "its code computes them"
        replaceable = [
            name for name in held if find_position_axes(tuple(tensors[name].shape), trace.grids)
        ]
        reasons |= dict.fromkeys(replaceable, "") or {holder: reason}
    return reasons
