"""Attention with a content kernel and a relative kernel."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from teka.checks import check_flags, check_sizes
from teka.errors import wrong_shape
from teka.functional.kernels.base import Kernel
from teka.functional.plan import Plan, check_inputs
from teka.functional.positions import Positions, check_mask, make_positions, packed_lengths
from teka.functional.relative.base import Relative
from teka.grid import GridLike


def attention(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    *,
    kernel: str | Kernel = "softmax",
    relative: str | Relative | None = None,
    grid: GridLike | None = None,
    positions: Float[Tensor, "*batch placed axes"] | None = None,
    key_grid: GridLike | None = None,
    key_positions: Float[Tensor, "*key_batch placed_keys axes"] | None = None,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    query_mask: Bool[Tensor, "batch queries"] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    backend: str = "auto",
    num_prefix_tokens: int = 0,
    cu_seqlens: Int[Tensor, "sequences"] | None = None,
) -> Float[Tensor, "batch heads queries dim_value"]:
    """Attention by content and by relative position, computed in float32 at least and returned in the inputs' dtype.

        out_i = Σ_j κ(q_i, k_j) c(x_i − x_j; q_i) v_j / Σ_j κ(q_i, k_j) c(x_i − x_j; q_i)

    Float32 inputs above 10,000 are computed in float64 in eager mode on a CPU, so that inputs up to 1e30 give finite
    outputs and gradients wherever these are finite in float32. Elsewhere (on a GPU, in compiled or exported graphs,
    under `torch.func`) nothing is read and products must fit into float32: keep inputs below 10,000.

    A sample all of whose keys are masked, such as one that is all padding, has outputs of 0, eager and compiled alike.

    Args:
        query: Queries, shape (B, H, L_q, d).
        key: Keys, shape (B, H, L_k, d).
        value: Values, shape (B, H, L_k, d_v).
        kernel: Content kernel κ, a name of `teka.functional.KERNELS` (random features with seed 0) or an instance.
        relative: Relative kernel c, a name of `teka.functional.RELATIVES` (with seed 0) or an instance; None for c = 1.
        grid: The grid whose cells are the tokens in row-major order: a `Grid`, its shape or its length.
        positions: Instead of a grid, positions in physical units, shape (L_q, n) or (B, L_q, n).
        key_grid: The grid of the keys, where it is not that of the queries.
        key_positions: Instead of a grid, positions of the keys, where they are not those of the queries.
        key_mask: True where a key is kept, shape (B, L_k).
        query_mask: True where a query is real, shape (B, L_q): the output of the others is 0, and they enter no
            statistic. Without it, and with as many keys as queries, a statistic is of the queries whose keys are kept.
        is_causal: Whether query i sees keys j ≤ i only, by their order and not by their places. From a token on whose
            key or value is NaN or infinite all outputs are NaN, and no output before it.
        scale: Factor of qᵀk, 1/√d by default; with "rotation_joint" 1/√d' for the concatenated size d'.
        backend: "auto" (the cheapest by a count of work), "dense", "linear", "toeplitz", "rings", "fft" or "windows".
        num_prefix_tokens: Number of first tokens without a position, where queries and keys are the same: c = 1 there.
        cu_seqlens: Where sequences of different lengths begin that stand one after another without padding, and where
            the last one ends: 0, …, L. Each sees itself alone; with `positions`, without masks, keys' places or prefix.

    Returns:
        Output, shape (B, H, L_q, d_v). A query all of whose keys are masked gets 0.

    Raises:
        ValueError: Types, shapes or a backend that do not fit, an unknown name, NaN positions.
    """
    check_inputs(query, key, value)
    batch, heads, num_queries, dim = query.shape
    num_keys = key.shape[2]
    check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
    check_flags({"is_causal": is_causal})
    positions_ = make_positions("", grid, positions)
    key_positions_ = None
    if key_grid is not None or key_positions is not None:
        key_positions_ = make_positions("key_", key_grid, key_positions)
    where = Positions(positions_.grid, positions_.points, key_positions_, num_prefix_tokens)
    if relative is not None or where.is_known or where.of_keys.is_known:
        where.check(batch=batch, num_queries=num_queries, num_keys=num_keys)
    for argument, mask, num_tokens in (
        ("key_mask", key_mask, num_keys),
        ("query_mask", query_mask, num_queries),
    ):
        if mask is not None:
            check_mask(argument, mask, batch=batch, num_tokens=num_tokens)
    plan = Plan.of_kernels(
        kernel, relative, where, heads=heads, dim=dim, scale=scale, is_causal=is_causal
    )
    if cu_seqlens is not None:
        if num_keys != num_queries:
            raise wrong_shape(
                "key", key.shape, f"{num_queries} tokens, the same number as query, with cu_seqlens"
            )
        excluded = {
            "key_mask": key_mask,
            "query_mask": query_mask,
            "num_prefix_tokens": num_prefix_tokens or None,
        }
        excluded["key_grid or key_positions"] = key_positions_
        lengths = packed_lengths(cu_seqlens, num_queries, where, excluded)
        return plan.attend_packed(query, key, value, lengths, backend=backend)
    return plan.attend(query, key, value, backend=backend, key_mask=key_mask, query_mask=query_mask)
