"""The ring backend: a relative kernel that sees only the Manhattan distance, clipped, on a grid."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from teka.functional.backend import BYTES, Cost, Sums, with_ones
from teka.functional.backend.ring_sums import mix_rings, read_rings, spread_rings, sum_far
from teka.functional.kernel.base import KeyFeatures, KeyMask, QueryFeatures, Tokens, Values
from teka.grid import Grid

# Numbers of one chunk of φ ⊗ v: 4 MiB in float32. It is at least one feature.
CHUNK_ELEMENTS = 2**20

RingWeights = Float[Tensor, "batch heads tokens rings"]


def rings_cost(grid: Grid, num_features: int, dim_value: int, max_distance: int) -> Cost:
    """Multiply-adds of one head, forward, and bytes of the maps that pass through memory.

    An addition of maps counts as a multiply-add, and reads two numbers and writes one. In n dimensions a ring takes
    3n − 2 of them and one product with its weights, which takes the time of five (measured in one to three dimensions).
    With one feature the last ring is a difference; with more it takes as much as the others together, two cumulative
    sums an axis, and φ ⊗ [v, 1] is made and read.
    """
    additions = a_ring = (3 * grid.num_axes - 2 + 5) * max_distance
    if num_features > 1:
        additions += a_ring + 2 * grid.num_axes + 3
    numbers = grid.num_tokens * num_features * (dim_value + 1)
    return Cost(numbers * additions, numbers * additions * 3 * BYTES)


def rings(
    log_rings: RingWeights,
    query_features: QueryFeatures,
    key_features: KeyFeatures,
    value: Values,
    grid: Grid,
    *,
    key_mask: KeyMask | None,
) -> Sums:
    """Σ_j φ(q_i)ᵀφ(k_j) c_{r(i,j)}(q_i) [v_j, 1] = Σ_r c_ir φ(q_i)ᵀR_r(i), from log c of every query and ring.

    R_r(i) is the sum of φ(k_j) ⊗ [v_j, 1] over the cells j at distance r from i, and R_k that over all cells at least k
    away. A row's largest c_ir is taken over the rings that hold a kept key, so that an empty ring cannot push the
    others out of range; a ring without one counts for nothing, so that rounding in it is not amplified.
    """
    keep = value.new_ones(1, 1, grid.num_tokens, 1) if key_mask is None else key_mask[:, None, :, None].to(value)
    distance = log_rings.shape[-1] - 1
    filled = ring_read(keep, torch.ones_like(keep), distance, grid) > 0.5  # the counts are whole numbers and so exact
    log_peak = log_rings.detach().masked_fill(~filled, -torch.inf).amax(dim=-1)
    log_peak = log_peak.masked_fill(~filled.any(dim=-1), 0.0)
    # A ring without keys has a sum of exactly 0, the last one apart: its weight must be 0.
    weights = torch.exp((log_rings - log_peak[..., None]).masked_fill(~filled, -torch.inf))
    if key_features.shape[-1] > 1:
        return Sums.of_channels(product_rings(weights, query_features, key_features, with_ones(value), grid), log_peak)
    weights = weights * query_features
    # Apart, the values keep an even number of channels.
    # All terms are of one size, and the last ring is the total less the others without loss. Of the denominator, with
    # one channel, the rings themselves are kept: they are no larger than the weights.
    numerator = ring_mix(weights, key_features * value, grid)
    denominator = (weights * ring_read(key_features, torch.ones_like(key_features), distance, grid)).sum(dim=-1)
    return Sums(numerator, denominator, log_peak)


# T(a, V, g) = Σ_i Σ_r a_ir R_r(V)(i) · g_i is linear in all three. Its derivative in one is a map of the other two:
# in g it mixes the rings of V, in V it spreads g over them, and in a it reads them off against g.
Form = Literal["mix", "spread", "read"]
PARTIALS: dict[Form, tuple[Form, Form]] = {
    "mix": ("read", "spread"),
    "spread": ("read", "mix"),
    "read": ("spread", "mix"),
}


class RingForm(Function):
    """mix(a, V), spread(a, g) or read(V, g): its derivatives are the other two, so that it has any number of them.

    Nothing but the inputs is kept for the backward pass. A dimension that vmap adds joins the batch.
    """

    @staticmethod
    def forward(form: Form, num_rings: int, grid: Grid, first: Tensor, second: Tensor) -> Tensor:
        """The value of a form."""
        if form == "read":
            return read_rings(first, second, num_rings, grid)
        return (mix_rings if form == "mix" else spread_rings)(first, second, grid)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: D102  # as torch has it
        ctx.options = inputs[:3]
        ctx.save_for_backward(*inputs[3:])

    @staticmethod
    def backward(ctx, *grad_outputs):  # noqa: D102  # as torch has it
        (gradient,) = grad_outputs
        first, second = ctx.saved_tensors
        form, num_rings, grid = ctx.options
        of_first = _partial(form, num_rings, grid, 0, second, gradient) if ctx.needs_input_grad[3] else None
        of_second = _partial(form, num_rings, grid, 1, first, gradient) if ctx.needs_input_grad[4] else None
        return None, None, None, of_first, of_second

    @staticmethod
    def vmap(info, in_dims: Sequence[int | None], *args):  # noqa: D102  # as torch has it
        form, num_rings, grid, *tensors = args
        first, second = _fold_into_batch(info.batch_size, in_dims[3:], tensors)
        return apply_form(form, num_rings, grid, first, second).unflatten(0, (info.batch_size, -1)), 0


class DualRingForm(RingForm):
    """The same with a forward derivative, which torch.compile does not take."""

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: D102  # as torch has it
        RingForm.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[3:])

    @staticmethod
    def jvp(ctx, *grad_inputs):  # noqa: D102  # as torch has it
        form, num_rings, grid = ctx.options
        return _sum_of_terms(
            lambda first, second: apply_form(form, num_rings, grid, first, second), ctx.saved_tensors, grad_inputs[3:]
        )


def _fold_into_batch(size: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    return [
        (tensor[None].expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)).flatten(0, 1)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    ]


def _sum_of_terms(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> Tensor:
    """The forward derivative of what is linear in every input: one term for each that has a tangent."""
    terms = [
        function(*inputs[:place], tangent, *inputs[place + 1 :])
        for place, tangent in enumerate(tangents)
        if tangent is not None
    ]
    return sum(terms[1:], terms[0])


def apply_form(form: Form, num_rings: int, grid: Grid, first: Tensor, second: Tensor) -> Tensor:
    """A form with its derivatives, whichever the caller can take."""
    function = RingForm if torch.compiler.is_compiling() else DualRingForm
    return function.apply(form, num_rings, grid, first, second)


def _partial(form: Form, num_rings: int, grid: Grid, place: int, other: Tensor, gradient: Tensor) -> Tensor:
    """Derivative of a form in its first or second argument, from the other one and the output's gradient."""
    gradient_first = form == "read" or (form == "spread" and place == 0)
    first, second = (gradient, other) if gradient_first else (other, gradient)
    return apply_form(PARTIALS[form][place], num_rings, grid, first, second)


