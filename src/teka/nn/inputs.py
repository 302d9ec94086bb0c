"""Inputs of an attention layer: checks of tokens and contexts, and where they are."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from teka._compat import ProcessGroup, replace
from teka.checks import INTEGER_DTYPES, check_sizes, check_tensor
from teka.errors import wrong_argument, wrong_value
from teka.functional import length_mask
from teka.functional.positions import Positions, check_mask, make_positions, packed_lengths
from teka.functional.shapes import KeyMask, QueryMask
from teka.grid import GridLike

# Queries, keys and values of all heads of a layer, of which some have no queries or keys.
AllQueries = Float[Tensor, "batch query_heads queries dim_head"]
AllKeys = Float[Tensor, "batch key_heads keys dim_head"]
AllValues = Float[Tensor, "batch layer_heads keys dim_value"]
# Tokens that attend, and those that are attended to.
Tokens = Float[Tensor, "batch queries dim"]
Context = Float[Tensor, "batch keys context_dim"]


def check_tokens(argument: str, tokens: Tensor, *sizes: str | int, first: nn.Module) -> None:
    """Check the shape of tokens, or images, and that they have the dtype of `first`, unless torch casts."""
    check_tensor(argument, tokens, *sizes)
    if (
        type(first)
        not in (
            nn.Linear,
            nn.modules.linear.NonDynamicallyQuantizableLinear,
            nn.Conv1d,
            nn.Conv2d,
            nn.Conv3d,
        )
        or torch.compiler.is_compiling()
    ):
        return
    assert isinstance(first.weight, Tensor)
    dtypes = (tokens.dtype, first.weight.dtype)
    if dtypes[0] == dtypes[1]:
        return
    if torch.float64 in dtypes or not torch.is_autocast_enabled(tokens.device.type):
        raise wrong_value(argument, tokens.dtype, f"of {dtypes[1]}, like the layer's weights")


@dataclass(frozen=True)
class AttentionInputs:
    """Tokens that attend and those that are attended to; in the latter what is dropped is 0."""

    tokens: Tokens  # tokens that attend
    context: Context  # tokens that are attended to
    key_mask: KeyMask  # true where one of these is kept, None for all
    query_mask: QueryMask  # true where a token that attends is real, None for all
    positions: Positions  # where both are, nowhere if that does not matter
    has_context: bool  # whether the two are not the same tokens
    group: ProcessGroup | None = None  # over which the tokens are divided, these being one process'
    whole: Positions = field(default_factory=Positions)  # where they all are then, if on a grid
    sequences: tuple[int, ...] | None = None  # lengths of sequences that stand one after another


def make_inputs(
    tokens: Float[Tensor, "batch tokens dim"],
    grid: GridLike | None,
    key_mask: KeyMask,
    num_prefix_tokens: int,
    num_queries: int | None,
    positions: Float[Tensor, "*batch placed axes"] | None,
    lengths: Int[Tensor, "batch"] | None,
    context: Float[Tensor, "batch keys context_dim"] | None,
    context_grid: GridLike | None,
    context_positions: Float[Tensor, "*key_batch placed_keys axes"] | None,
    *,
    dims: tuple[int, int],
    first: nn.Module,
    needs_places: bool,
    group: ProcessGroup | None = None,
    cu_seqlens: Int[Tensor, "sequences"] | None = None,
) -> AttentionInputs:
    """Check the arguments of `Attention.forward`, of tokens and context of these sizes, and put them in order."""
    check_tokens("tokens", tokens, "batch", "tokens", dims[0], first=first)
    check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
    check_sizes({"num_queries": num_queries}, most=tokens.shape[1], or_none=True)
    where = whole = replace(
        make_positions("", grid, positions), num_prefix_tokens=num_prefix_tokens
    )
    if group is not None:
        for argument, given in (
            ("num_prefix_tokens", num_prefix_tokens or None),
            ("context", context),
        ):
            if given is not None:
                raise wrong_argument(
                    argument, "a value", "None where tokens are divided over processes"
                )
        if where.grid is not None:
            where = Positions(where.grid.shard(group.rank(), group.size()))
    if context is None:
        for argument, given in (
            ("context_grid", context_grid),
            ("context_positions", context_positions),
        ):
            if given is not None:
                raise wrong_argument(argument, "a value", "None without a context")
        if dims[1] != dims[0]:
            raise wrong_value("context", None, f"tokens of size context_dim = {dims[1]}")
    else:
        check_tokens("context", context, tokens.shape[0], "tokens", dims[1], first=first)
        where = replace(where, key=make_positions("context_", context_grid, context_positions))
    attended_to, query_mask = tokens if context is None else context, None
    counts = {
        "batch": tokens.shape[0],
        "num_queries": tokens.shape[1],
        "num_keys": attended_to.shape[1],
    }
    where.check(**counts, key="context_", is_needed=needs_places)
    if lengths is not None:
        if key_mask is not None:
            raise wrong_argument("key_mask", "both", "None with lengths")
        check_tensor("lengths", lengths, tokens.shape[0], dtypes=INTEGER_DTYPES)
        key_mask = length_mask(lengths, attended_to.shape[1])
        query_mask = key_mask[:, :num_queries] if context is None else None
    if key_mask is not None:
        check_mask(
            "key_mask", key_mask, batch=attended_to.shape[0], num_tokens=attended_to.shape[1]
        )
        # What is dropped has no part in what the maps learn either, not even if it is NaN.
        attended_to = attended_to.masked_fill(~key_mask[..., None], 0.0)
        tokens = tokens if query_mask is None else attended_to
    sequences = None
    if cu_seqlens is not None:
        excluded = {"key_mask or lengths": key_mask, "num_prefix_tokens": num_prefix_tokens or None}
        excluded = {
            **excluded,
            "context": context,
            "num_queries": num_queries,
            "shard_tokens": group,
        }
        sequences = packed_lengths(cu_seqlens, tokens.shape[1], where, excluded)
    where = where if needs_places else Positions()
    return AttentionInputs(
        tokens[:, :num_queries],
        attended_to,
        key_mask,
        query_mask,
        where,
        context is not None,
        group,
        whole,
        sequences,
    )
