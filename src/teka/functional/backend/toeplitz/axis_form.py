"""The sums over a grid with a separable kernel as one multilinear operation that keeps nothing but its inputs."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from teka.functional.backend.toeplitz.axis_sums import axis_sums, axis_sums_gradients
from teka.functional.backend.wanted import Wanted


class AxisForm(Function):
    """φ(q), φ(k), v, C_1, …, C_n → Σ_j φ(q_i)ᵀφ(k_j) Π_axis C_axis[i, j] v_j, linear in every argument.

    Its backward pass makes again what lies between. Where the gradient is itself to be differentiated, it is taken of
    `plain_axis_sums`. A dimension that vmap adds joins the heads, which have matrices of their own.
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
        wanted = Wanted.from_needs(ctx.needs_input_grad)
        return tuple(axis_sums_gradients(gradient, query_features, key_features, value, matrices, wanted))

    @staticmethod
    def jvp(ctx, *tangents):  # noqa: D102  # as torch has it
        inputs = ctx.saved_tensors
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
    """φ(q), φ(k), v and matrices with a further dimension as part of the heads.

    Args:
        size: Size of that dimension.
        in_dims: Where every tensor has it; None where it has not.
        inputs: The tensors.
    """
    folded = []
    for place, (tensor, dim) in enumerate(zip(inputs, in_dims, strict=True)):
        whole = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        # Features and values have the heads after the samples, matrices have them first.
        folded.append(whole.flatten(0, 1) if place > 2 else whole.movedim(0, 1).flatten(1, 2))
    return folded


def plain_axis_sums(
    query_features: Float[Tensor, "batch heads queries features"],
    key_features: Float[Tensor, "batch heads keys features"],
    value: Float[Tensor, "batch heads keys channels"],
    *matrices: Float[Tensor, "heads _ _"],
) -> Float[Tensor, "batch heads queries channels"]:
    """The same sums by torch's differentiable operations, with φ ⊗ v of all features held at once."""
    batch, heads = value.shape[:2]
    maps = key_features[..., :, None] * value[..., None, :]
    shape = maps.shape[-2:]
    before, after = 1, maps.shape[2] * shape.numel()
    for matrix in matrices:
        after //= matrix.shape[-1]
        maps = matrix[:, None] @ maps.reshape(batch, heads, before, matrix.shape[-1], after)
        before *= matrix.shape[-2]
    return (query_features[..., None, :] @ maps.reshape(batch, heads, before, *shape))[..., 0, :]
