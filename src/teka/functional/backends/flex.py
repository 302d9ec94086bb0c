"""Dense attention on a GPU by torch's FlexAttention: every pair of tokens, and no matrix over the pairs in memory."""

import functools
import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import pad

from teka.execution_mode import ExecutionMode, execution_mode, may_cache
from teka.functional.kernels.base import DenseInputs, Kernel
from teka.functional.positions import Positions
from teka.functional.shapes import KeyMask, LogScale, Outputs, PairFunction, Queries, Values

# The same as `PairFunction`, of the product of two vectors too.
PairScore = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

# Its kernels take sizes of heads that are powers of two, in these limits.
LEAST_SIZE, LARGEST_SIZE = 16, 256
# Fewer pairs of a head than these fit into memory, and are not worth what compiling takes for every new size.
LEAST_PAIRS = 2**16
# A cell of the coarser of two grids may be any whole number of these parts of a cell of the finer one.
PARTS = 8
# Offsets between two grids that a table may have, for each of their tokens: tables are O(L).
OFFSETS_PER_TOKEN = 32


def flex_fits(query: Queries, value: Values, kernel: Kernel) -> bool:
    """Whether `flex`, if it has log c, can take log κ of the product of two vectors of at most 256 numbers."""
    if (
        query.shape[0] == 0
        or max(kernel.dense_size(query.shape[-1]), value.shape[-1]) > LARGEST_SIZE
    ):
        return False
    if query.is_cuda and query.shape[2] * value.shape[2] < LEAST_PAIRS:
        return False
    # There is no float64 on a GPU, no transform and no forward derivative; gradients of tables are added in any order.
    if query.is_cuda and (
        query.dtype == torch.float64 or torch.are_deterministic_algorithms_enabled()
    ):
        return False
    return (
        execution_mode(query) is not ExecutionMode.TRANSFORMED
        and kernel.log_content(query) is not None
    )


def flex(pairs: DenseInputs, log_relative: PairFunction) -> Outputs:
    """softmax_j(log κ(q_i, k_j) + log c(x_i − x_j; q_i)) v_j, with log c from tables of O(L) numbers; 0 without a key.

    Gradients reach the tables by atomic additions on a GPU (torch ≥ 2.6), where the compiled kernel runs; elsewhere
    torch's unfused evaluation holds all pairs, which the tests take, with torch's refusal of gradients on a CPU taken
    away. There is no second derivative. Source: Dong et al. 2024 (FlexAttention).
    """
    query, value = pairs.query, pairs.value
    left, right, log_scale = pairs.vectors()
    log_content = pairs.kernel.log_content(query)
    assert log_content is not None
    score = _pair_score(log_content, log_relative, log_scale, pairs.key_mask)
    blocks = _kept_causal_blocks if may_cache(query.device) else _causal_blocks
    block_mask = blocks(query.shape[2], query.device) if pairs.is_causal else None
    attend = _compiled() if query.is_cuda else flex_attention
    padded = [_padded(tensor) for tensor in (left, right, value)]
    output = attend(*padded, score_mod=score, block_mask=block_mask, scale=1.0)
    assert isinstance(output, Tensor)
    return output[..., : value.shape[-1]]


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=False)


def _causal_blocks(num_tokens: int, device: torch.device) -> BlockMask:
    """Which blocks of pairs hold any with j ≤ i: the others are not visited."""
    return create_block_mask(
        lambda b, h, i, j: i >= j, None, None, num_tokens, num_tokens, device=str(device)
    )


_kept_causal_blocks = functools.lru_cache(maxsize=8)(_causal_blocks)


def _padded(
    vectors: Float[Tensor, "batch heads tokens size"],
) -> Float[Tensor, "batch heads tokens padded"]:
    size = max(LEAST_SIZE, 2 ** math.ceil(math.log2(vectors.shape[-1])))
    return pad(vectors, (0, size - vectors.shape[-1]))


def _pair_score(
    log_content: Callable[[Tensor], Tensor],
    log_relative: PairFunction,
    log_scale: LogScale,
    key_mask: KeyMask,
) -> PairScore:
    """log κ + log c + s of a pair, −∞ for a key that is dropped."""
    if log_scale is None:
        plain: PairScore = lambda product, b, h, i, j: (  # noqa: E731
            log_content(product) + log_relative(b, h, i, j)
        )
    else:
        plain = lambda product, b, h, i, j: (  # noqa: E731
            log_content(product) + log_relative(b, h, i, j) + log_scale[b, h, j]
        )
    if key_mask is None:
        return plain
    return lambda product, b, h, i, j: torch.where(
        key_mask[b, j], plain(product, b, h, i, j), -math.inf
    )


# The offsets between the cells of two grids, so numbered that a pair has that of the query's code less the key's; one
# that holds a prefix token gets a larger number than any: to be clamped to one more than the last.
OffsetNumbers = tuple[Float[Tensor, "offsets axes"], Int[Tensor, "queries"], Int[Tensor, "keys"]]


def lattice(positions: Positions) -> list[tuple[float, int, int]] | None:
    """Each axis' lattice width, and how many of it a cell of queries and of keys is; None if there are far too many."""
    if positions.grids is None:
        return None
    query, key = positions.grids
    axes, num_offsets = [], 1
    for axis in range(query.num_axes):
        # The spacing of a single cell separates nothing.
        steps = [grid.spacing[axis] if grid.shape[axis] > 1 else math.inf for grid in (query, key)]
        finest = min(steps) if min(steps) < math.inf else 1.0
        for parts in range(1, PARTS + 1):
            ratios = [0.0 if step == math.inf else step / finest * parts for step in steps]
            if all(abs(ratio - round(ratio)) <= 1e-9 * ratio for ratio in ratios):
                break
        else:
            return None
        axes.append((finest / parts, round(ratios[0]), round(ratios[1])))
        num_offsets *= 1 + sum(
            one * (grid.shape[axis] - 1)
            for one, grid in zip(axes[-1][1:], (query, key), strict=True)
        )
    return axes if num_offsets <= OFFSETS_PER_TOKEN * (query.num_tokens + key.num_tokens) else None


def offset_numbers(positions: Positions, like: Tensor) -> OffsetNumbers | None:
    """The offsets of the lattice of two grids; row-major, each axis from the farthest key ahead to the one behind."""
    axes = lattice(positions)
    if axes is None or positions.grids is None:
        return None
    query, key = positions.grids
    codes = [torch.zeros((), dtype=torch.int32, device=like.device) for _ in range(2)]
    offsets = []
    for axis, (width, query_step, key_step) in enumerate(axes):
        ahead = key_step * (key.shape[axis] - 1)
        size = ahead + query_step * (query.shape[axis] - 1) + 1
        steps = torch.arange(-ahead, size - ahead, device=like.device).to(like)
        offsets.append(
            query.wrap_axis(axis, steps * width + (query.origin[axis] - key.origin[axis]))
        )
        for place, (grid, step, first) in enumerate(
            ((query, query_step, ahead), (key, key_step, 0))
        ):
            cells = torch.arange(grid.shape[axis], dtype=torch.int32, device=like.device)
            codes[place] = codes[place][..., None] * size + (step * cells + first)
    every = torch.stack(torch.meshgrid(*offsets, indexing="ij"), dim=-1).flatten(0, -2)
    prefix, far = positions.num_prefix_tokens, 2 * every.shape[0]
    return (
        every,
        pad(codes[0].flatten(), (prefix, 0), value=far),
        pad(codes[1].flatten(), (prefix, 0), value=-far),
    )
