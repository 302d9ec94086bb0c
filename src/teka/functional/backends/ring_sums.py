"""Sums over the L1 rings of a grid: three maps, with one addition an axis and ring, of which nothing is subtracted."""

from collections.abc import Sequence
from types import EllipsisType

import torch
from jaxtyping import Float
from torch import Tensor

from teka._compat import records_graph
from teka.functional.shapes import Cells, Channels, RingWeights
from teka.grid import Grid

# Numbers of one map that is worked on at a time, so that a few maps fit a core's cache; measured on one with 2 MiB.
MAP_ELEMENTS = 2**15
# Channels that are not worth parting any further: numbers that are neighbours in memory.
LEAST_CHANNELS = 16

# Samples, heads and channels to work on at a time.
Part = tuple[slice, slice, EllipsisType, slice]


class AxisSweep:
    """Rings in n dimensions from rings in n − 1, one radius after another.

    A ring about i is, for every step t along the axis, a ring of radius r − |t| in the other dimensions:

        R_r(i) = Σ_{|t| ≤ r} P_{r−|t|}(i + t) = F_r(i) + G_r(i)
        F_r(i) = Σ_{t=0}^{r} P_{r−t}(i + t) = P_r(i) + F_{r−1}(i + 1)
        G_r(i) = Σ_{t=1}^{r} P_{r−t}(i − t) = P_{r−1}(i − 1) + G_{r−1}(i − 1)

    Kept at i + r, F is a buffer to which P_r is added in place, and so is G, kept at i − r: three additions a radius.
    Nothing is subtracted. Run with falling radii the same steps give the adjoint map, Σ_r of what the radii got.
    """

    def __init__(self, like: Tensor, dim: int, reach: int, *, periodic: bool) -> None:
        self.dim, self.periodic = dim, periodic
        side = like.shape[dim]
        shape = list(like.shape)
        shape[dim] += 0 if periodic else reach
        self.ahead, self.behind = like.new_zeros(shape), like.new_zeros(shape)
        # For every radius the views of the buffer that together hold cells 0, 1, …: one, or two where they wrap.
        places = [
            (radius, -radius) if periodic else (radius, reach - radius)
            for radius in range(reach + 1)
        ]
        self.ahead_views = [
            _views(self.ahead, dim, ahead % shape[dim], side) for ahead, _ in places
        ]
        self.behind_views = [
            _views(self.behind, dim, behind % shape[dim], side) for _, behind in places
        ]

    def read(self, distance: int, out: Tensor) -> Tensor:
        """Write F_r + G_r into `out`, and return that."""
        ahead, behind = self.ahead_views[distance], self.behind_views[distance]
        if len(ahead) == len(behind) == 1:
            return torch.add(ahead[0], behind[0], out=out)
        for view, part in zip(ahead, _split(out, self.dim, ahead), strict=True):
            part.copy_(view)
        for view, part in zip(behind, _split(out, self.dim, behind), strict=True):
            part.add_(view)
        return out

    def step(
        self, distance: int, inner: Tensor, out: Tensor, weight: Tensor | None = None
    ) -> Tensor:
        """R_r from P_r, or from weight · P_r, written into `out`; with falling radii the adjoint of that."""
        self.add(self.ahead_views[distance], inner, weight)
        self.read(distance, out)
        self.add(self.behind_views[distance], inner, weight)
        return out

    def add(self, views: Sequence[Tensor], inner: Tensor, weight: Tensor | None = None) -> None:
        """Add P_r, or weight · P_r, to F or to G by its views."""
        # Without a seam there is nothing to cut, and this is called often.
        if len(views) == 1:
            _add_to(views[0], inner, weight)
            return
        parts = _split(inner, self.dim, views)
        shares = [None] * len(views) if weight is None else _split(weight, self.dim, views)
        for view, part, share in zip(views, parts, shares, strict=True):
            _add_to(view, part, share)


def _add_to(view: Tensor, part: Tensor, weight: Tensor | None) -> None:
    if weight is None:
        view.add_(part)
    else:
        view.addcmul_(part, weight)


def _views(buffer: Tensor, dim: int, place: int, side: int) -> list[Tensor]:
    """The cells from a place on, round the end where the buffer is too short."""
    length = buffer.shape[dim]
    if place + side <= length:
        return [buffer.narrow(dim, place, side)]
    return [buffer.narrow(dim, place, length - place), buffer.narrow(dim, 0, side - length + place)]


def _split(tensor: Tensor, dim: int, views: Sequence[Tensor]) -> Sequence[Tensor]:
    return [tensor] if len(views) == 1 else tensor.split([view.shape[dim] for view in views], dim)


def sweeps_over(like: Cells, reach: int, grid: Grid) -> list[AxisSweep]:
    """A sweep for every axis of a grid, the last axis first."""
    axes = range(grid.num_axes - 1, -1, -1)
    return [AxisSweep(like, 2 + axis, reach, periodic=grid.periodic[axis]) for axis in axes]


