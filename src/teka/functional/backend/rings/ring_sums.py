"""Sums over the L1 rings of a grid, and the three maps that attention and its gradients make of them."""

from types import EllipsisType

import torch
from jaxtyping import Float
from torch import Tensor

from teka.functional.backend.rings.axis_sweep import sweeps_over
from teka.grid import Grid

# Numbers of one map that is worked on at a time, so that a few maps fit a core's cache; measured on one with 2 MiB.
MAP_ELEMENTS = 2**15
# Channels that are not worth parting any further: numbers that are neighbours in memory.
LEAST_CHANNELS = 16

# Samples, heads and channels to work on at a time.
Part = tuple[slice, slice, EllipsisType, slice]


class RingSums:
    """R_r(i) = Σ of the tokens at Manhattan distance r steps from i, for r = 0, 1, … in this order.

    In n dimensions that is 3n − 2 additions a token, channel and ring, and 3n maps held, however many rings there are.
    The sum is its own adjoint: j is as far from i as i from j.

    Args:
        like: A tensor of the shape, dtype and device of the tokens over the cells of a grid.
        num_rings: Number of rings, at least 1.
        grid: The grid; 2(num_rings − 1) is less than the side of an axis that is periodic.
    """

    def __init__(self, like: Float[Tensor, "batch heads *cells channels"], num_rings: int, grid: Grid) -> None:
        self.reach = num_rings - 1
        self.first, *self.others = sweeps_over(like, self.reach, grid)
        self.outs = [_contiguous(like) for _ in range(grid.num_axes)]
        self.tokens = _contiguous(like)
        self.cell_dims = tuple(range(2, like.ndim - 1))

    def start(self, tokens: Float[Tensor, "batch heads *cells channels"]) -> None:
        """Take the tokens whose rings come next."""
        self.tokens.copy_(tokens)
        for sweep in (self.first, *self.others):
            sweep.clear()
        self.first.add_ahead(0, self.tokens)
        self.first.add_behind(0, self.tokens)

    def ring(self, distance: int) -> Float[Tensor, "batch heads *cells channels"]:
        """R_r, in a buffer that the next ring overwrites; to be asked for r = 0, 1, …, each once."""
        ring = self.first.read(distance, self.outs[0]) if distance else self.tokens
        for sweep, out in zip(self.others, self.outs[1:], strict=True):
            ring = sweep.step(distance, ring, out)
        return ring

    def spread(
        self,
        weights: Float[Tensor, "batch heads *cells rings"],
        tokens: Float[Tensor, "batch heads *cells channels"],
    ) -> Float[Tensor, "batch heads *cells channels"]:
        """Σ_r R_r(a_r · g) in a buffer: the same steps backwards."""
        self.tokens.copy_(tokens)
        for sweep in (self.first, *self.others):
            sweep.clear()
        shares = weights[..., None].unbind(-2)
        for distance in range(self.reach, -1, -1):
            ring, weight = self.tokens, shares[distance]
            for sweep, wider in zip(reversed(self.others), self.outs, strict=False):
                ring, weight = sweep.step(distance, ring, wider, weight), None
            self.first.add_ahead(distance, ring, weight)
            if distance:
                self.first.add_behind(distance, ring, weight)
        return self.first.read(0, self.outs[-1])

    def total(self) -> Float[Tensor, "batch heads *one channels"]:
        """Sum over all cells."""
        return self.tokens.sum(dim=self.cell_dims, keepdim=True)