def ring_mix(weights: RingWeights, tokens: Tokens, grid: Grid) -> Tokens:
    """out_i = Σ_{r ≤ k} a_ir R_r(i), with R_r(i) the sum of the tokens r steps from i and R_k that of all farther ones.

    R_k is the total less the others: exact where all terms are of one size (else see `far_sums`, with a_k = 0 here).
    2(k − 1) is less than the side of an axis that is periodic. A few maps of the tokens' size are held at a time,
    forward and backward, however many rings there are.
    """
    return apply_form("mix", weights.shape[-1] - 1, grid, weights, tokens)


def ring_spread(weights: RingWeights, tokens: Tokens, grid: Grid) -> Tokens:
    """out = Σ_r R_r(a_r · g): the derivative of `ring_mix` in its tokens."""
    return apply_form("spread", weights.shape[-1] - 1, grid, weights, tokens)


def ring_read(tokens: Tokens, others: Tokens, num_rings: int, grid: Grid) -> RingWeights:
    """out_ir = R_r(i) · g_i for r = 0 … num_rings: the derivative of `ring_mix` in its weights."""
    return apply_form("read", num_rings, grid, tokens, others)


def far_sums(tokens: Tokens, distance: int, grid: Grid) -> Tokens:
    """Σ of the tokens at Manhattan distance `distance` ≥ 1 or more, with no difference that rounding could dominate.

    A_s, the sum over all that is at least s steps away, comes from one dimension fewer as a ring does (`AxisSweep`),
    since steps t along the axis beyond s ask nothing of the others: A_0 is summed along the axis from either end to
    begin with, and A_1, A_2, … are added to that. Nothing is subtracted; a total minus the near rings would lose the
    far ones where the near tokens are much larger. The map is its own adjoint.
    """
    return (FarSums if torch.compiler.is_compiling() else DualFarSums).apply(distance, grid, tokens)


