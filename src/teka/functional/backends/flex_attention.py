"""Attention on a GPU with PyTorch's FlexAttention, which does not store the attention matrix.

Source: Dong et al. 2024 (FlexAttention).
"""

import functools
import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import pad

from teka.execution_mode import ExecutionMode, can_cache_tensors, execution_mode
from teka.functional.kernels.content_kernel import ContentKernel, DenseAttentionInputs
from teka.functional.positions import Positions
from teka.functional.shapes import KeyMask, LogScale, Outputs, PairFunction, Queries, Values

# A `PairFunction` that takes the inner product of the pair as its first argument.
PairScore = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

# FlexAttention supports sizes of heads that are powers of 2 between these.
MIN_SIZE, MAX_SIZE = 16, 256
# With fewer pairs per head, the matrix of weights fits into memory, and compiling a kernel for each
# size is slower.
MIN_PAIRS = 2**16
# Ratios of the spacings of two grids may be multiples of 1/n for n up to this number.
MAX_DENOMINATOR = 8
# Largest number of offsets between two grids per token, so that tables have O(L) entries.
MAX_OFFSETS_PER_TOKEN = 32


def can_use_flex(query: Queries, value: Values, kernel: ContentKernel) -> bool:
    """Return True if PyTorch's FlexAttention can compute attention with this content kernel.

    The similarities of queries and keys must have logarithms, and FlexAttention must support the
    sizes, the dtype and the execution mode of the inputs.
    """
    size = max(kernel.inner_product_size(query.shape[-1]), value.shape[-1])
    if query.shape[0] == 0 or size > MAX_SIZE:
        return False
    if query.is_cuda:
        if query.shape[2] * value.shape[2] < MIN_PAIRS or query.dtype == torch.float64:
            return False
        # Gradients of tables are added in any order.
        if torch.are_deterministic_algorithms_enabled():
            return False
    if execution_mode(query) is ExecutionMode.TRANSFORMED:
        return False
    return kernel.log_similarity(query) is not None


def attend_with_flex(inputs: DenseAttentionInputs, position_bias: PairFunction) -> Outputs:
    """Compute attention with PyTorch's FlexAttention, including position-dependent weights.

    The similarity of queries and keys may be any function with a logarithm. Outputs of queries
    without keys are 0. Second derivatives are not supported. Gradients of the position-dependent
    weights need PyTorch 2.6 or later, and are not deterministic because they use atomic additions.
    On a CPU, which only the tests use, PyTorch stores the full attention matrix.

    Args:
        inputs: Queries, keys and values.
        position_bias: Function from the indices of a pair to its position bias, the log of its
            position-dependent weight. It may read tables of O(L) entries.
    """
    query, value = inputs.query, inputs.value
    left, right, log_scale = inputs.vectors()
    log_similarity = inputs.kernel.log_similarity(query)
    assert log_similarity is not None
    score = _make_score_function(log_similarity, position_bias, log_scale, inputs.key_mask)
    block_mask = None
    if inputs.is_causal:
        causal_blocks = (
            _cached_causal_block_mask if can_cache_tensors(query.device) else _causal_block_mask
        )
        block_mask = causal_blocks(query.shape[2], query.device)
    attend = _compiled_flex_attention() if query.is_cuda else flex_attention
    padded = [_pad_head_dim(tensor) for tensor in (left, right, value)]
    output = attend(*padded, score_mod=score, block_mask=block_mask, scale=1.0)
    assert isinstance(output, Tensor)
    return output[..., : value.shape[-1]]


@functools.cache
def _compiled_flex_attention() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=False)


def _causal_block_mask(num_tokens: int, device: torch.device) -> BlockMask:
    """Return the block mask with which FlexAttention skips all keys after a query."""
    return create_block_mask(
        lambda b, h, i, j: i >= j, None, None, num_tokens, num_tokens, device=str(device)
    )


_cached_causal_block_mask = functools.lru_cache(maxsize=8)(_causal_block_mask)


def _pad_head_dim(
    vectors: Float[Tensor, "batch heads tokens size"],
) -> Float[Tensor, "batch heads tokens padded"]:
    """Pad the head dimension with zeros to a size that FlexAttention supports."""
    size = max(MIN_SIZE, 2 ** math.ceil(math.log2(vectors.shape[-1])))
    return pad(vectors, (0, size - vectors.shape[-1]))


