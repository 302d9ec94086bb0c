"""Attention with a content kernel and a relative kernel."""

from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from teka.checks import check_flags, check_sizes
from teka.errors import wrong_shape
from teka.functional.attention_plan import check_query_key_value, unchecked_attention
from teka.functional.kernels.content_kernel import ContentKernel
from teka.functional.positions import Positions, check_mask, compute_packed_lengths, make_positions
from teka.functional.relative.relative_kernel import RelativeKernel
from teka.grid import GridLike


def attention(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys dim_value"],
    *,
    kernel: str | ContentKernel = "softmax",
    relative: str | RelativeKernel | None = None,
    grid: GridLike | None = None,
    positions: Real[Tensor, "*batch placed axes"] | None = None,
    key_grid: GridLike | None = None,
    key_positions: Real[Tensor, "*key_batch placed_keys axes"] | None = None,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    query_mask: Bool[Tensor, "batch queries"] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    backend: str = "auto",
    num_prefix_tokens: int = 0,
    cu_seqlens: Int[Tensor, "sequences"] | None = None,
) -> Float[Tensor, "batch heads queries dim_value"]:
    """Compute attention whose weights depend on the content and the relative positions of tokens.

    The output of query i is the weighted mean of the values,

        out_i = Σ_j κ(q_i, k_j) c(x_i − x_j; q_i) v_j / Σ_j κ(q_i, k_j) c(x_i − x_j; q_i)

    where x_i is the position of token i. The content kernel κ is a similarity of query and key,
    such as exp(qᵀk / √d) in softmax attention. The relative kernel c is a weight that depends on
    the offset between their positions. The computation uses float32 or float64; the output has the
    dtype of the inputs. A query whose keys are all masked gives 0.

    Note: Float32 inputs above 10,000 are computed in float64 in eager mode on a CPU, so that inputs
    up to 1e30 give finite outputs and gradients. On a GPU, in compiled or exported graphs and under
    `torch.func`, keep inputs below 10,000.

    >>> import torch, teka
    >>> query, key, value = torch.randn(3, 1, 2, 12, 8)
    >>> options = {"kernel": "squared_relu", "relative": "rotary"}
    >>> teka.functional.attention(query, key, value, grid=teka.Grid((3, 4)), **options).shape
    torch.Size([1, 2, 12, 8])

    Args:
        query: Queries, shape (B, H, L_q, d).
        key: Keys, shape (B, H, L_k, d).
        value: Values, shape (B, H, L_k, d_v).
        kernel: Content kernel κ: a name from `teka.functional.KERNELS` or an instance. With a name,
            random features are drawn with seed 0.
        relative: Relative kernel c: a name from `teka.functional.RELATIVES`, an instance, or None
            for c = 1. With a name, parameters are drawn with seed 0.
        grid: Grid whose cells are the tokens in row-major order: a `Grid`, its shape or its length.
        positions: Coordinates in physical units instead of a grid, shape (L_q, n) or (B, L_q, n).
        key_grid: Grid of the keys. By default that of the queries.
        key_positions: Coordinates of the keys instead of a grid. By default those of the queries.
        key_mask: True for keys that may be attended to, shape (B, L_k).
        query_mask: True for queries that are not padding, shape (B, L_q). The output of padding is
            0.
        is_causal: If True, query i attends to keys j ≤ i, in the order of the tokens. A NaN or
            infinity in a key or value then makes this and all later outputs NaN.
        scale: Factor of qᵀk. By default 1/√d, where d includes the features that
            relative="rotation_joint" appends.
        backend: "auto" (the backend with the lowest estimated cost), "dense", "linear", "toeplitz",
            "rings", "fft" or "windows".
        num_prefix_tokens: Number of first tokens without a position, such as a class token; c = 1
            for them. Queries and keys must be the same tokens.
        cu_seqlens: Boundaries 0, …, L of sequences that are concatenated without padding. Each
            sequence attends to itself. Positions are then coordinates, and masks and prefix tokens
            are not supported.

    Returns:
        Output, shape (B, H, L_q, d_v).

    Raises:
        ValueError: Shapes or dtypes do not fit, a name is unknown, the backend cannot compute the
            kernels, or positions are not finite.
    """
    check_query_key_value(query, key, value)
    check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
    check_flags({"is_causal": is_causal})
    batch, _, num_queries, _ = query.shape
    num_keys = key.shape[2]
    query_positions = make_positions("", grid, positions, query.device)
    positions_of_keys = None
    if key_grid is not None or key_positions is not None:
        positions_of_keys = make_positions("key_", key_grid, key_positions, query.device)
    token_positions = Positions(
        query_positions.grid, query_positions.points, positions_of_keys, num_prefix_tokens
    )
    if relative is not None or token_positions.is_given or token_positions.key_positions.is_given:
        token_positions.check_queries_and_keys(
            batch=batch, num_queries=num_queries, num_keys=num_keys
        )
    if key_mask is not None:
        check_mask("key_mask", key_mask, batch=batch, num_tokens=num_keys)
    if query_mask is not None:
        check_mask("query_mask", query_mask, batch=batch, num_tokens=num_queries)
    sequence_lengths = None
    if cu_seqlens is not None:
        if num_keys != num_queries:
            raise wrong_shape("key", key.shape, f"{num_queries} tokens, the same number as query")
        excluded = {
            "key_mask": key_mask,
            "query_mask": query_mask,
            "num_prefix_tokens": num_prefix_tokens or None,
            "key_grid or key_positions": positions_of_keys,
        }
        sequence_lengths = compute_packed_lengths(
            cu_seqlens, num_queries, token_positions, excluded
        )
    return unchecked_attention(
        query,
        key,
        value,
        kernel=kernel,
        relative=relative,
        positions=token_positions,
        key_mask=key_mask,
        query_mask=query_mask,
        is_causal=is_causal,
        scale=scale,
        backend=backend,
        sequence_lengths=sequence_lengths,
    )
