"""Ring sums of products of features and values, Σ_j φ(q_i)ᵀφ(k_j) a_{i,r(i,j)} v_j, a few features at a time."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from teka.functional.backend.rings.far_sums import far_sums, sum_far
from teka.functional.backend.rings.ring_mix import ring_mix, ring_read, ring_spread
from teka.functional.backend.rings.ring_sums import mix_rings
from teka.grid import Grid

# Numbers of one chunk of φ ⊗ v: 4 MiB in float32. It is at least one feature.
CHUNK_ELEMENTS = 2**20


def product_rings(
    weights: Float[Tensor, "batch heads tokens rings"],
    query_features: Float[Tensor, "batch heads tokens features"],
    key_features: Float[Tensor, "batch heads tokens features"],
    value: Float[Tensor, "batch heads tokens channels"],
    grid: Grid,
) -> Float[Tensor, "batch heads tokens channels"]:
    """out_i = Σ_r a_ir φ(q_i)ᵀR_r(i), with R_r the ring sums of φ(k_j) ⊗ v_j and R_k the sum over the last ring.

    Linear in all four tensors. φ ⊗ v is made for a few features at a time, and again in the backward pass, so that
    memory grows with L · (k + m + d).

    Args:
        weights: a, for every token and ring r = 0 … k.
        query_features: φ(q).
        key_features: φ(k).
        value: Values.
        grid: The grid whose cells the tokens are; 2(k − 1) is less than the side of an axis that is periodic.
    """
    function = ProductRings if torch.compiler.is_compiling() else DualProductRings
    return function.apply(grid, weights, query_features, key_features, value)


class ProductRings(Function):
    """The sums with their derivatives; a dimension that vmap adds joins the batch."""

    @staticmethod
    def forward(grid: Grid, weights: Tensor, query_features: Tensor, key_features: Tensor, value: Tensor) -> Tensor:
        """The sums."""
        near, last, reach = *_near_and_last(weights), weights.shape[-1] - 1
        total = torch.zeros_like(value)
        for features in _chunks(key_features, value):
            mapped = _product(key_features[..., features], value)
            mixed = mix_rings(near, mapped, grid).addcmul_(last, sum_far(mapped, reach, grid))
            total += _contract(query_features[..., features], mixed)
        return total

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: D102  # as torch has it
        ctx.grid = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx, *grad_outputs):  # noqa: D102  # as torch has it
        (gradient,) = grad_outputs
        weights, query_features, key_features, value = ctx.saved_tensors
        near, last, reach, grid = *_near_and_last(weights), weights.shape[-1] - 1, ctx.grid
        needs = ctx.needs_input_grad[1:]
        of_weights, of_value = torch.zeros_like(weights), torch.zeros_like(value)
        of_query, of_key = [], []
        for features in _chunks(key_features, value):
            mapped = _product(key_features[..., features], value)
            given = _product(query_features[..., features], gradient)
            if needs[0] or needs[1]:
                far = far_sums(mapped, reach, grid)
                read = [ring_read(mapped, given, reach, grid)[..., :-1], (far * given).sum(dim=-1, keepdim=True)]
                of_weights = of_weights + torch.cat(read, dim=-1)
                mixed = (ring_mix(near, mapped, grid) + last * far).unflatten(-1, (-1, value.shape[-1]))
                of_query.append((mixed @ gradient[..., None])[..., 0])
            if needs[2] or needs[3]:
                spread = ring_spread(near, given, grid) + far_sums(last * given, reach, grid)
                of_key.append((spread.unflatten(-1, (-1, value.shape[-1])) @ value[..., None])[..., 0])
                of_value = of_value + _contract(key_features[..., features], spread)
        gradients = (
            of_weights,
            torch.cat(of_query, dim=-1) if of_query else None,
            torch.cat(of_key, dim=-1) if of_key else None,
            of_value,
        )
        return None, *(one if need else None for one, need in zip(gradients, needs, strict=True))

    @staticmethod
    def vmap(info, in_dims: Sequence[int | None], *args):  # noqa: D102  # as torch has it
        grid, *tensors = args
        size = info.batch_size
        folded = [
            (tensor[None].expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)).flatten(0, 1)
            for tensor, dim in zip(tensors, in_dims[1:], strict=True)
        ]
        weights, query_features, key_features, value = folded
        return product_rings(weights, query_features, key_features, value, grid).unflatten(0, (size, -1)), 0


class DualProductRings(ProductRings):
    """The same with a forward derivative, which torch.compile does not take."""

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: D102  # as torch has it
        ProductRings.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def jvp(ctx, *grad_inputs):  # noqa: D102  # as torch has it
        inputs = ctx.saved_tensors
        terms = []
        for place, tangent in enumerate(grad_inputs[1:]):
            if tangent is not None:
                weights, query_features, key_features, value = (*inputs[:place], tangent, *inputs[place + 1 :])
                terms.append(product_rings(weights, query_features, key_features, value, ctx.grid))
        return sum(terms[1:], terms[0])


def _near_and_last(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weights with 0 for the last ring, whose sums are taken with more care, and that of the last ring."""
    last = weights[..., -1:]
    return torch.cat([weights[..., :-1], torch.zeros_like(last)], dim=-1), last


def _product(features: Tensor, value: Tensor) -> Tensor:
    return (features[..., :, None] * value[..., None, :]).flatten(-2)


def _contract(features: Tensor, mixed: Tensor) -> Tensor:
    return (features[..., None, :] @ mixed.unflatten(-1, (features.shape[-1], -1)))[..., 0, :]


def _chunks(features: Tensor, value: Tensor) -> Iterator[slice]:
    size = max(1, CHUNK_ELEMENTS // max(1, value.numel()))
    return (slice(start, start + size) for start in range(0, features.shape[-1], size))