class RingSums:
    """R_r(i) = Σ of the tokens r steps from i, for r = 0, 1, … in order; its own adjoint; 3n − 2 additions a ring."""

    def __init__(self, like: Cells, num_rings: int, grid: Grid) -> None:
        self.reach = num_rings - 1
        self.first, *self.others = sweeps_over(like, self.reach, grid)
        self.outs = [_contiguous(like) for _ in range(grid.num_axes)]
        self.tokens = _contiguous(like)
        self.cell_dims = tuple(range(2, like.ndim - 1))

    def start(self, tokens: Cells) -> None:
        """Take the tokens whose rings come next."""
        self._clear(tokens)
        self.first.add(self.first.ahead_views[0], self.tokens)
        self.first.add(self.first.behind_views[0], self.tokens)

    def _clear(self, tokens: Tensor) -> None:
        self.tokens.copy_(tokens)
        for sweep in (self.first, *self.others):
            sweep.ahead.zero_()
            sweep.behind.zero_()

    def ring(self, distance: int) -> Cells:
        """R_r, in a buffer that the next ring overwrites; to be asked for r = 0, 1, …, each once."""
        ring = self.first.read(distance, self.outs[0]) if distance else self.tokens
        for sweep, out in zip(self.others, self.outs[1:], strict=True):
            ring = sweep.step(distance, ring, out)
        return ring

    def spread(self, weights: Float[Tensor, "batch heads *cells rings"], tokens: Cells) -> Cells:
        """Σ_r R_r(a_r · g) in a buffer: the same steps backwards."""
        self._clear(tokens)
        shares = weights[..., None].unbind(-2)
        for distance in range(self.reach, -1, -1):
            ring, weight = self.tokens, shares[distance]
            for sweep, wider in zip(self.others[::-1], self.outs[:-1], strict=True):
                ring, weight = sweep.step(distance, ring, wider, weight), None
            self.first.add(self.first.ahead_views[distance], ring, weight)
            if distance:
                self.first.add(self.first.behind_views[distance], ring, weight)
        return self.first.read(0, self.outs[-1])

    def total(self) -> Float[Tensor, "batch heads *one channels"]:
        """Sum over all cells."""
        return self.tokens.sum(dim=self.cell_dims, keepdim=True)


def mix_rings(weights: RingWeights, tokens: Channels, grid: Grid) -> Channels:
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


def spread_rings(weights: RingWeights, tokens: Channels, grid: Grid) -> Channels:
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


def read_rings(tokens: Channels, others: Channels, num_rings: int, grid: Grid) -> RingWeights:
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
            torch.mul(
                sums.ring(distance) if distance < num_rings else sums.total(), other, out=product
            )
            out.add_(product.sum(dim=-1))
    result[..., -1] -= result[..., :-1].sum(dim=-1)
    return result


def parts_of(tokens: Channels) -> list[Part]:
    """What to work on at a time, always equally much.

    It is all at once for a compiler, which plans the memory, and on a GPU, where a part would cost a launch for each of
    its hundreds of operations.
    """
    batch, heads, num_tokens, channels = tokens.shape
    if records_graph() or not tokens.is_cpu:
        return [(slice(None), slice(None), ..., slice(None))]
    some_channels = _divisor(channels, max(LEAST_CHANNELS, MAP_ELEMENTS // num_tokens))
    some_heads = _divisor(heads, MAP_ELEMENTS // (num_tokens * some_channels))
    samples = _divisor(batch, MAP_ELEMENTS // (num_tokens * some_channels * heads))
    return [
        (
            slice(sample, sample + samples),
            slice(head, head + some_heads),
            ...,
            slice(channel, channel + some_channels),
        )
        for sample in range(0, max(1, batch), samples)
        for head in range(0, heads, some_heads)
        for channel in range(0, channels, some_channels)
    ]


def _over_cells(grid: Grid, *tensors: Float[Tensor, "batch heads tokens _"]) -> list[Tensor]:
    return [tensor.unflatten(2, grid.shape) for tensor in tensors]


def _divisor(number: int, most: int) -> int:
    return max(
        divisor for divisor in range(1, max(1, min(number, most)) + 1) if number % divisor == 0
    )


def _contiguous(like: Tensor) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def sum_far(tokens: Channels, distance: int, grid: Grid) -> Channels:
    """`FarSums` without derivatives."""
    result = tokens.new_empty(tokens.shape)
    cells, results = _over_cells(grid, tokens, result)
    for part in parts_of(tokens):
        _sum_far(cells[part], distance, grid, results[part])
    return result


def _sum_far(cells: Tensor, distance: int, grid: Grid, result: Tensor) -> None:
    sweeps = sweeps_over(cells, distance, grid)
    outs = [*(_contiguous(cells) for _ in sweeps[1:]), result]
    totals = [cells]
    for sweep in sweeps:
        if not sweep.periodic:  # Σ_{t ≥ 0} A_0(i + t) and Σ_{t ≥ 0} A_0(i − t)
            sweep.ahead_views[0][0].copy_(
                totals[-1].flip(sweep.dim).cumsum(sweep.dim).flip(sweep.dim)
            )
            sweep.behind_views[0][0].copy_(totals[-1].cumsum(sweep.dim))
        totals.append(totals[-1].sum(dim=sweep.dim, keepdim=True))
    for least in range(1, distance + 1):
        inner = None
        for sweep, total, out in zip(sweeps, totals[:-1], outs, strict=True):
            inner = sweep.read(least, out) if inner is None else sweep.step(least, inner, out)
            if sweep.periodic:
                out += _beyond(total, sweep.dim, least)


def _beyond(total: Tensor, dim: int, distance: int) -> Tensor:
    """Sum over the cells of an axis that wraps that are at least `distance` steps away."""
    side = total.shape[dim]
    index = torch.arange(side, device=total.device)
    steps = (index[:, None] - index[None, :]).abs()
    outside = (torch.minimum(steps, side - steps) >= distance).to(total)
    return (outside @ total.movedim(dim, -2)).movedim(-2, dim)
