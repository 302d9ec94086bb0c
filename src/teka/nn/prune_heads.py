"""Removing heads of an attention layer for good."""

import copy
import dataclasses
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from teka.checks import is_integer
from teka.errors import wrong_type, wrong_value
from teka.functional import Constant, Hedgehog
from teka.nn.attention import Attention
from teka.nn.features import LearnedFeatures
from teka.nn.options import without_relative
from teka.nn.qk_norm import PlainQueryKey
from teka.nn.relative import RelativeModule


def prune_heads(attention: Attention, heads: Iterable[int]) -> Attention:
    """A layer without some heads of another, which stays as it is: pruned(x) = Σ_{h kept} O_h attention_h(x) + b.

    It has the weights of the heads that are kept and no others, so that it costs as much less; the bias b of the output
    stays. Heads that attend by position alone (`position_heads`) stay such heads: without them the layer has no
    relative kernel, and without all others its content kernel is the constant one. A parameter that the layer shared
    with other layers is the new layer's own. The heads to remove are numbers from 0 to heads − 1; a head that is not
    there, all heads, or a relative kernel whose parameters are not known are a ValueError.

    Source: Michel, Levy & Neubig 2019 (Are sixteen heads really better than one?); Cordonnier et al. 2020, A.1.
    """
    if not isinstance(attention, Attention):
        raise wrong_type("attention", attention, "a teka.nn.Attention")
    kept = _kept_heads(attention, heads)
    pruned = copy.deepcopy(attention)
    pruned.query = _without_rows(
        pruned.query, _rows(attention, "queries", kept), attention.dim_head
    )
    pruned.key = _without_rows(pruned.key, _rows(attention, "keys", kept), attention.dim_head)
    pruned.value = _without_rows(pruned.value, kept, attention.dim_head)
    pruned.output.weight = _take(pruned.output.weight, kept, attention.heads, axis=1)
    pruned.output.in_features = len(kept) * attention.dim_value
    if pruned.gate is not None:
        _without_rows(pruned.gate.projection, kept, attention.dim_value)
    if pruned.value_convolution is not None:
        pruned.value_convolution.weight = _take(
            pruned.value_convolution.weight, kept, attention.heads
        )
    content = [head for head in kept if head < attention.content_heads]
    placed = [head - attention.content_heads for head in kept if head >= attention.content_heads]
    pruned.heads = len(kept)
    if attention.position_heads == 0:
        _prune_relative(pruned.relative, kept, attention.heads)
    elif placed:
        _prune_relative(pruned.relative, placed, attention.position_heads)
    else:
        pruned.relative, pruned.backend = None, without_relative(attention.backend)
    pruned.position_heads = len(placed) if attention.position_heads and content else 0
    pruned.content_heads = len(kept) - pruned.position_heads
    _prune_content(pruned, content, attention.content_heads)
    return pruned


def _kept_heads(attention: Attention, heads: Iterable[int]) -> list[int]:
    try:
        removed = list(heads)
    except TypeError:
        raise wrong_value(
            "heads", heads, "several whole numbers, one for each head to remove"
        ) from None
    for head in removed:
        if not (is_integer(head) and 0 <= head < attention.heads):
            raise wrong_value(
                "heads",
                removed,
                f"whole numbers from 0 to {attention.heads - 1}, as there are heads",
            )
    kept = [head for head in range(attention.heads) if head not in removed]
    if not kept:
        raise wrong_value(
            "heads", removed, f"fewer than all {attention.heads} heads: a layer has one at least"
        )
    return kept


def _rows(attention: Attention, which: str, kept: Sequence[int]) -> list[int]:
    """Which of the layer's queries, or of its keys, are those of the heads that are kept."""
    linear = attention.query if which == "queries" else attention.key
    if linear is None:
        return []
    rows: dict[int, int] = {}
    for group in attention.head_groups():
        own = group.queries if which == "queries" else group.keys
        if own is not None:
            places = range(linear.out_features // attention.dim_head)[own]
            rows |= zip(range(attention.heads)[group.heads], places, strict=True)
    return [rows[head] for head in kept if head in rows]


def _take(parameter: Tensor, kept: Sequence[int], heads: int, *, axis: int = 0) -> Parameter:
    """The numbers of some heads, of a parameter with those of all one after another along an axis."""
    by_head = parameter.detach().unflatten(axis, (heads, -1))
    chosen = by_head.index_select(axis, torch.tensor(kept, device=parameter.device)).flatten(
        axis, axis + 1
    )
    return Parameter(chosen, requires_grad=parameter.requires_grad)


def _without_rows(linear: nn.Linear | None, kept: Sequence[int], size: int) -> nn.Linear | None:
    """A linear map with the outputs of some heads alone, in place; None if there are none."""
    if linear is None or not kept:
        return None
    heads = linear.out_features // size
    linear.weight = _take(linear.weight, kept, heads)
    if linear.bias is not None:
        linear.bias = _take(linear.bias, kept, heads)
    linear.out_features = len(kept) * size
    return linear


def _prune_relative(relative: RelativeModule | None, kept: Sequence[int], heads: int) -> None:
    if relative is None or len(kept) == heads:
        return
    own = relative.head_parameters
    if own is None:
        expected = "a module that declares `head_parameters`, such as teka.nn.RelativeKernel"
        raise wrong_value("the relative kernel", type(relative).__name__, expected)
    for name in own:
        found = getattr(relative, name)
        if isinstance(found, nn.ModuleList):
            for linear in found:
                assert isinstance(linear, nn.Linear)
                _without_rows(linear, kept, 1)
        else:
            taken = _take(found, kept, heads)
            setattr(relative, name, taken if isinstance(found, Parameter) else taken.detach())


def _prune_content(pruned: Attention, content: Sequence[int], heads: int) -> None:
    if not content:
        del pruned.kernel  # a module gives its place to nothing but modules
        pruned.kernel = Constant()
        pruned.query_key = PlainQueryKey()
        return
    if isinstance(pruned.kernel, LearnedFeatures):
        pruned.kernel.heads = len(content)
    elif isinstance(pruned.kernel, Hedgehog) and pruned.kernel.query_weight.shape[0] > 1:
        own = {
            name: getattr(pruned.kernel, name)[list(content)]
            for name in LearnedFeatures.head_parameters
        }
        pruned.kernel = dataclasses.replace(pruned.kernel, **own)
    for module in (pruned.kernel, pruned.query_key):
        for name in getattr(module, "head_parameters", ()):
            setattr(module, name, _take(getattr(module, name), content, heads))
