"""Downsampling and upsampling by attention, and alignment of shifted images to whole pixels."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import Parameter

from teka.checks import INTEGER_DTYPES, check_tensor
from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn.attention import Attention
from teka.nn.options import AttentionOptions
from teka.nn.sampling.filters import interpolation_matrix, multiply_along_axis
from teka.nn.sampling.polyphase import (
    PolyphaseDownsample,
    check_sampling_stride,
    offset_with_largest_norm,
    take_polyphase_component,
)
from teka.precision import without_autocast


class AttentionDownsample(nn.Module):
    """Downsampling by cross-attention: every s-th pixel of an image attends to all of its pixels.

    The queries q are every s-th pixel of the image x, projected to the channels of the output. They
    start at the offset ĉ that `PolyphaseDownsample` chooses, so that they move with the content.
    The output is

        z[n] = q[n] + Attention(norm q → norm x)[n],   q[n] = W x[s·n + ĉ].

    Queries keep their positions in the image, so that attention weights depend on true distances.
    The layer is therefore equivariant to the same shifts as `PolyphaseDownsample`.

    Source: the slides of Horn et al., whose general operator has queries of another size than its
    input.

    Args:
        dim: Number of channels of the inputs.
        coarse_dim: Number of channels of the outputs.
        heads: Number of heads.
        sampling: Layer that chooses the pixels that become queries.
        options: Options of the attention, `AttentionOptions()` by default.

    >>> import torch
    >>> from teka.nn import AttentionDownsample, AttentionUpsample, PolyphaseDownsample
    >>> down = AttentionDownsample(4, 8, 2, sampling=PolyphaseDownsample(2))
    >>> up = AttentionUpsample(8, 4, 2, stride=2)
    >>> picture = torch.randn(1, 4, 6, 8)
    >>> moved = up(*down(picture.roll((1, 3), (2, 3))))
    >>> torch.allclose(moved, up(*down(picture)).roll((1, 3), (2, 3)), atol=1e-5)
    True

    Raises:
        ValueError: An argument is out of range, or the input of a call has the wrong shape.
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
        self.attend = _CrossGridAttention(
            coarse_dim, heads, dim, sampling.stride, sampling.periodic, options
        )

    def forward(
        self, cells: Float[Tensor, "batch dim *sides"]
    ) -> tuple[Float[Tensor, "batch coarse_dim *coarse"], Int[Tensor, "batch"]]:
        """Return the downsampled grid, and the offset of each sample.

        Raises:
            ValueError: The inputs have another number of axes or channels.
        """
        sides = ("side",) * len(self.sampling.stride)
        check_tensor("cells", cells, "batch", self.query.in_features, *sides)
        sampled, offset = self.sampling.forward_with_offset(cells)
        query = self.query(sampled.movedim(1, -1)).movedim(-1, 1)
        return self.attend(query, cells, offset), offset


