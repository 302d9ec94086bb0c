"""Layers that give a grid other cells: coarser and finer ones by attention, and cells moved by a fraction of one."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import Parameter

from teka._compat import without_autocast
from teka.checks import WHOLE, check_tensor
from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn.alias_free import finer, map_axis
from teka.nn.attention import Attention
from teka.nn.options import AttentionOptions
from teka.nn.polyphase import PolyphaseDownsample, check_axes, largest_coset, take_coset


class AttentionDownsample(nn.Module):
    """z[n] = q[n] + Attention(norm q → norm x)[n], q[n] = W x[s·n + ĉ]: every s-th cell asks all fine ones.

    Coarse cells stand where they were taken from, with ĉ the offset that `PolyphaseDownsample` chooses, and the
    relative kernel sees true distances: what is exact there is exact here. Source: the general operator of the slides
    of Horn et al., whose queries are of another size than its input.

    Args:
        dim: Channels of the fine cells.
        coarse_dim: Channels of the coarse ones.
        heads: Number of heads.
        sampling: What chooses the cells that ask.
        options: How the heads attend, `AttentionOptions()` by default.

    >>> import torch
    >>> from teka.nn import AttentionDownsample, AttentionUpsample, PolyphaseDownsample
    >>> down, up = AttentionDownsample(4, 8, 2, sampling=PolyphaseDownsample(2)), AttentionUpsample(8, 4, 2, stride=2)
    >>> picture = torch.randn(1, 4, 6, 8)
    >>> moved = up(*down(picture.roll((1, 3), (2, 3))))
    >>> torch.allclose(moved, up(*down(picture)).roll((1, 3), (2, 3)), atol=1e-5)
    True
    """

    def __init__(
        self,
        dim: int,
        coarse_dim: int,
        heads: int,
        *,
        sampling: PolyphaseDownsample,
        options: AttentionOptions | None = None,
    ) -> None:
        super().__init__()
        self.sampling = sampling
        self.query = nn.Linear(dim, coarse_dim)
        self.attend = _Between(coarse_dim, heads, dim, sampling.stride, sampling.periodic, options)

    def forward(
        self, cells: Float[Tensor, "batch dim *sides"]
    ) -> tuple[Float[Tensor, "batch coarse_dim *coarse"], Int[Tensor, "batch"]]:
        """The coarse cells, and the number of the offset at which they are; a ValueError for others' shapes."""
        check_tensor(
            "cells",
            cells,
            "batch",
            self.query.in_features,
            *(("side",) * len(self.sampling.stride)),
        )
        taken, offset = self.sampling.sample(cells)
        asking = self.query(taken.movedim(1, -1)).movedim(-1, 1)
        return self.attend(asking, cells, offset), offset


class AttentionUpsample(nn.Module):
    """x[n] = f[n] + Attention(norm f → norm z)[n]: every fine cell asks the coarse ones, which stand at s·n + ĉ.

    >>> import torch, teka
    >>> up = teka.nn.AttentionUpsample(8, 4, 2, stride=(2, 3))
    >>> coarse, offset = torch.randn(1, 8, 5, 5), torch.tensor([0])
    >>> up(coarse, offset).shape, up(coarse, offset, fine=torch.randn(1, 4, 10, 15)).shape
    (torch.Size([1, 4, 10, 15]), torch.Size([1, 4, 10, 15]))

    Args:
        dim: Channels of the coarse cells.
        fine_dim: Channels of the fine ones.
        heads: Number of heads.
        stride: s of each axis, or one number for all.
        num_axes: Axes of the inputs, 1, 2 or 3.
        periodic: Whether edges meet.
        options: How the heads attend, `AttentionOptions()` by default.
    """

    def __init__(
        self,
        dim: int,
        fine_dim: int,
        heads: int,
        *,
        stride: int | Sequence[int],
        num_axes: int = 2,
        periodic: bool = True,
        options: AttentionOptions | None = None,
    ) -> None:
        super().__init__()
        self.stride = check_axes("stride", stride, num_axes)
        self.query = Parameter(
            torch.randn(fine_dim)
        )  # of every fine cell where nothing is known of it
        self.attend = _Between(fine_dim, heads, dim, self.stride, periodic, options)

    def forward(
        self,
        inputs: Float[Tensor, "batch dim *coarse"],
        offset: Int[Tensor, "batch"],
        fine: Float[Tensor, "batch fine_dim *sides"] | None = None,
    ) -> Float[Tensor, "batch fine_dim *sides"]:
        """The fine cells, from those that went into the halving, f, or from a learned vector in place of each.

        A ValueError for shapes that do not fit, or an offset that is not below the product of the strides.
        """
        check_tensor(
            "inputs",
            inputs,
            "batch",
            self.attend.attention.context_dim,
            *(("side",) * len(self.stride)),
        )
        check_tensor("offset", offset, len(inputs), dtypes=WHOLE)
        sides = [side * step for side, step in zip(inputs.shape[2:], self.stride, strict=True)]
        if fine is None:
            query = self.query.to(inputs.dtype).view(1, -1, *(1,) * len(sides))
            fine = query.expand(len(inputs), -1, *sides)
        check_tensor("fine", fine, len(inputs), len(self.query), *sides)
        return self.attend(fine, inputs, offset)


