"""The weighted sum of ring sums as one bilinear operation: nothing but its inputs is kept for the backward pass."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from teka.functional.backend.rings.ring_sums import mix_rings, read_rings, spread_rings
from teka.grid import Grid

# T(a, V, g) = Σ_i Σ_r a_ir R_r(V)(i) · g_i is linear in all three. Its derivative in one is a map of the other two:
# in g it mixes the rings of V, in V it spreads g over them, and in a it reads them off against g.
Form = Literal["mix", "spread", "read"]
PARTIALS: dict[Form, tuple[Form, Form]] = {
    "mix": ("read", "spread"),
    "spread": ("read", "mix"),
    "read": ("spread", "mix"),
}


class RingForm(Function):
    """One of the three maps; its derivatives are the other two, so that it can be differentiated any number of times.

    mix(a, V), spread(a, g) and read(V, g). A dimension that vmap adds joins the batch.
    """

    @staticmethod
    def forward(form: Form, num_rings: int, grid: Grid, first: Tensor, second: Tensor) -> Tensor:
        """The value of a form."""
        if form == "read":
            return read_rings(first, second, num_rings, grid)
        return (mix_rings if form == "mix" else spread_rings)(first, second, grid)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: D102  # as torch has it
        form, num_rings, grid, first, second = inputs
        ctx.form, ctx.num_rings, ctx.grid = form, num_rings, grid
        ctx.save_for_backward(first, second)

    @staticmethod
    def backward(ctx, *grad_outputs):  # noqa: D102  # as torch has it
        (gradient,) = grad_outputs
        first, second = ctx.saved_tensors
        of_first = of_second = None
        if ctx.needs_input_grad[3]:
            of_first = _partial(ctx.form, 0, second, gradient, ctx.num_rings, ctx.grid)
        if ctx.needs_input_grad[4]:
            of_second = _partial(ctx.form, 1, first, gradient, ctx.num_rings, ctx.grid)
        return None, None, None, of_first, of_second

    @staticmethod
    def vmap(info, in_dims: Sequence[int | None], *args):  # noqa: D102  # as torch has it
        form, num_rings, grid, first, second = args
        size = info.batch_size
        folded = [
            (tensor[None].expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)).flatten(0, 1)
            for tensor, dim in ((first, in_dims[3]), (second, in_dims[4]))
        ]
        return apply_form(form, num_rings, grid, *folded).unflatten(0, (size, -1)), 0


class DualRingForm(RingForm):
    """The same with a forward derivative, which torch.compile does not take."""

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: D102  # as torch has it
        RingForm.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[3:])

    @staticmethod
    def jvp(ctx, *grad_inputs):  # noqa: D102  # as torch has it
        of_first, of_second = grad_inputs[3:]
        first, second = ctx.saved_tensors
        terms = []
        if of_first is not None:
            terms.append(apply_form(ctx.form, ctx.num_rings, ctx.grid, of_first, second))
        if of_second is not None:
            terms.append(apply_form(ctx.form, ctx.num_rings, ctx.grid, first, of_second))
        return sum(terms[1:], terms[0])


def apply_form(form: Form, num_rings: int, grid: Grid, first: Tensor, second: Tensor) -> Tensor:
    """A form with its derivatives, whichever the caller can take."""
    function = RingForm if torch.compiler.is_compiling() else DualRingForm
    return function.apply(form, num_rings, grid, first, second)


def ring_mix(
    weights: Float[Tensor, "batch heads tokens rings"], tokens: Float[Tensor, "batch heads tokens channels"], grid: Grid
) -> Float[Tensor, "batch heads tokens channels"]:
    """out_i = Σ_{r ≤ k} a_ir R_r(i), with R_r(i) the sum of the tokens r steps from i and R_k that of all farther ones.

    R_k is the total less the others: exact where all terms are of one size (else see `far_sums`, with a_k = 0 here).

    A few maps of the tokens' size are held at a time, forward and backward, however many rings there are.

    Args:
        weights: a, for every token and ring, shape (B, H, L, k + 1).
        tokens: V, shape (B, H, L, C).
        grid: The grid whose cells the tokens are; 2(k − 1) is less than the side of an axis that is periodic.
    """
    return apply_form("mix", weights.shape[-1] - 1, grid, weights, tokens)


def ring_spread(
    weights: Float[Tensor, "batch heads tokens rings"], tokens: Float[Tensor, "batch heads tokens channels"], grid: Grid
) -> Float[Tensor, "batch heads tokens channels"]:
    """out = Σ_r R_r(a_r · g): the derivative of `ring_mix` in its tokens."""
    return apply_form("spread", weights.shape[-1] - 1, grid, weights, tokens)


def ring_read(
    tokens: Float[Tensor, "batch heads tokens channels"],
    others: Float[Tensor, "batch heads tokens channels"],
    num_rings: int,
    grid: Grid,
) -> Float[Tensor, "batch heads tokens rings"]:
    """out_ir = R_r(i) · g_i for r = 0 … num_rings: the derivative of `ring_mix` in its weights."""
    return apply_form("read", num_rings, grid, tokens, others)


def _partial(form: Form, place: int, other: Tensor, gradient: Tensor, num_rings: int, grid: Grid) -> Tensor:
    """Derivative of a form in its first or second argument, from the other one and the output's gradient."""
    partial = PARTIALS[form][place]
    gradient_first = form == "read" or (form == "spread" and place == 0)
    first, second = (gradient, other) if gradient_first else (other, gradient)
    return apply_form(partial, num_rings, grid, first, second)
