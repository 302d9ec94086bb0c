"""Inputs of an attention layer: tokens, masks and positions."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor, nn

from teka._compat import ProcessGroup
from teka.checks import INTEGER_DTYPES, check_sizes, check_tensor
from teka.errors import wrong_argument, wrong_value
from teka.functional import length_mask
from teka.functional.positions import Positions, check_mask, compute_packed_lengths, make_positions
from teka.functional.shapes import KeyMask, QueryMask
from teka.grid import GridLike

# Queries, keys and values of all heads of a layer. Some heads may have no queries or no keys.
AllQueries = Float[Tensor, "batch query_heads queries dim_head"]
AllKeys = Float[Tensor, "batch key_heads keys dim_head"]
AllValues = Float[Tensor, "batch layer_heads keys dim_value"]
Tokens = Float[Tensor, "batch queries dim"]
Context = Float[Tensor, "batch keys context_dim"]

# Layers whose inputs need the dtype of the weight. In quantized layers, for example, they differ.
PLAIN_LAYERS = (
    nn.Linear,
    nn.modules.linear.NonDynamicallyQuantizableLinear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
)


def check_layer_input(argument: str, tokens: Tensor, *sizes: str | int, layer: nn.Module) -> None:
    """Check the shape and the dtype of the tokens or images that a layer receives.

    The dtype must be that of the layer's weights, unless autocast converts the input.

    Args:
        argument: Name of the argument, for the error message.
        tokens: Input of the layer.
        *sizes: Size of each dimension, or its name if any size is valid.
        layer: Layer whose weights determine the dtype.

    Raises:
        ValueError: The shape or the dtype is wrong.
    """
    check_tensor(argument, tokens, *sizes)
    if type(layer) not in PLAIN_LAYERS or torch.compiler.is_compiling():
        return
    assert isinstance(layer.weight, Tensor)
    dtype, expected = tokens.dtype, layer.weight.dtype
    if dtype == expected:
        return
    # Autocast does not convert float64.
    has_float64 = torch.float64 in (dtype, expected)
    if has_float64 or not torch.is_autocast_enabled(tokens.device.type):
        raise wrong_value(argument, dtype, f"of {expected}, like the layer's weights")


@dataclass(frozen=True)
class AttentionInputs:
    """Checked tokens, positions and masks of one call of an attention layer.

    `prepare_attention_inputs` creates them from the arguments of `Attention.forward`.

    Args:
        tokens: Tokens that attend.
        context: Tokens that are attended to.
        positions: Positions of the tokens and the context, empty if the layer does not use them.
        key_mask: True for tokens of the context that may be attended to.
        query_mask: True for tokens that are not padding.
        group: Process group over which the tokens are divided.
        all_positions: Positions of the tokens of all processes of the group.
        sequence_lengths: Lengths of sequences that are concatenated without padding.
    """

    tokens: Tokens
    context: Context
    positions: Positions
    key_mask: KeyMask = None
    query_mask: QueryMask = None
    group: ProcessGroup | None = None
    all_positions: Positions = field(default_factory=Positions)
    sequence_lengths: tuple[int, ...] | None = None


def prepare_attention_inputs(
    tokens: Float[Tensor, "batch tokens dim"],
    *,
    grid: GridLike | None,
    key_mask: KeyMask,
    num_prefix_tokens: int,
    num_queries: int | None,
    positions: Real[Tensor, "*batch placed axes"] | None,
    lengths: Int[Tensor, "batch"] | None,
    cu_seqlens: Int[Tensor, "sequences"] | None,
    context: Float[Tensor, "batch keys context_dim"] | None,
    context_grid: GridLike | None,
    context_positions: Real[Tensor, "*key_batch placed_keys axes"] | None,
    dim: int,
    context_dim: int,
    layer: nn.Module,
    needs_positions: bool,
    group: ProcessGroup | None,
) -> AttentionInputs:
    """Check the arguments of `Attention.forward`, and convert them to `AttentionInputs`.

    Masked tokens are set to 0, and `lengths` become masks.

    Raises:
        ValueError: Shapes or dtypes do not fit, or arguments exclude each other.
    """
    check_layer_input("tokens", tokens, "batch", "tokens", dim, layer=layer)
    batch, num_tokens, _ = tokens.shape
    check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
    check_sizes({"num_queries": num_queries}, most=num_tokens, or_none=True)
    query_positions = make_positions("", grid, positions, tokens.device)
    key_positions: Positions | None = None
    if context is not None:
        check_layer_input("context", context, batch, "tokens", context_dim, layer=layer)
        key_positions = make_positions("context_", context_grid, context_positions, tokens.device)
    else:
        _check_no_context(dim, context_dim, context_grid, context_positions)
    all_positions = Positions(
        query_positions.grid, query_positions.points, key_positions, num_prefix_tokens
    )
    process_positions = all_positions
    if group is not None:
        excluded = {"num_prefix_tokens": num_prefix_tokens or None, "context": context}
        for argument, value in excluded.items():
            if value is not None:
                hint = "Sequence parallelism does not support this argument."
                raise wrong_argument(argument, "a value", "None", hint)
        if all_positions.grid is not None:
            process_grid = all_positions.grid.shard(group.rank(), group.size())
            process_positions = Positions(process_grid)
    keys = tokens if context is None else context
    num_keys = keys.shape[1]
    process_positions.check_queries_and_keys(
        batch=batch,
        num_queries=num_tokens,
        num_keys=num_keys,
        key="context_",
        is_needed=needs_positions,
    )
    query_mask: QueryMask = None
    if lengths is not None:
        if key_mask is not None:
            raise wrong_argument("key_mask", "both", "None with lengths")
        check_tensor("lengths", lengths, batch, dtypes=INTEGER_DTYPES)
        key_mask = length_mask(lengths, num_keys)
        query_mask = key_mask[:, :num_queries] if context is None else None
    if key_mask is not None:
        check_mask("key_mask", key_mask, batch=batch, num_tokens=num_keys)
        # Masked tokens are 0 so that a NaN in them does not reach the gradients of the projections.
        keys = keys.masked_fill(~key_mask[..., None], 0.0)
        tokens = tokens if query_mask is None else keys
    sequence_lengths = None
    if cu_seqlens is not None:
        excluded = {
            "key_mask or lengths": key_mask,
            "num_prefix_tokens": num_prefix_tokens or None,
            "context": context,
            "num_queries": num_queries,
            "shard_tokens": group,
        }
        sequence_lengths = compute_packed_lengths(
            cu_seqlens, num_tokens, process_positions, excluded
        )
    return AttentionInputs(
        tokens=tokens[:, :num_queries],
        context=keys,
        positions=process_positions if needs_positions else Positions(),
        key_mask=key_mask,
        query_mask=query_mask,
        group=group,
        all_positions=all_positions,
        sequence_lengths=sequence_lengths,
    )


def _check_no_context(
    dim: int, context_dim: int, context_grid: GridLike | None, context_positions: Tensor | None
) -> None:
    for argument, value in {
        "context_grid": context_grid,
        "context_positions": context_positions,
    }.items():
        if value is not None:
            raise wrong_argument(argument, "a value", "None without a context")
    if context_dim != dim:
        raise wrong_value("context", None, f"tokens of size context_dim = {context_dim}")