class _Between(nn.Module):
    """q + Attention(norm q → norm x) from a grid to another, of which the coarse one is at each sample's own offset."""

    def __init__(
        self,
        dim: int,
        heads: int,
        context_dim: int,
        stride: tuple[int, ...],
        periodic: bool,
        options: AttentionOptions | None,
    ) -> None:
        super().__init__()
        self.stride, self.periodic = stride, periodic
        self.norm, self.context_norm = nn.LayerNorm(dim), nn.LayerNorm(context_dim)
        given: dict[str, Any] = {} if options is None else dict(vars(options))
        given.update(context_dim=context_dim, num_axes=len(stride))
        self.attention = Attention(dim, heads, **given)

    def forward(
        self,
        asking: Float[Tensor, "batch dim *sides"],
        asked: Float[Tensor, "batch context_dim *other_sides"],
        offset: Int[Tensor, "batch"],
    ) -> Float[Tensor, "batch dim *sides"]:
        query, context = (one.flatten(2).mT for one in (asking, asked))
        query, context, outputs = (
            self.norm(query),
            self.context_norm(context),
            torch.zeros_like(query),
        )
        for number in offset.unique().tolist():
            if not 0 <= number < math.prod(self.stride):
                raise wrong_value("offset", number, f"from 0 to {math.prod(self.stride) - 1}")
            samples = (offset == number).nonzero().flatten()
            place = [float(one) for one in torch.unravel_index(torch.tensor(number), self.stride)]
            grids = [
                Grid(one.shape[2:], periodic=self.periodic)
                if one.shape[2:].numel() > other.shape[2:].numel()
                else Grid(
                    one.shape[2:], [float(step) for step in self.stride], self.periodic, place
                )
                for one, other in ((asking, asked), (asked, asking))
            ]
            attended = self.attention(
                query[samples], grids[0], context=context[samples], context_grid=grids[1]
            )
            outputs = outputs.index_copy(0, samples, attended)
        return asking + outputs.mT.unflatten(2, asking.shape[2:])


class SubpixelAlignment(nn.Module):
    """z[n] = x̂[n + ĉ/k]: the input at one of kⁿ fractions of a cell, which its content chooses.

    x̂ interpolates what x has below its Nyquist frequency. On a grid k times as fine a shift by τ/k is a whole one, and
    permutes and rolls the cosets x̂[n + c/k]. So with ĉ = argmax_c Σ_n (x̂[n + c/k] − mean)⁴ the z of a moved input is z
    moved by whole cells, and what whole shifts do not change after it no shift by multiples of 1/k changes either.
    (Squares would not do: by Parseval's theorem their sums are all the same.) Periodic axes only.

    Source: the choice of Chaman & Dokmanić 2021 on an interpolated grid; proof: docs/maths/polyphase.md.

    Args:
        factor: k of each axis, or one number for all.
        num_axes: Axes of the inputs, 1, 2 or 3.

    >>> import torch
    >>> from teka.audit import translate
    >>> from teka.nn.resample import SubpixelAlignment
    >>> align, picture = SubpixelAlignment(2), torch.rand(1, 1, 7, 9)
    >>> moved = align(translate(picture, (0.5, -1.5), mode="fourier"))
    >>> torch.allclose(align(picture).pow(3).sum(), moved.pow(3).sum(), rtol=1e-4)
    True
    """

    def __init__(self, factor: int = 2, *, num_axes: int = 2) -> None:
        super().__init__()
        self.factor = check_axes("factor", factor, num_axes)

    def forward(
        self, inputs: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch channels *sides"]:
        """The inputs, aligned; a ValueError for another number of axes."""
        check_tensor("inputs", inputs, "batch", "channels", *(("side",) * len(self.factor)))
        fine = inputs
        with without_autocast(inputs.device.type):  # few digits would choose at random
            for axis, factor in enumerate(self.factor, 2):
                fine = map_axis(fine, finer(inputs.shape[axis], factor).to(inputs), axis)
        away = fine - fine.mean(dim=tuple(range(2, fine.ndim)), keepdim=True)
        return take_coset(fine, largest_coset(away.detach().square(), self.factor), self.factor)
