"""Attention with a content kernel and a relative kernel: the one equation."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.errors import wrong_shape, wrong_value
from teka.functional.backend import Workload, backend_costs, choose_backend
from teka.functional.backend.dense.dense import dense
from teka.functional.backend.fast import fast
from teka.functional.kernel import FeatureKernel, Kernel, make_kernel
from teka.functional.placement import Placement, Sites, check_mask, check_placement
from teka.functional.relative import Relative, RotationJoint, make_relative
from teka.functional.scale import check_scale
from teka.grid import Grid


def attention(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    *,
    kernel: str | Kernel = "softmax",
    relative: str | Relative | None = None,
    grid: Grid | None = None,
    positions: Float[Tensor, "*batch placed axes"] | None = None,
    key_grid: Grid | None = None,
    key_positions: Float[Tensor, "*key_batch placed_keys axes"] | None = None,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    query_mask: Bool[Tensor, "batch queries"] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    backend: str = "auto",
    num_prefix_tokens: int = 0,
) -> Float[Tensor, "batch heads queries dim_value"]:
    """Attention by content and by relative position.

        out_i = Σ_j κ(q_i, k_j) c(x_i − x_j; q_i) v_j / Σ_j κ(q_i, k_j) c(x_i − x_j; q_i)

    float16 and bfloat16 inputs are computed in float32 and returned in their own dtype.

    Args:
        query: Queries, shape (B, H, L_q, d).
        key: Keys, shape (B, H, L_k, d).
        value: Values, shape (B, H, L_k, d_v).
        kernel: Content kernel κ, a name or an instance. Random features asked for by name are drawn with seed 0.
        relative: Relative kernel c, a name or an instance, or None for c = 1. By name its parameters are drawn with
            seed 0.
        grid: The grid whose cells the tokens are, in row-major order.
        positions: Instead of a grid, positions in physical units, shape (L_q, n) or (B, L_q, n).
        key_grid: The grid of the keys, where it is not that of the queries.
        key_positions: Instead of a grid, positions of the keys, where they are not those of the queries.
        key_mask: True where a key is kept, shape (B, L_k).
        query_mask: True where a query is real, shape (B, L_q): the output of the others is 0, and they enter no
            statistic that a kernel takes from the queries.
        is_causal: Whether query i sees keys j ≤ i only, by their order and not by their places.
        scale: Factor of qᵀk, 1/√d by default; with "rotation_joint" 1/√d' for the concatenated size d', as in the
            paper.
        backend: "auto" (the cheapest by a count of multiply-adds and bytes), "dense", "linear", "toeplitz", "rings" or
            "fft".
        num_prefix_tokens: Number of first tokens that have no position; c = 1 for every pair that holds one. Only
            where queries and keys are the same tokens.

    Returns:
        Output, shape (B, H, L_q, d_v). A causal query all of whose keys are dropped gets 0.

    Raises:
        ValueError: Shapes that do not fit, an unknown name, a backend that cannot compute this, positions with NaN, a
            mask that keeps nothing.
    """
    _check_shapes(query, key, value)
    batch, heads, num_queries, dim = query.shape
    num_keys = key.shape[2]
    placement = _place(grid, positions, key_grid, key_positions, num_prefix_tokens)
    if relative is not None or placement.query.is_known or placement.key.is_known:
        check_placement(placement, batch=batch, num_queries=num_queries, num_keys=num_keys)
    if is_causal and num_queries != num_keys:
        raise wrong_shape("key", key.shape, f"{num_queries} tokens, as many as the query's, with is_causal")
    for argument, mask, num_tokens in (("key_mask", key_mask, num_keys), ("query_mask", query_mask, num_queries)):
        if mask is not None:
            check_mask(argument, mask, batch=batch, num_tokens=num_tokens)
    if relative is not None:
        relative = make_relative(relative, heads=heads, dim=dim, num_axes=placement.num_axes, kernel=kernel)
    joint = relative.num_position_features if isinstance(relative, RotationJoint) else 0
    kernel = make_kernel(kernel, dim + joint)
    if relative is not None:
        relative.check(heads=heads, dim=dim, num_axes=placement.num_axes, kernel=kernel)
        relative = relative.on(placement)
    scale = check_scale(scale, dim + joint)
    work = Workload(kernel, relative, placement, num_queries, num_keys, dim, value.shape[-1], is_causal)
    chosen = choose_backend(backend, backend_costs(work), query.device.type)

    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    with torch.autocast(query.device.type, enabled=False):
        if isinstance(relative, RotationJoint):
            query, key = relative.concatenate(query, key, placement, scale=scale)
            relative, scale = None, 1.0
        if isinstance(kernel, FeatureKernel) and not is_causal:
            kernel = kernel.fitted(query, key, scale=scale, query_mask=query_mask, key_mask=key_mask)
        if chosen == "dense":
            output = dense(
                query, key, value, kernel, relative, placement, scale=scale, key_mask=key_mask, is_causal=is_causal
            )
        else:
            assert isinstance(kernel, FeatureKernel)
            output = fast(
                chosen,
                query,
                key,
                value,
                kernel,
                relative,
                placement,
                scale=scale,
                key_mask=key_mask,
                is_causal=is_causal,
            )
    if query_mask is not None:
        output = output.masked_fill(~query_mask[:, None, :, None], 0.0)
    return output.to(dtype)


def _place(
    grid: Grid | None,
    positions: Tensor | None,
    key_grid: Grid | None,
    key_positions: Tensor | None,
    num_prefix_tokens: int,
) -> Placement:
    """Sites of queries and keys; the keys are where the queries are unless they have places of their own."""
    for argument, one in (("grid", grid), ("key_grid", key_grid)):
        if one is not None and not isinstance(one, Grid):
            raise wrong_value(argument, one, "a teka.Grid")
    if num_prefix_tokens < 0:
        raise wrong_value("num_prefix_tokens", num_prefix_tokens, "0 or more")
    query = Sites(grid, positions)
    own = key_grid is not None or key_positions is not None
    return Placement(query, Sites(key_grid, key_positions) if own else query, num_prefix_tokens)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    for argument, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim != 4:
            raise wrong_shape(argument, tensor.shape, "(batch, heads, tokens, dim)")
        if not tensor.is_floating_point() or tensor.dtype != query.dtype:
            raise wrong_value(
                argument, tensor.dtype, f"a floating dtype, the same for all three (query: {query.dtype})"
            )
    if key.shape[:2] != query.shape[:2] or key.shape[3] != query.shape[3] or 0 in query.shape or 0 in key.shape:
        batch, heads, _, dim = query.shape
        raise wrong_shape("key", key.shape, f"({batch}, {heads}, tokens, {dim}) to fit query {tuple(query.shape)}")
    if value.shape[:3] != key.shape[:3]:
        raise wrong_shape("value", value.shape, f"{tuple(key.shape[:3])} and any dim, to fit key {tuple(key.shape)}")
