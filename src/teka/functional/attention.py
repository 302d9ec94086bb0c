"""Attention with a content kernel and a relative kernel: the one equation."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.errors import wrong_shape, wrong_value
from teka.functional.backend import backend_costs, choose_backend, dense, linear, rings, toeplitz
from teka.functional.backend.sums import Sums
from teka.functional.kernel import FeatureKernel, Kernel, make_kernel
from teka.functional.placement import Placement, check_key_mask, check_placement
from teka.functional.relative import Relative, RingRelative, RotationJoint, SeparableRelative, make_relative
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
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    scale: float | None = None,
    backend: str = "auto",
    num_prefix_tokens: int = 0,
) -> Float[Tensor, "batch heads queries dim_value"]:
    """Attention by content and by relative position.

        out_i = Σ_j κ(q_i, k_j) c(x_i − x_j; q_i) v_j / Σ_j κ(q_i, k_j) c(x_i − x_j; q_i)

    float16 and bfloat16 inputs are computed in float32 and returned in their own dtype.

    Args:
        query: Queries, shape (B, H, L, d).
        key: Keys, shape (B, H, L, d); without a relative kernel their number may differ from the queries'.
        value: Values, shape (B, H, L, d_v).
        kernel: Content kernel κ, a name or an instance. Random features asked for by name are drawn with seed 0.
        relative: Relative kernel c, a name or an instance, or None for c = 1. By name its parameters are ~ N(0, 1),
            drawn with seed 0.
        grid: The grid whose cells the tokens are, in row-major order.
        positions: Instead of a grid, positions in physical units, shape (L, n) or (B, L, n).
        key_mask: True where a key is kept, shape (B, L).
        scale: Factor of qᵀk, 1/√d by default; with "rotation_joint" 1/√d' for the concatenated size d', as in the
            paper.
        backend: "auto" (the cheapest by a count of work), "dense", "linear", "toeplitz" or "rings".
        num_prefix_tokens: Number of first tokens that have no position; c = 1 for every pair that holds one.

    Returns:
        Output, shape (B, H, L, d_v).

    Raises:
        ValueError: Shapes that do not fit, an unknown name, a backend that cannot compute this, positions with NaN, a
            mask that keeps nothing.
    """
    _check_shapes(query, key, value, grid, relative)
    batch, heads, num_queries, dim = query.shape
    if num_prefix_tokens < 0:
        raise wrong_value("num_prefix_tokens", num_prefix_tokens, "0 or more")
    placement = Placement(grid, positions, num_prefix_tokens)
    if relative is not None or grid is not None or positions is not None:
        check_placement(placement, batch=batch, num_tokens=num_queries)
    if key_mask is not None:
        check_key_mask(key_mask, batch=batch, num_keys=key.shape[2])
    if relative is not None:
        relative = make_relative(relative, heads=heads, dim=dim, num_axes=placement.num_axes)
    joint = relative.num_position_features if isinstance(relative, RotationJoint) else 0
    kernel = make_kernel(kernel, dim + joint)
    if relative is not None:
        relative.check(heads=heads, dim=dim, num_axes=placement.num_axes, kernel=kernel)
    scale = _check_scale(scale, dim + joint)

    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    with torch.autocast(query.device.type, enabled=False):
        if isinstance(relative, RotationJoint):
            query, key = relative.concatenate(query, key, placement, scale=scale)
            relative, scale = None, 1.0
        costs = backend_costs(
            kernel,
            relative,
            placement,
            num_queries=num_queries,
            num_keys=key.shape[2],
            dim=query.shape[-1],
            dim_value=value.shape[-1],
        )
        if choose_backend(backend, costs) == "dense":
            output = dense(query, key, value, kernel, relative, placement, scale=scale, key_mask=key_mask)
        else:
            assert isinstance(kernel, FeatureKernel)
            sums = _fast(query, key, value, kernel, relative, placement, scale=scale, key_mask=key_mask)
            output = sums.divide(nonnegative=kernel.nonnegative)
    return output.to(dtype)


def _fast(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    kernel: FeatureKernel,
    relative: Relative | None,
    placement: Placement,
    *,
    scale: float,
    key_mask: Bool[Tensor, "batch keys"] | None,
) -> Sums:
    """Sums from the backend of the relative kernel; prefix tokens, for which c = 1, go through the linear one."""
    query_features = kernel.query_features(query, scale=scale)
    key_features = kernel.key_features(key, scale=scale, key_mask=key_mask)
    if relative is None:
        return linear(query_features, key_features, value)
    first = placement.num_prefix_tokens
    grid = placement.grid
    assert grid is not None
    placed = (query_features[:, :, first:], key_features[:, :, first:], value[:, :, first:])
    if isinstance(relative, SeparableRelative):
        sums = toeplitz(*placed, relative, grid)
    else:
        assert isinstance(relative, RingRelative)
        mask = None if key_mask is None else key_mask[:, first:]
        sums = rings(query[:, :, first:], *placed, relative, grid, scale=scale, key_mask=mask)
    if first == 0:
        return sums
    sums = sums + linear(placed[0], key_features[:, :, :first], value[:, :, :first])
    prefix = linear(query_features[:, :, :first], key_features, value)
    return Sums(
        torch.cat([prefix.numerator, sums.numerator], dim=2), torch.cat([prefix.denominator, sums.denominator], dim=2)
    )


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, grid: object, relative: object) -> None:
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
    if relative is not None and key.shape[2] != query.shape[2]:
        raise wrong_shape("key", key.shape, f"{query.shape[2]} tokens, as many as the query's, with a relative kernel")
    if grid is not None and not isinstance(grid, Grid):
        raise wrong_value("grid", grid, "a teka.Grid")


def _check_scale(scale: float | None, dim: int) -> float:
    if scale is None:
        return dim**-0.5
    if not (math.isfinite(scale) and scale > 0):
        raise wrong_value("scale", scale, "a positive finite number")
    return float(scale)