def _make_score_function(
    log_similarity: Callable[[Tensor], Tensor],
    position_bias: PairFunction,
    log_scale: LogScale,
    key_mask: KeyMask,
) -> PairScore:
    """Return the `score_mod` of FlexAttention, which computes the score of a query and a key.

    The score is the log of the similarity plus the log of the position-dependent weight, or −∞ for
    a masked key. The function is a lambda, because the tests add runtime checks to annotated
    functions, which FlexAttention cannot trace.
    """
    if log_scale is None:
        plain: PairScore = lambda product, b, h, i, j: (  # noqa: E731
            log_similarity(product) + position_bias(b, h, i, j)
        )
    else:
        plain = lambda product, b, h, i, j: (  # noqa: E731
            log_similarity(product) + position_bias(b, h, i, j) + log_scale[b, h, j]
        )
    if key_mask is None:
        return plain
    return lambda product, b, h, i, j: torch.where(
        key_mask[b, j], plain(product, b, h, i, j), -math.inf
    )


# Distinct offsets between the cells of two grids, a code of every query and a code of every key.
# The offset of a pair has the index code of the query − code of the key.
OffsetTable = tuple[Float[Tensor, "offsets axes"], Int[Tensor, "queries"], Int[Tensor, "keys"]]


def _find_common_lattice(positions: Positions) -> list[tuple[float, int, int]] | None:
    """Find the coarsest regular lattice on which all tokens of two grids lie.

    For every axis, return the distance between neighboring lattice points, and the number of such
    steps between neighboring tokens of each grid. Return None if there is no such lattice, or if it
    has too many points.
    """
    if positions.grids is None:
        return None
    query, key = positions.grids
    axes, num_offsets = [], 1
    for axis in range(query.num_axes):
        # The spacing of an axis of a single cell has no effect.
        spacings = [
            grid.spacing[axis] if grid.shape[axis] > 1 else math.inf for grid in (query, key)
        ]
        finest = min(spacings) if min(spacings) < math.inf else 1.0
        for denominator in range(1, MAX_DENOMINATOR + 1):
            ratios = [0.0 if s == math.inf else s / finest * denominator for s in spacings]
            if all(abs(ratio - round(ratio)) <= 1e-9 * ratio for ratio in ratios):
                break
        else:
            return None
        query_step, key_step = map(round, ratios)
        axes.append((finest / denominator, query_step, key_step))
        num_steps = query_step * (query.shape[axis] - 1) + key_step * (key.shape[axis] - 1)
        num_offsets *= 1 + num_steps
    is_small = num_offsets <= MAX_OFFSETS_PER_TOKEN * (query.num_tokens + key.num_tokens)
    return axes if is_small else None


def make_offset_table(positions: Positions, like: Tensor) -> OffsetTable | None:
    """Return a table of all offsets between two grids, and integer codes of queries and keys.

    The offset from key j to query i is the entry with the index query_code[i] − key_code[j]. For a
    token without a position, such as a class token, this index is beyond the end of the table.
    Return None if the table would be large, or if the grids do not lie on one regular lattice. The
    offsets have the dtype and the device of `like`.
    """
    axes = _find_common_lattice(positions)
    if axes is None or positions.grids is None:
        return None
    query, key = positions.grids
    query_code = torch.zeros((), dtype=torch.int32, device=like.device)
    key_code = query_code
    offsets = []
    for axis, (width, query_step, key_step) in enumerate(axes):
        query_cells = torch.arange(query.shape[axis], dtype=torch.int32, device=like.device)
        key_cells = torch.arange(key.shape[axis], dtype=torch.int32, device=like.device)
        num_before = key_step * (key.shape[axis] - 1)
        size = num_before + query_step * (query.shape[axis] - 1) + 1
        query_code = query_code[..., None] * size + (query_step * query_cells + num_before)
        key_code = key_code[..., None] * size + key_step * key_cells
        steps = torch.arange(-num_before, size - num_before, device=like.device).to(like)
        origin = query.origin[axis] - key.origin[axis]
        offsets.append(query.wrap_axis(axis, steps * width + origin))
    distinct = torch.stack(torch.meshgrid(*offsets, indexing="ij"), dim=-1).flatten(0, -2)
    prefix, beyond = positions.num_prefix_tokens, 2 * len(distinct)
    query_code = pad(query_code.flatten(), (prefix, 0), value=beyond)
    return distinct, query_code, pad(key_code.flatten(), (prefix, 0), value=-beyond)
