"""The Toeplitz backend: a separable relative kernel on a grid, one small matrix an axis."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import Function

from teka._compat import is_plain_eager
from teka.functional.backend import BYTES, Cost, Sums, checkpointed, rows_of, with_ones
from teka.functional.backend.axis_sums import axis_sums, axis_sums_gradients
from teka.functional.kernel.base import KeyFeatures, QueryFeatures, Values
from teka.grid import Grid

# Numbers of φ ⊗ [v, 1] that are held at once on a GPU, in a compiled graph and of a single feature: 128 MiB in float32.
# Beyond it the features are taken in chunks of equal size, which are computed again in the backward pass.
CHUNK_ELEMENTS = 2**25
# A row whose keys have a c this small on average, over the row's largest, is computed again: a few of its numbers have
# fallen below the least that the dtype has.
UNDERFLOWN = {torch.float32: 1e-25, torch.float64: 1e-290}


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
    """Whether sums are taken head by head in a CPU's cache; a compiled graph would hold every step of the loops."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def toeplitz(
    query_features: QueryFeatures,
    key_features: KeyFeatures,
    value: Values,
    log_matrices: Sequence[Float[Tensor, "heads _ _"]],
    log_peak: Float[Tensor, "1 heads queries"],
    log_rows: Callable[[Int[Tensor, "rows"]], Float[Tensor, "heads rows keys"]],
) -> Sums:
    """Σ_j φ(q_i)ᵀφ(k_j) c(x_i − x_j) [v_j, 1] with c = Π_axis c_axis.

    T_j = φ(k_j) ⊗ [v_j, 1] lies on the keys' grid; along each axis it is multiplied by the matrix of c_axis(x_i − x_j)
    from that grid's side to the queries', and the result is contracted with φ(q_i). Each row of a matrix is divided by
    its largest entry, which cancels in the normaliser. Cost O(L · m · (d + 1) · Σ sides); the features are taken in
    chunks, so that memory does not grow with m. A row that underflows, since its largest c is that of a masked key, is
    computed again from every pair, unless a transform records the computation.
    """
    arguments = (query_features, key_features, with_ones(value), *(torch.exp(matrix) for matrix in log_matrices))
    # A single feature makes no more numbers of the values than they are, and nothing has to be kept in a cache.
    by_hand = runs_by_hand(value) and key_features.shape[-1] > 1
    sums = Sums.of_channels(AxisForm.apply(*arguments) if by_hand else _chunked_sums(*arguments), log_peak)
    if not is_plain_eager(query_features, key_features, value):
        return sums
    with torch.no_grad():
        # Where the keys near the largest c are masked, what is left of a sharp kernel may have underflowed. That is
        # measured without the features' signs: a sum of both signs may be negative, and no row would lie below it.
        without = (query_features.abs() @ key_features.abs().sum(dim=2)[..., None])[..., 0]
        rows = rows_of(sums.denominator.abs() < UNDERFLOWN[value.dtype] * without)
    return sums.with_rows_again(rows, log_rows, query_features, key_features, value)


def _chunked_sums(query_features: Tensor, key_features: Tensor, value: Tensor, *matrices: Tensor) -> Tensor:
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
        part = checkpointed(plain_axis_sums, *arguments) if is_large else plain_axis_sums(*arguments)
        sums = sums + part
    return sums


def plain_axis_sums(
    query_features: QueryFeatures,
    key_features: KeyFeatures,
    value: Float[Tensor, "batch heads keys channels"],
    *matrices: Float[Tensor, "heads _ _"],
) -> Float[Tensor, "batch heads queries channels"]:
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


class AxisForm(Function):
    """φ(q), φ(k), v, C_1, …, C_n → Σ_j φ(q_i)ᵀφ(k_j) Π_axis C_axis[i, j] v_j, linear in every argument.

    It keeps nothing but its inputs; its backward pass makes again what lies between. Where the gradient is itself to be
    differentiated, it is taken of `plain_axis_sums`. A dimension that vmap adds joins the heads, which have matrices of
    their own.
    """

    @staticmethod
    def forward(query_features: Tensor, key_features: Tensor, value: Tensor, *matrices: Tensor) -> Tensor:
        """The sums."""
        return axis_sums(query_features, key_features, value, matrices)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: D102  # as torch has it
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, *grad_outputs):  # noqa: D102  # as torch has it
        (gradient,) = grad_outputs
        inputs = query_features, key_features, value, *matrices = ctx.saved_tensors
        if torch.is_grad_enabled():
            gradients = torch.func.vjp(plain_axis_sums, *inputs)[1](gradient)
            return tuple(one if needed else None for one, needed in zip(gradients, ctx.needs_input_grad, strict=True))
        return tuple(axis_sums_gradients(gradient, query_features, key_features, value, matrices, ctx.needs_input_grad))

    @staticmethod
    def jvp(ctx, *tangents):  # noqa: D102  # as torch has it
        return AxisForm.jvp_of(ctx.saved_tensors, tangents)

    @staticmethod
    def jvp_of(inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Tensor:
        """The forward derivative at some inputs: one term for each that has a tangent."""
        terms = [
            AxisForm.apply(*inputs[:place], tangent, *inputs[place + 1 :])
            for place, tangent in enumerate(tangents)
            if tangent is not None
        ]
        return sum(terms[1:], terms[0])

    @staticmethod
    def vmap(info, in_dims: Sequence[int | None], *inputs: Tensor):  # noqa: D102  # as torch has it
        return AxisForm.apply(*fold_into_heads(info.batch_size, in_dims, inputs)).unflatten(1, (info.batch_size, -1)), 1


def fold_into_heads(size: int, in_dims: Sequence[int | None], inputs: Sequence[Tensor]) -> list[Tensor]:
    """φ(q), φ(k), v and matrices with a further dimension of a size, where they have it, as part of the heads."""
    folded = []
    for place, (tensor, dim) in enumerate(zip(inputs, in_dims, strict=True)):
        whole = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        # Features and values have the heads after the samples, matrices have them first.
        folded.append(whole.flatten(0, 1) if place > 2 else whole.movedim(0, 1).flatten(1, 2))
    return folded
