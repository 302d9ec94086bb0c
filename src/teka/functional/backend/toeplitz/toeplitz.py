"""The Toeplitz backend: a separable relative kernel on a grid, one small matrix an axis."""

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.backend.again import again_in_backward
from teka.functional.backend.repair import rows_of, with_rows_again
from teka.functional.backend.sums import Sums, with_ones
from teka.functional.backend.toeplitz.axis_form import AxisForm, plain_axis_sums
from teka.functional.backend.toeplitz.axis_matrices import axis_log_matrices, runs_by_hand
from teka.functional.eager import is_plain_eager
from teka.functional.placement import Placement
from teka.functional.relative import SeparableRelative

# Numbers of φ ⊗ [v, 1] that are held at once on a GPU, in a compiled graph and of a single feature: 128 MiB in float32.
# Beyond it the features are taken in chunks of equal size, which are computed again in the backward pass.
CHUNK_ELEMENTS = 2**25
# A row whose keys have a c this small on average, over the row's largest, is computed again: a few of its numbers have
# fallen below the least that the dtype has.
UNDERFLOWN = {torch.float32: 1e-25, torch.float64: 1e-290}


def toeplitz(
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys dim_value"],
    relative: SeparableRelative,
    placement: Placement,
) -> Sums:
    """Σ_j φ(q_i)ᵀφ(k_j) c(x_i − x_j) [v_j, 1] with c = Π_axis c_axis.

    T_j = φ(k_j) ⊗ [v_j, 1] lies on the keys' grid; along each axis it is multiplied by the matrix of c_axis(x_i − x_j)
    from that grid's side to the queries', and the result is contracted with φ(q_i). Each row of a matrix is divided by
    its largest entry, which cancels in the normaliser. Cost O(L · m · (d + 1) · Σ sides); the features are taken in
    chunks, so that memory does not grow with m. A row that underflows, since its largest c is that of a masked key, is
    computed again from every pair, unless a transform records the computation.
    """
    log_matrices, log_peak = axis_log_matrices(relative, placement, value)
    arguments = (query_features, key_features, with_ones(value), *(torch.exp(matrix) for matrix in log_matrices))
    # A single feature makes no more numbers of the values than they are, and nothing has to be kept in a cache.
    by_hand = runs_by_hand(value) and key_features.shape[-1] > 1
    mixed = AxisForm.apply(*arguments) if by_hand else _chunked_sums(*arguments)
    sums = Sums(mixed[..., :-1], mixed[..., -1], log_peak)
    if not is_plain_eager(query_features, key_features, value):
        return sums
    with torch.no_grad():
        # Where the keys near the largest c are masked, what is left of a sharp kernel may have underflowed. That is
        # measured without the features' signs: a sum of both signs may be negative, and no row would lie below it.
        without = (query_features.abs() @ key_features.abs().sum(dim=2)[..., None])[..., 0]
        rows = rows_of(sums.denominator.abs() < UNDERFLOWN[value.dtype] * without)
    return with_rows_again(sums, rows, query_features, key_features, value, relative, placement)


def _chunked_sums(
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys channels"],
    *matrices: Float[Tensor, "heads _ _"],
) -> Float[Tensor, "batch heads queries channels"]:
    """The sums with some of the features at a time."""
    num_features = key_features.shape[-1]
    # A graph that is recorded is for any number of samples.
    num_samples = 1 if torch.compiler.is_compiling() else value.shape[0]
    num_elements = num_samples * value.shape[1:].numel() * num_features
    num_chunks = max(1, min(num_features, -(-num_elements // CHUNK_ELEMENTS)))
    is_large = num_elements > CHUNK_ELEMENTS
    chunk = -(-num_features // num_chunks)
    sums = torch.zeros((), dtype=value.dtype, device=value.device)
    for start in range(0, num_features, chunk):
        features = slice(start, start + chunk)
        arguments = (query_features[..., features], key_features[..., features], value, *matrices)
        part = again_in_backward(plain_axis_sums, *arguments) if is_large else plain_axis_sums(*arguments)
        sums = sums + part
    return sums
