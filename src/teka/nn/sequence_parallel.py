"""Tokens that are divided over the processes of a group: every attention adds what the processes know of the keys."""

from typing import TYPE_CHECKING, TypeVar

from torch import nn

from teka._compat import ProcessGroup
from teka.errors import wrong_argument, wrong_type, wrong_value
from teka.functional import FeatureKernel
from teka.nn.attention import Attention, TokenGroup

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

M = TypeVar("M", bound=nn.Module)


def shard_tokens(model: M, group: "ProcessGroup | DeviceMesh | None") -> M:
    """Let the attentions of a model see the tokens of all processes of a group, of which each has a part.

        out_i = φ(q_i)ᵀ Σ_ranks S_rank / φ(q_i)ᵀ Σ_ranks z_rank,   S = Σ_j φ(k_j) v_jᵀ, z = Σ_j φ(k_j) of its own keys

    A layer is then called with the process' own tokens and the whole grid, of which it has `grid.shard(rank, size)`:
    whole rows of the first axis, the parts in the order of ranks. Or with its tokens' own `positions`. One sum over the
    processes goes forward and one back, whose size does not depend on the number of tokens; causal layers add what the
    ranks before have. All processes must go through the same layers, and backward; a parameter's gradient is of the
    process' own tokens, to be summed over the group. What of a model is no attention has to work token by token.

    Args:
        model: A layer or a model, changed in place.
        group: A process group, or a `DeviceMesh` of one dimension, `mesh["tokens"]` say. None is no group: as before.

    Returns:
        The model.

    Raises:
        ValueError: No attention, or one that needs every pair, or something else of all tokens.

    >>> from teka import nn
    >>> from torch import distributed
    >>> store = distributed.HashStore()
    >>> distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> layer = nn.shard_tokens(nn.Attention(8, 2), distributed.group.WORLD)
    >>> distributed.destroy_process_group()
    """
    if not isinstance(model, nn.Module):
        raise wrong_type("model", model, "a module")
    if group is not None and not isinstance(group, ProcessGroup):
        if getattr(group, "ndim", None) != 1:
            raise wrong_value("group", group, "a process group, or a DeviceMesh of one dimension")
        group = group.get_group()
    layers = {name: one for name, one in model.named_modules() if isinstance(one, Attention)}
    if not layers:
        raise wrong_value("model", type(model).__name__, "a model with a teka.nn.Attention")
    for name, layer in layers.items():
        reason = None if group is None else unsupported_reason(layer)
        if reason:
            expected = "a layer with sums that processes can add"
            raise wrong_argument(f"attention {name or 'itself'}", reason, expected)
    for layer in layers.values():
        layer.token_group = None if group is None else TokenGroup(group)
    return model


def unsupported_reason(layer: Attention) -> str | None:
    """What of a layer needs all tokens in one process, or None."""
    if layer.value_convolution is not None:
        return "with a value_convolution"
    if layer.query_key.removes_bias:
        return "with query_key='centred'"
    for group in layer.head_groups():
        kernel, relative = group.kernel, group.relative
        if not isinstance(kernel, FeatureKernel):
            return f"with kernel={kernel.name!r}, which has no features"
        if type(kernel).fitted is not FeatureKernel.fitted and not layer.causal:
            return f"with kernel={kernel.name!r}, which is fitted to all tokens"
        if relative is not None and not relative.has_linear_features:
            return f"with relative={relative.name!r}, whose sums are not those of features"
        if group.backend not in ("auto", "linear"):
            return f"with backend={group.backend!r}"
    return None