def mix_rings(
    weights: Float[Tensor, "batch heads tokens rings"], tokens: Float[Tensor, "batch heads tokens channels"], grid: Grid
) -> Float[Tensor, "batch heads tokens channels"]:
    """out_i = Σ_{r ≤ k} a_ir R_r(i) = Σ_{r<k} (a_ir − a_ik) R_r(i) + a_ik ΣV, R_k being the total less the others."""
    num_rings = weights.shape[-1] - 1
    result = tokens.new_empty(tokens.shape)
    shares, cells, outs = _over_cells(grid, weights, tokens, result)
    parts = parts_of(tokens)
    sums = RingSums(cells[parts[0]], num_rings, grid)
    total = _contiguous(cells[parts[0]])
    for part in parts:
        last = shares[part[:2]][..., -1:]
        share = shares[part[:2]][..., :-1] - last
        sums.start(cells[part])
        torch.mul(sums.total(), last, out=total)
        for distance, weight in enumerate(share[..., None].unbind(-2)):
            total.addcmul_(sums.ring(distance), weight)
        outs[part].copy_(total)
    return result


def spread_rings(
    weights: Float[Tensor, "batch heads tokens rings"], tokens: Float[Tensor, "batch heads tokens channels"], grid: Grid
) -> Float[Tensor, "batch heads tokens channels"]:
    """out = Σ_{r ≤ k} R_r(a_r · g), the adjoint of `mix_rings` in its tokens."""
    result = tokens.new_empty(tokens.shape)
    shares, cells, outs = _over_cells(grid, weights, tokens, result)
    parts = parts_of(tokens)
    sums = RingSums(cells[parts[0]], weights.shape[-1] - 1, grid)
    weighted = _contiguous(cells[parts[0]])
    for part in parts:
        last = shares[part[:2]][..., -1:]
        out = sums.spread(shares[part[:2]][..., :-1] - last, cells[part])
        torch.mul(sums.tokens, last, out=weighted)
        torch.add(out, weighted.sum(dim=sums.cell_dims, keepdim=True), out=outs[part])
    return result


def read_rings(
    tokens: Float[Tensor, "batch heads tokens channels"],
    others: Float[Tensor, "batch heads tokens channels"],
    num_rings: int,
    grid: Grid,
) -> Float[Tensor, "batch heads tokens rings"]:
    """out_ir = R_r(i) · g_i for r = 0 … num_rings, the adjoint of `mix_rings` in its weights."""
    result = tokens.new_zeros((*tokens.shape[:-1], num_rings + 1))
    cells, given, outs = _over_cells(grid, tokens, others, result)
    parts = parts_of(tokens)
    sums = RingSums(cells[parts[0]], num_rings, grid)
    product = _contiguous(cells[parts[0]])
    for part in parts:
        sums.start(cells[part])
        other = given[part].contiguous()
        for distance, out in enumerate(outs[part[:2]].unbind(-1)):
            torch.mul(sums.ring(distance) if distance < num_rings else sums.total(), other, out=product)
            out.add_(product.sum(dim=-1))
    result[..., -1] -= result[..., :-1].sum(dim=-1)
    return result


def parts_of(tokens: Float[Tensor, "batch heads tokens channels"]) -> list[Part]:
    """What to work on at a time, always equally much; a compiler gets it all at once, since it plans the memory."""
    batch, heads, num_tokens, channels = tokens.shape
    if torch.compiler.is_compiling():
        return [(slice(None), slice(None), ..., slice(None))]
    some_channels = _divisor(channels, max(LEAST_CHANNELS, MAP_ELEMENTS // num_tokens))
    some_heads = _divisor(heads, MAP_ELEMENTS // (num_tokens * some_channels))
    samples = _divisor(batch, MAP_ELEMENTS // (num_tokens * some_channels * heads))
    return [
        (slice(sample, sample + samples), slice(head, head + some_heads), ..., slice(channel, channel + some_channels))
        for sample in range(0, max(1, batch), samples)
        for head in range(0, heads, some_heads)
        for channel in range(0, channels, some_channels)
    ]


def _over_cells(grid: Grid, *tensors: Float[Tensor, "batch heads tokens _"]) -> list[Tensor]:
    return [tensor.unflatten(2, grid.shape) for tensor in tensors]


def _divisor(number: int, most: int) -> int:
    """The largest divisor that is at most `most`, or 1."""
    return max(divisor for divisor in range(1, max(1, min(number, most)) + 1) if number % divisor == 0)


def _contiguous(like: Tensor) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)
