"""The Toeplitz backend: a separable relative kernel on a grid, one small matrix an axis."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from teka._compat import is_compiled, records_graph
from teka.functional.backends import (
    BYTES,
    Cost,
    DifferentiableOp,
    FeatureInputs,
    WeightedSums,
    checkpointed,
    stack_all,
    with_ones,
)
from teka.functional.backends.custom_ops import MAPS, ByHand, by_hand
from teka.functional.backends.separable import axis_sums, axis_sums_gradients
from teka.functional.shapes import (
    Gradients,
    KeyChannels,
    KeyFeatures,
    Matrices,
    QueryChannels,
    QueryFeatures,
    RowTerm,
)
from teka.grid import Grid

# Numbers of φ ⊗ [v, 1] held at once on a GPU, compiled, or of one feature: 128 MiB in float32; more are made in chunks.
CHUNK_ELEMENTS = 2**25


def toeplitz_cost(query: Grid, key: Grid, num_features: int, dim_value: int) -> Cost:
    """One matrix an axis over φ ⊗ [v, 1], which is written and read again for each axis."""
    channels = num_features * (dim_value + 1)
    multiply_adds, moved, size = 0, 0, key.num_tokens
    for query_side, key_side in zip(query.shape, key.shape, strict=True):
        moved += size
        multiply_adds += size * query_side
        size = size // key_side * query_side
        moved += size
    moved += 2 * size
    moved_in_all = moved * channels * BYTES + axis_matrices_bytes(query, key)
    return Cost((multiply_adds + key.num_tokens + size) * channels, moved_in_all)


def axis_matrices_bytes(query: Grid, key: Grid) -> int:
    """Bytes of making one matrix an axis: its logarithm, the largest of each row, and its exponential."""
    return sum(one * two for one, two in zip(query.shape, key.shape, strict=True)) * 6 * 2 * BYTES


def runs_by_hand(tensor: Tensor) -> bool:
    """Whether sums are taken head by head in a CPU's cache, and not by torch's operations in a graph for elsewhere."""
    return tensor.device.type == "cpu" and (is_compiled() or not records_graph())


def toeplitz(
    tokens: FeatureInputs,
    log_matrices: Matrices,
    log_peak: Float[Tensor, "1 heads queries"],
    log_rows: RowTerm,
) -> WeightedSums:
    """Σ_j φ(q_i)ᵀφ(k_j) c(x_i − x_j) [v_j, 1] with c = Π_axis c_axis, in O(L · m · (d + 1) · Σ sides).

    φ(k_j) ⊗ [v_j, 1] is multiplied along each axis by c_axis from the keys' side to the queries', each row over its
    largest entry, and contracted with φ(q_i).
    """
    query_features, key_features, value = tokens.query_features, tokens.key_features, tokens.value
    arguments = (
        query_features,
        key_features,
        with_ones(value),
        *(torch.exp(matrix) for matrix in log_matrices),
    )
    # A single feature makes no more numbers of the values than they are, and nothing has to be kept in a cache.
    by_hand = runs_by_hand(value) and key_features.shape[-1] > 1
    sums = WeightedSums.of_channels(
        AxisForm().of(*arguments) if by_hand else _chunked_sums(*arguments), log_peak
    )
    return sums.without_underflow(tokens, log_rows)


def _chunked_sums(
    query_features: Tensor, key_features: Tensor, value: Tensor, *matrices: Tensor
) -> Tensor:
    num_features = key_features.shape[-1]
    # A graph that is recorded is for any number of samples.
    num_samples = 1 if records_graph() else value.shape[0]
    num_elements = num_samples * value.shape[1:].numel() * num_features
    num_chunks = max(1, min(num_features, -(-num_elements // CHUNK_ELEMENTS)))
    is_large = num_elements > CHUNK_ELEMENTS
    chunk = -(-num_features // num_chunks)
    sums = torch.zeros((), dtype=value.dtype, device=value.device)
    for start in range(0, num_features, chunk):
        features = slice(start, start + chunk)
        arguments = (query_features[..., features], key_features[..., features], value, *matrices)
        part = (
            checkpointed(plain_axis_sums, *arguments) if is_large else plain_axis_sums(*arguments)
        )
        sums = sums + part
    return sums


def plain_axis_sums(
    query_features: QueryFeatures,
    key_features: KeyFeatures,
    value: KeyChannels,
    *matrices: Float[Tensor, "heads _ _"],
) -> QueryChannels:
    """The sums by torch's differentiable operations, with φ ⊗ v of all features held at once."""
    batch, heads = value.shape[:2]
    maps = key_features[..., :, None] * value[..., None, :]
    shape = maps.shape[-2:]
    before, after = 1, maps.shape[2] * shape.numel()
    for matrix in matrices:
        after //= matrix.shape[-1]
        maps = matrix[:, None] @ maps.reshape(batch, heads, before, matrix.shape[-1], after)
        before *= matrix.shape[-2]
    return (query_features[..., None, :] @ maps.reshape(batch, heads, before, *shape))[..., 0, :]


class AxisForm(DifferentiableOp, ByHand):
    """φ(q), φ(k), v, C_1, …, C_n → Σ_j φ(q_i)ᵀφ(k_j) Π_axis C_axis[i, j] v_j; differentiated twice by `plain`."""

    plain = staticmethod(plain_axis_sums)

    def value(self, *tensors: Tensor) -> Tensor:
        query_features, key_features, value, *matrices = tensors
        return axis_sums(query_features, key_features, value, matrices)

    def gradients(
        self, gradient: Tensor, tensors: Sequence[Tensor], needs: Sequence[bool]
    ) -> Gradients:
        """By hand, or where they are to be differentiated again those of the plain form."""
        if not torch.is_grad_enabled():
            return self.output_gradients(gradient, tensors, (), needs)
        gradients = torch.func.vjp(self.plain, *tensors)[1](gradient)
        return [one if needed else None for one, needed in zip(gradients, needs, strict=True)]

    def of(self, *tensors: Tensor) -> Tensor:
        """The sums with their derivatives, by one node of a graph that is compiled."""
        return (
            by_hand(type(self).__name__, tensors)
            if torch.compiler.is_compiling()
            else super().of(*tensors)
        )

    def outputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [self.value(*tensors)]

    def new_outputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensors[2].new_empty(*tensors[0].shape[:3], tensors[2].shape[-1])]

    def output_gradients(
        self,
        gradient: Tensor,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> Gradients:
        return axis_sums_gradients(gradient, tensors, needs)

    def mapped(
        self, size: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor]
    ) -> tuple[Tensor, int]:
        """Over a further dimension, which joins the heads: features and values have them second, matrices first."""
        stacked = stack_all(size, in_dims, tensors)
        folded = [
            one.flatten(0, 1) if at > 2 else one.movedim(0, 1).flatten(1, 2)
            for at, one in enumerate(stacked)
        ]
        return self.of(*folded).unflatten(1, (size, -1)), 1


MAPS[AxisForm.__name__] = AxisForm()
