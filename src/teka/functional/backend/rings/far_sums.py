"""The last ring: everything at least so far away, with no difference that rounding could dominate."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from teka.functional.backend.rings.axis_sweep import AxisSweep, sweeps_over
from teka.functional.backend.rings.ring_sums import parts_of
from teka.grid import Grid


def far_sums(
    tokens: Float[Tensor, "batch heads tokens channels"], distance: int, grid: Grid
) -> Float[Tensor, "batch heads tokens channels"]:
    """Σ of the tokens at Manhattan distance `distance` or more.

    A_s, the sum over all that is at least s steps away, comes from one dimension fewer as a ring does (`AxisSweep`),
    since steps t along the axis beyond s ask nothing of the others: A_0 is summed along the axis from either end to
    begin with, and A_1, A_2, … are added to that. Nothing is subtracted; a total minus the near rings would lose the
    far ones where the near tokens are much larger. The map is its own adjoint.

    Args:
        tokens: Tokens, shape (B, H, L, C).
        distance: Least distance in steps, at least 1.
        grid: The grid; 2(distance − 1) is less than the side of an axis that is periodic.
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
        distance, grid, tokens = args
        folded = tokens.movedim(in_dims[2], 0).flatten(0, 1)
        return far_sums(folded, distance, grid).unflatten(0, (info.batch_size, -1)), 0


class DualFarSums(FarSums):
    """The same with a forward derivative, which torch.compile does not take."""

    @staticmethod
    def jvp(ctx, *grad_inputs):  # noqa: D102  # as torch has it
        return far_sums(grad_inputs[2], ctx.distance, ctx.grid)


def sum_far(
    tokens: Float[Tensor, "batch heads tokens channels"], distance: int, grid: Grid
) -> Float[Tensor, "batch heads tokens channels"]:
    """`far_sums` without derivatives."""
    result = tokens.new_empty(tokens.shape)
    cells, outs = tokens.unflatten(2, grid.shape), result.unflatten(2, grid.shape)
    for part in parts_of(tokens):
        _sum_far(cells[part], distance, grid, outs[part])
    return result


def _sum_far(cells: Tensor, distance: int, grid: Grid, result: Tensor) -> None:
    sweeps = sweeps_over(cells, distance, grid)
    outs = [*(torch.empty_like(cells, memory_format=torch.contiguous_format) for _ in sweeps[1:]), result]
    totals = [cells]
    for sweep in sweeps:
        if not sweep.periodic:
            _begin(sweep, totals[-1])
        totals.append(totals[-1].sum(dim=sweep.dim, keepdim=True))
    for least in range(1, distance + 1):
        inner = None
        for sweep, total, out in zip(sweeps, totals, outs, strict=False):
            if inner is None:
                sweep.read(least, out)
            else:
                sweep.step(least, inner, out)
            if sweep.periodic:
                out += _beyond(total, sweep.dim, least)
            inner = out


def _begin(sweep: AxisSweep, total: Tensor) -> None:
    """Σ_{t ≥ 0} A_0(i + t) and Σ_{t ≥ 0} A_0(i − t)."""
    sweep.ahead_views[0][0].copy_(total.flip(sweep.dim).cumsum(sweep.dim).flip(sweep.dim))
    sweep.behind_views[0][0].copy_(total.cumsum(sweep.dim))


def _beyond(total: Tensor, dim: int, distance: int) -> Tensor:
    """Sum over the cells of an axis that wraps that are at least `distance` steps away."""
    side = total.shape[dim]
    index = torch.arange(side, device=total.device)
    steps = (index[:, None] - index[None, :]).abs()
    outside = (torch.minimum(steps, side - steps) >= distance).to(total)
    return (outside @ total.movedim(dim, -2)).movedim(-2, dim)
