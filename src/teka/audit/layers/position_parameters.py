"""Absolute positions and class tokens of a model, recognised by name, by shape, or by the class of their module."""

import re
from collections.abc import Iterable

from torch import Tensor, nn

from teka.audit.layers.layout import Layout

ABSOLUTE_NAME = re.compile(
    r"(^|_)(pos|positions?|positional)_?(emb|embed|embeds|embedding|embeddings|enc|encoding)(_|$)|^pe$|^abs(olute)?_pos"
)
ABSOLUTE_CLASS = re.compile(
    r"(Absolute|Positional|Sinusoid\w*)(Position|Embedding|Encoding)|Position(Embedding|Encoding)"
)
RELATIVE = re.compile(r"rel(ative)?_?pos|relative|rotary|rope", re.IGNORECASE)
CLASS_NAME = re.compile(r"^(cls|class|dist|distillation|reg|register)_?(tokens?|embeddings?)$")
# Names that say nothing of what is held: that of the module does.
PLAIN_NAMES = ("weight", "data")


def absolute_embeddings(module: nn.Module, layouts: Iterable[Layout]) -> tuple[str, ...]:
    """Names of the parameters, buffers and modules that hold absolute positions.

    By name: `pos_embed`, `position_embeddings`, `positional_embedding`, `pos_encoding`, `pe`, `absolute_pos_embed`, …,
    none with "relative" or "rotary" in it; `.weight` is named by its module. By shape: a parameter or buffer
    (1, L, D), (1, D, h, w) or (1, h, w, D), where the layers have L tokens or cells, or a grid (h, w). By class: a
    module called …AbsolutePosition, PositionalEncoding or the like, if it owns none of these.

    Args:
        module: The model.
        layouts: How the outputs of its layers lie.
    """
    grids = [layout for layout in layouts if layout.grid]
    totals = {layout.num_tokens for layout in grids if layout.name.startswith("tokens")}
    sides = {layout.grid for layout in grids if max(layout.grid) > 1}
    found = []
    for name, tensor in _tensors(module):
        called = _called(name)
        if RELATIVE.search(called) or CLASS_NAME.match(called):
            continue
        if ABSOLUTE_NAME.search(called) or _has_place(tensor, totals, sides):
            found.append(name)
    for name, part in module.named_modules():
        kind = type(part).__name__
        owns = any(other.startswith(f"{name}.") for other in found)
        if name and ABSOLUTE_CLASS.search(kind) and not RELATIVE.search(kind) and not owns:
            found.append(name)
    return tuple(found)


def class_tokens(module: nn.Module) -> tuple[str, ...]:
    """Names of the parameters that hold class, distillation and register tokens.

    Args:
        module: The model.
    """
    return tuple(name for name, _ in module.named_parameters() if CLASS_NAME.match(_called(name)))


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _called(name: str) -> str:
    parts = name.split(".")
    return parts[-2] if parts[-1] in PLAIN_NAMES and len(parts) > 1 else parts[-1]


def _has_place(tensor: Tensor, totals: set[int], sides: set[tuple[int, ...]]) -> bool:
    if not tensor.is_floating_point() or tensor.ndim not in (3, 4) or tensor.shape[0] != 1:
        return False
    if tensor.ndim == 3:
        return tensor.shape[1] in totals
    return tuple(tensor.shape[2:]) in sides or tuple(tensor.shape[1:3]) in sides
