"""Sequence parallelism, which divides the tokens of a long sequence among several processes."""

from typing import TYPE_CHECKING, TypeVar

from torch import nn

from teka._compat import ProcessGroup
from teka.errors import wrong_argument, wrong_type, wrong_value
from teka.functional import FeatureKernel
from teka.nn.attention import Attention, ProcessGroupHolder

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

M = TypeVar("M", bound=nn.Module)


def shard_tokens(model: M, group: "ProcessGroup | DeviceMesh | None") -> M:
    """Let the attention layers of a model attend to the tokens of all processes of a group.

    Each process holds the tokens of one part of a long sequence. Linear attention depends on keys
    and values only through two sums, so the processes exchange only these sums. Process r computes
    S_r = Σ_j φ(k_j) v_jᵀ and z_r = Σ_j φ(k_j) over its own keys j, where φ maps queries and keys to
    features. Each output is then

        out_i = φ(q_i)ᵀ Σ_r S_r / φ(q_i)ᵀ Σ_r z_r.

    The sums are exchanged once in the forward pass and once in the backward pass. Their size does
    not depend on the number of tokens. A causal layer adds only the sums of lower ranks.

    - Call the model with the tokens of `grid.shard(rank, size)` and with the grid of all tokens, or
      with the `positions` of the tokens of this process.
    - All processes must run the same forward and backward passes.
    - The gradient of a parameter comes from the tokens of this process. Sum it over the group.
    - All other layers of the model must act on each token separately.

    Args:
        model: A layer or a model, changed in place.
        group: A process group, or a `DeviceMesh` with one dimension, such as `mesh["tokens"]`. None
            removes the group.

    Returns:
        The model.

    Raises:
        ValueError: The model has no `Attention`, or an attention that cannot be divided.

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
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, Attention)
    }
    if not layers:
        raise wrong_value("model", type(model).__name__, "a model with a teka.nn.Attention")
    for name, layer in layers.items():
        reason = None if group is None else find_sharding_obstacle(layer)
        if reason:
            expected = "a layer whose tokens can be divided"
            hint = "Processes exchange only sums over keys, but this layer needs more."
            raise wrong_argument(
                f"attention {name or 'itself'}", f"a layer {reason}", expected, hint
            )
    for layer in layers.values():
        layer.token_group = None if group is None else ProcessGroupHolder(group)
    return model


def find_sharding_obstacle(layer: Attention) -> str | None:
    """Return the reason why the tokens of a layer cannot be divided among processes, or None.

    They can be divided if attention depends on keys and values only through sums over the keys.
    """
    if layer.value_convolution is not None:
        return "with a value_convolution"
    if layer.query_key.removes_bias:
        return "with query_key='centred'"
    for group in layer.head_groups():
        kernel, relative = group.kernel, group.relative
        if not isinstance(kernel, FeatureKernel):
            return f"with kernel={kernel.name!r}, which has no features"
        if type(kernel).with_statistics is not FeatureKernel.with_statistics and not layer.causal:
            return f"with kernel={kernel.name!r}, which is fitted to all tokens"
        if relative is not None and not relative.can_add_positions_to_features:
            return f"with relative={relative.name!r}, whose sums are not sums of features"
        if group.backend not in ("auto", "linear"):
            return f"with backend={group.backend!r}"
    return None