class AttentionUpsample(nn.Module):
    """Upsampling by cross-attention: every pixel of a fine grid attends to a coarse grid.

    The queries f are the pixels of the fine grid, for example from a skip connection. The keys and
    values z are the pixels of the coarse grid. They are at the positions from which
    `AttentionDownsample` took them. The output is

        x[n] = f[n] + Attention(norm f → norm z)[n].

    >>> import torch, teka
    >>> up = teka.nn.AttentionUpsample(8, 4, 2, stride=(2, 3))
    >>> coarse, offset = torch.randn(1, 8, 5, 5), torch.tensor([0])
    >>> up(coarse, offset).shape
    torch.Size([1, 4, 10, 15])
    >>> up(coarse, offset, fine=torch.randn(1, 4, 10, 15)).shape
    torch.Size([1, 4, 10, 15])

    Args:
        dim: Number of channels of the coarse grid.
        fine_dim: Number of channels of the fine grid.
        heads: Number of heads.
        stride: Stride s of each axis, or one number for all axes.
        num_axes: Number of axes of the inputs: 1, 2 or 3.
        periodic: If True, opposite edges meet.
        options: Options of the attention, `AttentionOptions()` by default.

    Raises:
        ValueError: An argument is out of range, or an input of a call has the wrong shape.
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
        self.stride = check_sampling_stride("stride", stride, num_axes)
        self.query = Parameter(torch.randn(fine_dim))
        self.attend = _CrossGridAttention(fine_dim, heads, dim, self.stride, periodic, options)

    def forward(
        self,
        inputs: Float[Tensor, "batch dim *coarse"],
        offset: Int[Tensor, "batch"],
        fine: Float[Tensor, "batch fine_dim *sides"] | None = None,
    ) -> Float[Tensor, "batch fine_dim *sides"]:
        """Return the fine grid after each of its pixels has attended to the coarse grid.

        Args:
            inputs: Pixels of the coarse grid.
            offset: Offset of each sample, from `AttentionDownsample`.
            fine: Pixels f of the fine grid before the downsampling. By default, all are the same
                learned vector.

        Raises:
            ValueError: The shapes do not fit, or an offset is not below the product of the strides.
        """
        sides = ("side",) * len(self.stride)
        check_tensor("inputs", inputs, "batch", self.attend.attention.context_dim, *sides)
        check_tensor("offset", offset, inputs.shape[0], dtypes=INTEGER_DTYPES)
        fine_sides = [side * step for side, step in zip(inputs.shape[2:], self.stride, strict=True)]
        if fine is None:
            query = self.query.to(inputs.dtype).view(1, -1, *(1,) * len(fine_sides))
            fine = query.expand(inputs.shape[0], -1, *fine_sides)
        check_tensor("fine", fine, inputs.shape[0], len(self.query), *fine_sides)
        return self.attend(fine, inputs, offset)


class _CrossGridAttention(nn.Module):
    """Pre-norm cross-attention between a grid and its subgrid of every s-th pixel.

    Either the pixels of the subgrid attend to those of the grid, or the other way around. The
    offset of the subgrid may differ between samples.
    """

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
        self.stride = stride
        self.periodic = periodic
        self.norm = nn.LayerNorm(dim)
        self.context_norm = nn.LayerNorm(context_dim)
        self.attention = Attention(
            dim, heads, options, context_dim=context_dim, num_axes=len(stride)
        )

    def forward(
        self,
        query_cells: Float[Tensor, "batch dim *sides"],
        key_cells: Float[Tensor, "batch context_dim *other_sides"],
        offset: Int[Tensor, "batch"],
    ) -> Float[Tensor, "batch dim *sides"]:
        query_sides, key_sides = query_cells.shape[2:], key_cells.shape[2:]
        query = self.norm(query_cells.flatten(2).mT)
        context = self.context_norm(key_cells.flatten(2).mT)
        outputs = torch.zeros_like(query)
        for index in offset.unique().tolist():
            samples = (offset == index).nonzero().flatten()
            if query_sides.numel() > key_sides.numel():
                query_grid = Grid(query_sides, periodic=self.periodic)
                key_grid = self._coarse_grid(key_sides, index)
            else:
                query_grid = self._coarse_grid(query_sides, index)
                key_grid = Grid(key_sides, periodic=self.periodic)
            attended = self.attention(
                query[samples], query_grid, context=context[samples], context_grid=key_grid
            )
            outputs = outputs.index_copy(0, samples, attended)
        return query_cells + outputs.mT.unflatten(2, query_sides)

    def _coarse_grid(self, sides: torch.Size, index: int) -> Grid:
        num_components = math.prod(self.stride)
        if not 0 <= index < num_components:
            raise wrong_value("offset", index, f"from 0 to {num_components - 1}")
        spacing = [float(step) for step in self.stride]
        offset = torch.unravel_index(torch.tensor(index), self.stride)
        return Grid(sides, spacing, self.periodic, [float(start) for start in offset])


class SubpixelAlignment(nn.Module):
    """Alignment of images, so that shifts by a fraction of a pixel become shifts by whole pixels.

    The layer interpolates an image to a grid k = `factor` times as fine, and keeps every k-th
    pixel, starting at an offset that depends on the content. If a model that is invariant to shifts
    by whole pixels follows, it becomes invariant to shifts by multiples of 1/k pixel too. All axes
    must be periodic. With the interpolated image x̂ and the offset ĉ, the output is

        z[n] = x̂[n + ĉ/k],   ĉ = argmax_c Σ_n (x̂[n + c/k] − mean)⁴.

    Note: The choice uses fourth powers because the sums of squares are equal for all offsets, by
    Parseval's theorem.

    Source: the choice of Chaman & Dokmanić 2021 on an interpolated grid. Proof:
    docs/maths/polyphase.md.

    Args:
        factor: Factor k of each axis, or one number for all axes.
        num_axes: Number of axes of the inputs: 1, 2 or 3.

    >>> import torch
    >>> from teka.audit import translate
    >>> from teka.nn.sampling import SubpixelAlignment
    >>> align, picture = SubpixelAlignment(2), torch.rand(1, 1, 7, 9)
    >>> moved = align(translate(picture, (0.5, -1.5), mode="fourier"))
    >>> torch.allclose(align(picture).pow(3).sum(), moved.pow(3).sum(), rtol=1e-4)
    True

    Raises:
        ValueError: `factor` is out of range, or the input of a call has the wrong shape.
    """

    def __init__(self, factor: int = 2, *, num_axes: int = 2) -> None:
        super().__init__()
        self.factor = check_sampling_stride("factor", factor, num_axes)

    def forward(
        self, inputs: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch channels *sides"]:
        """Shift each image by a fraction of a pixel, which depends on the content of the image."""
        check_tensor("inputs", inputs, "batch", "channels", *(("side",) * len(self.factor)))
        fine = inputs
        # In half precision, rounding would decide which fraction is chosen.
        with without_autocast(inputs.device.type):
            for axis, factor in enumerate(self.factor, 2):
                matrix = interpolation_matrix(inputs.shape[axis], factor).to(inputs)
                fine = multiply_along_axis(fine, matrix, axis)
        deviation = fine - fine.mean(dim=tuple(range(2, fine.ndim)), keepdim=True)
        offset = offset_with_largest_norm(deviation.detach().square(), self.factor)
        return take_polyphase_component(fine, offset, self.factor)
