"""Pruning of attention heads."""

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
from teka.nn.options import backend_without_relative_kernel
from teka.nn.qk_norm import IdentityQueryKeyNorm
from teka.nn.relative import RelativeModule


def prune_heads(attention: Attention, heads: Iterable[int]) -> Attention:
    """Return a smaller and faster copy of an attention layer without some of its heads.

    The original layer does not change, and the copy shares no parameters with it. The output is the
    sum over the kept heads,

        pruned(x) = Σ_{h kept} O_h attention_h(x) + b.

    Here O_h is the block of the output projection that belongs to head h, and b is its bias. If all
    heads with a relative kernel are removed, the copy has no relative kernel. If only heads that
    attend by position alone are kept, the content kernel of the copy is constant.

    Source: Michel, Levy & Neubig 2019; Cordonnier et al. 2020, A.1.

    >>> import torch, teka
    >>> layer = teka.nn.Attention(16, heads=4)
    >>> pruned = teka.nn.prune_heads(layer, [1, 3])
    >>> pruned(torch.randn(1, 12, 16), (3, 4)).shape
    torch.Size([1, 12, 16])

    Args:
        attention: Layer.
        heads: Heads to remove, numbers from 0 to heads − 1. At least one head must remain.

    Raises:
        ValueError: `heads` contains all heads or a number that is not a head, or a custom relative
            kernel does not declare its `head_parameters`.
    """
    if not isinstance(attention, Attention):
        raise wrong_type("attention", attention, "a teka.nn.Attention")
    kept = _kept_heads(attention, heads)
    pruned = copy.deepcopy(attention)
    query_heads, key_heads = _kept_query_and_key_heads(attention, kept)
    pruned.query = _prune_outputs(pruned.query, query_heads, attention.dim_head)
    pruned.key = _prune_outputs(pruned.key, key_heads, attention.dim_head)
    pruned.value = _prune_outputs(pruned.value, kept, attention.dim_head)
    pruned.output.weight = _prune_parameter(pruned.output.weight, kept, attention.heads, axis=1)
    pruned.output.in_features = len(kept) * attention.dim_value
    if pruned.gate is not None:
        _prune_outputs(pruned.gate.projection, kept, attention.dim_value)
    if pruned.value_convolution is not None:
        weight = pruned.value_convolution.weight
        pruned.value_convolution.weight = _prune_parameter(weight, kept, attention.heads)
    content_heads = [head for head in kept if head < attention.content_heads]
    position_heads = [
        head - attention.content_heads for head in kept if head >= attention.content_heads
    ]
    if attention.position_heads == 0:
        _prune_relative(pruned.relative, kept, attention.heads)
    elif position_heads:
        _prune_relative(pruned.relative, position_heads, attention.position_heads)
    else:
        pruned.relative = None
        pruned.backend = backend_without_relative_kernel(attention.backend)
    pruned.heads = len(kept)
    pruned.position_heads = len(position_heads) if content_heads else 0
    pruned.content_heads = pruned.heads - pruned.position_heads
    _prune_content(pruned, content_heads, attention.content_heads)
    return pruned


def _kept_heads(attention: Attention, heads: Iterable[int]) -> list[int]:
    try:
        removed = list(heads)
    except TypeError:
        expected = "several integers, one for each head to remove"
        raise wrong_value("heads", heads, expected) from None
    for head in removed:
        if not (is_integer(head) and 0 <= head < attention.heads):
            expected = f"integers from 0 to {attention.heads - 1}"
            raise wrong_value("heads", removed, expected)
    kept = [head for head in range(attention.heads) if head not in removed]
    if not kept:
        expected = f"fewer than all {attention.heads} heads, because at least one must remain"
        raise wrong_value("heads", removed, expected)
    return kept


def _kept_query_and_key_heads(
    attention: Attention, kept: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the kept heads as indices into the query projection and into the key projection.

    These indices can differ from those of the heads, because heads that attend by position alone
    have no keys and usually no queries.
    """
    query_heads: list[int] = []
    key_heads: list[int] = []
    for group in attention.head_groups():
        kept_in_group = [
            index for index, head in enumerate(range(attention.heads)[group.heads]) if head in kept
        ]
        for part, indices, linear in (
            (group.queries, query_heads, attention.query),
            (group.keys, key_heads, attention.key),
        ):
            if part is not None and linear is not None:
                projected = range(linear.out_features // attention.dim_head)[part]
                indices += [projected[index] for index in kept_in_group]
    return query_heads, key_heads


def _prune_parameter(
    parameter: Tensor, kept: Sequence[int], num_heads: int, *, axis: int = 0
) -> Parameter:
    """Return a copy of a parameter with only the entries of the kept heads."""
    by_head = parameter.detach().unflatten(axis, (num_heads, -1))
    index = torch.tensor(kept, device=parameter.device)
    selected = by_head.index_select(axis, index).flatten(axis, axis + 1)
    return Parameter(selected, requires_grad=parameter.requires_grad)


def _prune_outputs(
    linear: nn.Linear | None, kept: Sequence[int], dim_head: int
) -> nn.Linear | None:
    """Remove the outputs of a linear layer that do not belong to the kept heads, in place.

    Each head has `dim_head` outputs. Return the layer, or None if no head is kept.
    """
    if linear is None or not kept:
        return None
    num_heads = linear.out_features // dim_head
    linear.weight = _prune_parameter(linear.weight, kept, num_heads)
    if linear.bias is not None:
        linear.bias = _prune_parameter(linear.bias, kept, num_heads)
    linear.out_features = len(kept) * dim_head
    return linear


def _prune_relative(relative: RelativeModule | None, kept: Sequence[int], num_heads: int) -> None:
    if relative is None or len(kept) == num_heads:
        return
    if relative.head_parameters is None:
        expected = "a module that declares `head_parameters`, such as teka.nn.LearnedRelativeKernel"
        raise wrong_value("the relative kernel", type(relative).__name__, expected)
    for name in relative.head_parameters:
        value = getattr(relative, name)
        if isinstance(value, nn.ModuleList):
            for linear in value:
                assert isinstance(linear, nn.Linear)
                _prune_outputs(linear, kept, 1)
        else:
            selected = _prune_parameter(value, kept, num_heads)
            is_parameter = isinstance(value, Parameter)
            setattr(relative, name, selected if is_parameter else selected.detach())


def _prune_content(pruned: Attention, kept: Sequence[int], num_heads: int) -> None:
    if not kept:
        # PyTorch does not replace a module by an object that is not a module.
        del pruned.kernel
        pruned.kernel = Constant()
        pruned.query_key = IdentityQueryKeyNorm()
        return
    kernel = pruned.kernel
    if isinstance(kernel, LearnedFeatures):
        kernel.heads = len(kept)
    elif isinstance(kernel, Hedgehog) and len(kernel.query_weight) > 1:
        names = LearnedFeatures.head_parameters
        parts = {name: getattr(kernel, name)[list(kept)] for name in names}
        pruned.kernel = dataclasses.replace(kernel, **parts)
    for module in (kernel, pruned.query_key):
        for name in getattr(module, "head_parameters", ()):
            setattr(module, name, _prune_parameter(getattr(module, name), kept, num_heads))
