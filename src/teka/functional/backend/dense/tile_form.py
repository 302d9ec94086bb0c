"""The sums over all pairs of two grids with a separable kernel as one operation that keeps nothing but its inputs."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Function

from teka.functional.backend.dense.tile_sums import tile_sums, tile_sums_gradients
from teka.functional.backend.sums import with_ones
from teka.functional.backend.toeplitz.axis_form import AxisForm, fold_into_heads, plain_axis_sums
from teka.functional.backend.wanted import Wanted


class TileForm(Function):
    """φ(q), φ(k), v, log C_1, …, log C_n → Σ_j φ(q_i)ᵀφ(k_j) Π_axis C_axis[i, j] [v_j, 1].

    Its backward pass makes the tiles again. Where the gradient is itself to be differentiated, it is taken of
    `plain_axis_sums`. A dimension that vmap adds joins the heads, which have matrices of their own.
    """

    @staticmethod
    def forward(query_features: Tensor, key_features: Tensor, value: Tensor, *log_matrices: Tensor) -> Tensor:
        """The sums."""
        return tile_sums(query_features, key_features, value, [torch.exp(matrix) for matrix in log_matrices])

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: D102  # as torch has it
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, *grad_outputs):  # noqa: D102  # as torch has it
        (gradient,) = grad_outputs
        inputs = query_features, key_features, value, *log_matrices = ctx.saved_tensors
        if torch.is_grad_enabled():
            gradients = torch.func.vjp(_plain, *inputs)[1](gradient)
            return tuple(one if needed else None for one, needed in zip(gradients, ctx.needs_input_grad, strict=True))
        matrices = [torch.exp(matrix) for matrix in log_matrices]
        wanted = Wanted.from_needs(ctx.needs_input_grad)
        return tuple(tile_sums_gradients(gradient, query_features, key_features, value, matrices, wanted))

    @staticmethod
    def jvp(ctx, *tangents):  # noqa: D102  # as torch has it
        query_features, key_features, value, *log_matrices = ctx.saved_tensors
        inputs = [query_features, key_features, with_ones(value), *(torch.exp(matrix) for matrix in log_matrices)]
        of_value = None if tangents[2] is None else torch.cat([tangents[2], torch.zeros_like(value[..., :1])], dim=-1)
        of_matrices = [
            None if tangent is None else tangent * matrix
            for tangent, matrix in zip(tangents[3:], inputs[3:], strict=True)
        ]
        terms = [
            AxisForm.apply(*inputs[:place], tangent, *inputs[place + 1 :])
            for place, tangent in enumerate((*tangents[:2], of_value, *of_matrices))
            if tangent is not None
        ]
        return sum(terms[1:], terms[0])

    @staticmethod
    def vmap(info, in_dims: Sequence[int | None], *inputs: Tensor):  # noqa: D102  # as torch has it
        return TileForm.apply(*fold_into_heads(info.batch_size, in_dims, inputs)).unflatten(1, (info.batch_size, -1)), 1


def _plain(query_features: Tensor, key_features: Tensor, value: Tensor, *log_matrices: Tensor) -> Tensor:
    """The same sums by torch's differentiable operations."""
    matrices = [torch.exp(matrix) for matrix in log_matrices]
    return plain_axis_sums(query_features, key_features, with_ones(value), *matrices)
