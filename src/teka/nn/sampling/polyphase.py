"""Downsampling and upsampling that are equivariant to shifts (adaptive polyphase sampling)."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gumbel_softmax, pad

from teka.checks import (
    INTEGER_DTYPES,
    check_flags,
    check_name,
    check_sizes,
    check_stride,
    check_tensor,
    check_tensor_sizes,
    is_integer,
)
from teka.errors import wrong_shape, wrong_value
from teka.nn.local_conv import CONVOLUTION_MODULES, CONVOLUTIONS
from teka.nn.sampling.filters import apply_low_pass, at_least_float32, check_blur
from teka.precision import to_widest_dtype

SELECTIONS = ("norm", "learned", "fixed")
SCORE_CHANNELS = 16
# Norms are summed as integers with this number of bits.
INTEGER_BITS = 62
# Width of the binomial filter before the choice of an offset, with blur="ideal".
SELECTION_BLUR = 5
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


class PolyphaseDownsample(nn.Module):
    """Strided downsampling that keeps the same pixels when the image shifts.

        y[n] = x[s·n + ĉ]

    A layer with an ordinary stride s keeps every s-th pixel, starting at the first one. If the
    image shifts by one pixel, the layer keeps different parts of the image, so its output changes.
    This layer starts at an offset ĉ that moves with the content of the image. It compares the
    subgrids x_c[n] = x[s·n + c] of every s-th pixel, one for each offset c, and keeps one of them:

    - "norm": the subgrid with the largest norm, ĉ = argmax_c ‖x_c‖².
    - "learned": the subgrid with the largest score of a small convolutional network.
    - "fixed": always the first subgrid, as with an ordinary stride. It is equivariant only to
      shifts by multiples of s.

    If the input shifts, the output shifts too. If a shift by τ changes the offset from c to c', the
    output shifts by τ' = (τ + c − c')/s. This is exact on periodic axes whose sides are multiples
    of s. On a bounded grid, content that enters or leaves at the edge can change the choice.

    The subgrids are also called polyphase components.

    Note: Norms are summed as integers, because a floating-point sum depends on its order.
    If several subgrids have the same norm, the layer compares Σ_n e[n]² Σ_t w_t e[n + t], where e
    = Σ x² over the channels and all weights w_t differ. If an input equals its own shift, the
    subgrids are equal up to a roll.

    Gradients go to the chosen pixels. Scores of "learned" are trained with the straight-through
    Gumbel softmax.

    Source: Chaman & Dokmanić 2021 ("norm"); Rojas-Gomez et al. 2022 ("learned"); Zhang 2019
    (blur; with "fixed" it is blur pooling); Michaeli et al. 2023 (blur="ideal"). Proof:
    docs/maths/polyphase.md.

    Args:
        stride: Stride s of each axis, or one number for all axes.
        num_axes: Number of axes of the inputs: 1, 2 or 3.
        select: "norm", "learned" or "fixed".
        channels: Number of channels of the inputs. Required for "learned".
        blur: Low-pass filter before sampling: None, the odd width of a binomial filter, or
            "ideal", which keeps frequencies below half of the new Nyquist frequency.
            "norm" chooses after the filter, "learned" before it.
        periodic: If True, filters wrap around. Otherwise, the grid is padded with zeros.

    >>> import torch
    >>> from teka.nn import PolyphaseDownsample
    >>> picture = torch.randn(1, 3, 8, 8)
    >>> downsample = PolyphaseDownsample(2)
    >>> cells = downsample(picture).flatten().sort().values
    >>> shifted_cells = downsample(picture.roll((5, 3), (2, 3))).flatten().sort().values
    >>> torch.equal(cells, shifted_cells)
    True

    Raises:
        ValueError: An argument is out of range, or the stride does not divide a periodic side.
    """

    def __init__(
        self,
        stride: int | Sequence[int],
        *,
        num_axes: int = 2,
        select: str = "norm",
        channels: int | None = None,
        blur: int | str | None = None,
        periodic: bool = True,
    ) -> None:
        super().__init__()
        check_name("select", select, SELECTIONS)
        check_flags({"periodic": periodic})
        self.stride = check_sampling_stride("stride", stride, num_axes)
        self.select = select
        self.blur = check_blur(blur, periodic)
        self.periodic = periodic
        if (channels is None) == (select == "learned"):
            expected = "the inputs' channels with select='learned', else None"
            raise wrong_value("channels", channels, expected)
        check_sizes({"channels": channels}, or_none=True)
        self.score = None if channels is None else _SubgridScore(channels, num_axes)

    def forward(
        self, inputs: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch channels *coarse"]:
        """Downsample each sample, starting at the offset that the layer chooses."""
        return self.forward_with_offset(inputs)[0]

    def forward_with_offset(
        self,
        inputs: Float[Tensor, "batch channels *sides"],
        offset: Int[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch channels *coarse"], Int[Tensor, "batch"]]:
        """Downsample the inputs, and also return the offset of each sample.

        `PolyphaseUpsample` needs the offsets to return the pixels to their positions.

        Args:
            inputs: Images or other grids, shape (B, C, *sides).
            offset: Offset of each sample, as an index in row-major order. By default, the layer
                chooses it. If the outputs of two branches are added, pass the offset of the first
                branch to the second, so that both keep the same pixels.

        Raises:
            ValueError: The stride does not divide the sides of the inputs.
        """
        self.check_divisible_sizes(inputs)
        # A filter at half of the new Nyquist frequency leaves room for the frequencies that a
        # square creates, so that the norms do not alias either.
        steps = [2 * step if self.blur == "ideal" and step > 1 else step for step in self.stride]
        filtered = apply_low_pass(inputs, self.blur, steps, self.periodic)
        if offset is not None:
            check_tensor("offset", offset, inputs.shape[0], dtypes=INTEGER_DTYPES)
            return take_polyphase_component(filtered, offset, self.stride), offset
        if self.select == "fixed":
            chosen = inputs.new_zeros(inputs.shape[0], dtype=torch.long)
        elif self.score is None:
            chosen = self._offset_by_norm(inputs)
        else:
            # Score the inputs before the filter. After the filter, the components of a small grid
            # differ only by rounding.
            scores = self.score(split_polyphase(inputs, self.stride))
            if self.training:
                choice = gumbel_softmax(scores, hard=True)
                components = split_polyphase(filtered, self.stride)
                return torch.einsum("bk,bk...->b...", choice, components), choice.argmax(1)
            chosen = scores.argmax(1)
        return take_polyphase_component(filtered, chosen, self.stride), chosen

    def _offset_by_norm(self, inputs: Tensor) -> Int[Tensor, "batch"]:
        # After an ideal filter all components have the same norm, so rounding would decide. The
        # same holds after a binomial filter along a side of two cells.
        blur = SELECTION_BLUR if self.blur == "ideal" else self.blur
        steps = [
            step if side > 2 else 1
            for side, step in zip(inputs.shape[2:], self.stride, strict=True)
        ]
        filtered = apply_low_pass(inputs, blur, steps, self.periodic).detach()
        return offset_with_largest_norm(filtered, self.stride)

    def check_divisible_sizes(self, inputs: Tensor) -> None:
        """Check that the inputs have the right number of axes and sides divisible by the stride."""
        check_tensor("inputs", inputs, "batch", "channels", *(("side",) * len(self.stride)))
        if any(side % step for side, step in zip(inputs.shape[2:], self.stride, strict=True)):
            expected = f"sides that are multiples of stride = {self.stride}"
            raise wrong_shape("inputs", inputs.shape, expected)

    def extra_repr(self) -> str:
        return (
            f"stride={self.stride}, select={self.select!r}, blur={self.blur!r}, "
            f"periodic={self.periodic}"
        )


class PolyphaseUpsample(nn.Module):
    """Upsampling that returns pixels to the positions from which `PolyphaseDownsample` took them.

        x[s·n + ĉ] = y[n]

    Here y is the input, s is the stride, and ĉ is the offset that the downsampling chose. All other
    pixels of the output x are 0. If layers between the downsampling and the upsampling are
    equivariant to shifts, the whole model is equivariant to every shift of its input by whole
    pixels.

    Source: Chaman & Dokmanić 2021 (arXiv 2105.04040).

    >>> import torch
    >>> from teka.nn import PolyphaseDownsample, PolyphaseUpsample
    >>> inputs = torch.tensor([[[1.0, 7.0, 2.0, 8.0]]])
    >>> cells, offset = PolyphaseDownsample(2, num_axes=1).forward_with_offset(inputs)
    >>> PolyphaseUpsample(2, num_axes=1)(cells, offset)
    tensor([[[0., 7., 0., 8.]]])

    Args:
        stride: Stride of the `PolyphaseDownsample`.
        num_axes: Number of axes of the inputs: 1, 2 or 3.
        blur: Low-pass filter that fills the zeros, as in `PolyphaseDownsample`, or None.
        periodic: If True, the filter wraps around. Otherwise, the grid is padded with zeros.

    Raises:
        ValueError: An argument is out of range, or the input of a call has the wrong shape.
    """

    def __init__(
        self,
        stride: int | Sequence[int],
        *,
        num_axes: int = 2,
        blur: int | str | None = None,
        periodic: bool = True,
    ) -> None:
        super().__init__()
        self.stride = check_sampling_stride("stride", stride, num_axes)
        self.blur = check_blur(blur, periodic)
        self.periodic = periodic

    def forward(
        self, inputs: Float[Tensor, "batch channels *coarse"], offset: Int[Tensor, "batch"]
    ) -> Float[Tensor, "batch channels *sides"]:
        """Write the pixels of each coarse grid into a fine grid of zeros.

        Args:
            inputs: Coarse grids, shape (B, C, *sides).
            offset: Offset of each sample, as returned by the downsampling layer.

        Raises:
            ValueError: The inputs have another number of axes, or a sample has no offset.
        """
        check_tensor("inputs", inputs, "batch", "channels", *(("side",) * len(self.stride)))
        check_tensor("offset", offset, inputs.shape[0], dtypes=INTEGER_DTYPES)
        cells = put_polyphase_component(inputs, offset, self.stride)
        if self.blur is None:
            return cells
        return math.prod(self.stride) * apply_low_pass(cells, self.blur, self.stride, self.periodic)

    def extra_repr(self) -> str:
        return f"stride={self.stride}, blur={self.blur!r}, periodic={self.periodic}"


class PolyphasePatchEmbedding(nn.Module):
    """Patch embedding whose tokens move with the image when it shifts by any number of pixels.

    An ordinary patch embedding divides the image into patches of p × p pixels, starting at the
    first pixel. Its tokens move with the image only under shifts by multiples of p. In this layer,
    the patches start at an offset ĉ, which `PolyphaseDownsample` chooses from the content of the
    image:

        z[n] = W x[p·n + ĉ + {0, …, p − 1}ⁿ] + b

    The layer embeds the patches at every offset, which takes pⁿ times the work on n axes. All axes
    must be periodic for exact equivariance.

    Source: Rojas-Gomez et al. 2023 (arXiv 2305.16316), adaptive tokenization and patch merging.

    Args:
        in_channels: Number of channels of the inputs.
        dim: Size of a token.
        patch_size: Side p of a patch in cells.
        num_axes: Number of axes of the inputs: 1, 2 or 3.
        select: "norm" or "learned", as in `PolyphaseDownsample`.
        blur: Low-pass filter before the choice, as in `PolyphaseDownsample`.
        periodic: If True, patches wrap around. Otherwise, the grid is padded with zeros.

    >>> import torch
    >>> from teka.nn import PolyphasePatchEmbedding
    >>> embed, picture = PolyphasePatchEmbedding(3, 16, 4), torch.randn(1, 3, 8, 8)
    >>> tokens, moved = embed(picture).flatten(2), embed(picture.roll(1, 3)).flatten(2)
    >>> tuple(tokens.shape), torch.allclose(tokens.mean(2), moved.mean(2), atol=1e-6)
    ((1, 16, 4), True)

    Raises:
        ValueError: An argument is out of range, or `patch_size` does not divide a side.
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        patch_size: int,
        *,
        num_axes: int = 2,
        select: str = "norm",
        blur: int | str | None = None,
        periodic: bool = True,
    ) -> None:
        super().__init__()
        sizes = {"in_channels": in_channels, "dim": dim, "patch_size": patch_size}
        check_sizes(sizes)
        check_name("select", select, ("norm", "learned"))
        self.sampling = PolyphaseDownsample(
            patch_size,
            num_axes=num_axes,
            select=select,
            channels=dim if select == "learned" else None,
            blur=blur,
            periodic=periodic,
        )
        check_tensor_sizes(sizes, in_channels * dim * patch_size**num_axes)
        self.project = CONVOLUTION_MODULES[num_axes](in_channels, dim, patch_size)

    def forward(
        self, inputs: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch dim *coarse"]:
        """Return the embedded patches as a grid of tokens."""
        return self.forward_with_offset(inputs)[0]

    def forward_with_offset(
        self, inputs: Float[Tensor, "batch channels *sides"]
    ) -> tuple[Float[Tensor, "batch dim *coarse"], Int[Tensor, "batch"]]:
        """Embed the patches, and also return the offset of the first patch in each sample.

        `PolyphaseUpsample` accepts these offsets.
        """
        self.sampling.check_divisible_sizes(inputs)
        margins = (0, self.project.kernel_size[0] - 1) * (inputs.ndim - 2)
        mode = "circular" if self.sampling.periodic else "constant"
        return self.sampling.forward_with_offset(self.project(pad(inputs, margins, mode=mode)))


def split_polyphase(
    inputs: Float[Tensor, "batch channels *sides"], stride: Sequence[int]
) -> Float[Tensor, "batch components channels *coarse"]:
    """Split a grid into its polyphase components, the subgrids of every s-th pixel.

    For the stride s, the component at offset c is x_c[n] = x[s·n + c]. The components are in
    row-major order of their offsets.
    """
    num_axes = len(stride)
    shape = [*inputs.shape[:2]]
    for side, step in zip(inputs.shape[2:], stride, strict=True):
        shape += [side // step, step]
    offset_axes = range(3, 3 + 2 * num_axes, 2)
    cell_axes = range(2, 2 + 2 * num_axes, 2)
    components = inputs.reshape(shape).permute(0, *offset_axes, 1, *cell_axes)
    return components.flatten(1, num_axes)


def join_polyphase(components: Tensor, stride: Sequence[int]) -> Tensor:
    """Interleave the components that `split_polyphase` returns, to restore the original grid."""
    num_axes = len(stride)
    components = components.unflatten(1, tuple(stride))
    order = [0, num_axes + 1]
    for axis in range(num_axes):
        order += [num_axes + 2 + axis, 1 + axis]
    sides = [components.shape[num_axes + 2 + axis] * step for axis, step in enumerate(stride)]
    return components.permute(order).reshape(
        len(components), components.shape[num_axes + 1], *sides
    )


def take_polyphase_component(
    inputs: Float[Tensor, "batch channels *sides"],
    offset: Int[Tensor, "batch"],
    stride: Sequence[int],
) -> Float[Tensor, "batch channels *coarse"]:
    """Return every s-th pixel of each sample for the stride s, starting at the sample's offset."""
    components = split_polyphase(inputs, stride)
    # Not components[:, :1]: torch.export of PyTorch 2.6 then restricts the size of the batch.
    first_component = components.narrow(1, 0, 1)
    return components.gather(1, _component_index(offset, first_component)).squeeze(1)


def put_polyphase_component(
    cells: Float[Tensor, "batch channels *coarse"],
    offset: Int[Tensor, "batch"],
    stride: Sequence[int],
) -> Float[Tensor, "batch channels *sides"]:
    """Write coarse grids into fine grids of zeros, at every s-th pixel for the stride s.

    The first pixel of a sample is written at the sample's offset. The function is the transpose
    (adjoint) of `take_polyphase_component`.
    """
    cells = cells.unsqueeze(1)
    zeros = torch.zeros_like(cells).expand(-1, math.prod(stride), *cells.shape[2:])
    return join_polyphase(zeros.scatter(1, _component_index(offset, cells), cells), stride)


def _component_index(offset: Tensor, component: Tensor) -> Tensor:
    return offset.long().view(-1, *(1,) * (component.ndim - 1)).expand(component.shape)


def offset_with_largest_norm(inputs: Tensor, stride: Sequence[int]) -> Int[Tensor, "batch"]:
    """Return the offset of the subgrid that has the largest norm, for each sample.

    The subgrid at an offset consists of every s-th pixel, starting at this offset, for the stride
    s. If a sample shifts, the offset shifts too, so that the same pixels are chosen.
    """
    energy = to_widest_dtype(at_least_float32(inputs).square().sum(1))
    maximum = energy.flatten(1).amax(1).clamp_min(torch.finfo(energy.dtype).tiny)
    energy = energy / maximum.view(-1, *(1,) * len(stride))
    # Compute Σ_t w_t e[n + t] over the whole grid with lags of 1, 2, 4, …, so that all weights
    # differ.
    neighborhood = energy
    weight = 0.5
    for axis, side in enumerate(inputs.shape[2:], 1):
        for power in range(int(side - 1).bit_length()):
            shifted = neighborhood.roll(-(2**power), axis)
            neighborhood = (1 - weight) * neighborhood + weight * shifted
            weight *= GOLDEN_RATIO
    scores = torch.stack([energy, energy.square() * neighborhood], 1)
    scores = split_polyphase(scores, stride).flatten(3)
    # Sums of these integers fit into 64 bits and do not depend on the order of summation.
    unit = 2.0 ** (INTEGER_BITS - math.ceil(math.log2(int(scores.shape[3]))))
    norm, tie_breaker = (scores * unit).round().long().sum(3).unbind(2)
    return tie_breaker.masked_fill(norm < norm.amax(1, keepdim=True), -1).argmax(1)


class _SubgridScore(nn.Module):
    """Convolutional network that scores the polyphase components of an image.

    A component consists of every s-th pixel for the stride s, starting at one of the offsets.
    `PolyphaseDownsample` keeps the component with the largest score.
    """

    def __init__(self, channels: int, num_axes: int) -> None:
        super().__init__()
        check_tensor_sizes({"channels": channels}, channels * SCORE_CHANNELS * 3**num_axes)
        convolution = CONVOLUTION_MODULES[num_axes]
        self.layers = nn.Sequential(
            convolution(channels, SCORE_CHANNELS, 3, padding=1, padding_mode="circular"),
            nn.ReLU(),
            convolution(SCORE_CHANNELS, 1, 1),
        )

    def forward(
        self, components: Float[Tensor, "batch components channels *coarse"]
    ) -> Float[Tensor, "batch components"]:
        return self.layers(components.flatten(0, 1)).flatten(1).mean(1).view(components.shape[:2])


def check_sampling_stride(
    argument: str, steps: int | Sequence[int], num_axes: int
) -> tuple[int, ...]:
    """Check the stride of a sampling layer on 1 to 3 axes, and return one integer for each axis."""
    if not is_integer(num_axes) or num_axes not in CONVOLUTIONS:
        raise wrong_value("num_axes", num_axes, "1, 2 or 3")
    return check_stride(steps, num_axes, argument)