class FarSums(Function):
    """The map with its derivative, which is itself; a dimension that vmap adds joins the batch."""

    @staticmethod
    def forward(distance: int, grid: Grid, tokens: Tensor) -> Tensor:
        """The sums."""
        return sum_far(tokens, distance, grid)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: D102  # as torch has it
        ctx.distance, ctx.grid, _ = inputs

    @staticmethod
    def backward(ctx, *grad_outputs):  # noqa: D102  # as torch has it
        return None, None, far_sums(grad_outputs[0], ctx.distance, ctx.grid)

    @staticmethod
    def vmap(info, in_dims: Sequence[int | None], *args):  # noqa: D102  # as torch has it
        (folded,) = _fold_into_batch(info.batch_size, in_dims[2:], args[2:])
        return far_sums(folded, *args[:2]).unflatten(0, (info.batch_size, -1)), 0


class DualFarSums(FarSums):
    """The same with a forward derivative, which torch.compile does not take."""

    @staticmethod
    def jvp(ctx, *grad_inputs):  # noqa: D102  # as torch has it
        return far_sums(grad_inputs[2], ctx.distance, ctx.grid)


def product_rings(
    weights: RingWeights, query_features: QueryFeatures, key_features: KeyFeatures, value: Tokens, grid: Grid
) -> Tokens:
    """out_i = Σ_r a_ir φ(q_i)ᵀR_r(i), with R_r the ring sums of φ(k_j) ⊗ v_j and R_k the sum over the last ring.

    Linear in all four tensors. φ ⊗ v is made for a few features at a time, and again in the backward pass, so that
    memory grows with L · (k + m + d). 2(k − 1) is less than the side of an axis that is periodic.
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
        of_query, of_key = (torch.cat(parts, dim=-1) if parts else None for parts in (of_query, of_key))
        gradients = (of_weights, of_query, of_key, of_value)
        return None, *(one if need else None for one, need in zip(gradients, needs, strict=True))

    @staticmethod
    def vmap(info, in_dims: Sequence[int | None], *args):  # noqa: D102  # as torch has it
        weights, query, key, value = _fold_into_batch(info.batch_size, in_dims[1:], args[1:])
        return product_rings(weights, query, key, value, args[0]).unflatten(0, (info.batch_size, -1)), 0


class DualProductRings(ProductRings):
    """The same with a forward derivative, which torch.compile does not take."""

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: D102  # as torch has it
        ProductRings.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def jvp(ctx, *grad_inputs):  # noqa: D102  # as torch has it
        return _sum_of_terms(
            lambda weights, query, key, value: product_rings(weights, query, key, value, ctx.grid),
            ctx.saved_tensors,
            grad_inputs[1:],
        )


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
