"""Attention with a content kernel and a relative kernel: the one equation."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.checks import check_flags, check_sizes
from teka.errors import wrong_shape
from teka.functional.backend import Workload, backend_costs, choose_backend
from teka.functional.backend.dense.dense import dense
from teka.functional.backend.fast import fast
from teka.functional.eager import has_numbers
from teka.functional.inputs import check_inputs
from teka.functional.kernel import FeatureKernel, Kernel, make_kernel
from teka.functional.kernel.base import mask_features
from teka.functional.placement import Placement, check_mask, check_placement, make_sites
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
        kernel: Content kernel κ, a name of `teka.functional.KERNELS` or an instance. Random features asked for by name
            are drawn with seed 0.
        relative: Relative kernel c, a name of `teka.functional.RELATIVES` or an instance, or None for c = 1. By name
            its parameters are drawn with seed 0.
        grid: The grid whose cells the tokens are, in row-major order.
        positions: Instead of a grid, positions in physical units, shape (L_q, n) or (B, L_q, n).
        key_grid: The grid of the keys, where it is not that of the queries.
        key_positions: Instead of a grid, positions of the keys, where they are not those of the queries.
        key_mask: True where a key is kept, shape (B, L_k).
        query_mask: True where a query is real, shape (B, L_q): the output of the others is 0, and they enter no
            statistic that a kernel takes from the queries. Without it, and with as many keys as queries, the statistic
            is of the queries whose keys are kept.
        is_causal: Whether query i sees keys j ≤ i only, by their order and not by their places. From a token on whose
            key or value is NaN or infinite all outputs are NaN, and no output before it.
        scale: Factor of qᵀk, 1/√d by default; with "rotation_joint" 1/√d' for the concatenated size d', as in the
            paper.
        backend: "auto" (the cheapest by a count of multiply-adds and bytes), "dense", "linear", "toeplitz", "rings" or
            "fft".
        num_prefix_tokens: Number of first tokens that have no position; c = 1 for every pair that holds one. Only
            where queries and keys are the same tokens.

    Returns:
        Output, shape (B, H, L_q, d_v). A causal query all of whose keys are dropped gets 0.

    Raises:
        ValueError: Types or shapes that do not fit, an unknown name, a backend that cannot compute this, positions with
            NaN, a mask that keeps nothing.
    """
    check_inputs(query, key, value)
    batch, heads, num_queries, dim = query.shape
    num_keys = key.shape[2]
    check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
    check_flags({"is_causal": is_causal})
    query_sites = make_sites("", grid, positions)
    has_own = key_grid is not None or key_positions is not None
    key_sites = make_sites("key_", key_grid, key_positions) if has_own else query_sites
    placement = Placement(query_sites, key_sites, num_prefix_tokens)
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
        relative = relative.for_kernel(kernel).on(placement)
    scale = check_scale(scale, dim + joint)
    work = Workload(kernel, relative, placement, num_queries, num_keys, dim, value.shape[-1], is_causal)
    chosen = choose_backend(backend, backend_costs(work), query.device.type)

    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    # What is dropped is 0 from here on, so that not even a NaN there reaches an output or a gradient.
    query, key, value = (
        mask_features(one, mask) for one, mask in ((query, query_mask), (key, key_mask), (value, key_mask))
    )
    broken = None
    if is_causal or key_mask is not None:
        query, key, value, broken = _without_broken(query, key, value, is_causal=is_causal)
    with torch.autocast(query.device.type, enabled=False):
        if isinstance(relative, RotationJoint):
            query, key = relative.concatenate(query, key, placement, scale=scale)
            relative, scale = None, 1.0
        if isinstance(kernel, FeatureKernel) and not is_causal:
            # Where there is a key for every query, a query whose key is dropped has no part in a statistic either.
            counted = key_mask if query_mask is None and num_queries == num_keys else query_mask
            kernel = kernel.fitted(query, key, scale=scale, query_mask=counted, key_mask=key_mask)
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
    if broken is not None:
        output = output.masked_fill(broken[..., None], torch.nan)
    return mask_features(output, query_mask).to(dtype)


def _without_broken(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    *,
    is_causal: bool,
) -> tuple[
    Float[Tensor, "batch heads queries dim"],
    Float[Tensor, "batch heads keys dim"],
    Float[Tensor, "batch heads keys dim_value"],
    Bool[Tensor, "batch heads queries"] | None,
]:
    """Inputs with 0 for what is NaN or infinite and need not reach all outputs, and those that it reaches, or None.

    A product with 0 would carry a NaN of a later token to those before it, and one of a query whose output is not
    looked at to the gradients of all keys.
    """
    sizes = (one.detach().abs().amax(dim=-1) for one in (query, key, value))
    of_query, of_key, of_value = (~size.isfinite() for size in sizes)
    if not is_causal:
        return query.masked_fill(of_query[..., None], 0.0), key, value, of_query
    of_key = of_key | of_value
    if query.is_cpu and has_numbers(query) and not (of_query | of_key).any():
        return query, key, value, None
    query, key, value = (
        one.masked_fill(lost[..., None], 0.0) for one, lost in ((query, of_query), (key, of_key), (value, of_key))
    )
    return query, key, value, of_query | (of_key.cumsum(dim=-1) > 0)
