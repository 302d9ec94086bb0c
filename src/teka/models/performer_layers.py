"""Layers of a Performer other than its transformer blocks.

These are the stem (the first layers), layers that downsample and upsample, and the head that
predicts a class for every pixel.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from teka.errors import wrong_value
from teka.models.performer_config import HALVING_STEMS, PerformerConfig, StageSizes
from teka.nn import (
    AttentionDownsample,
    AttentionOptions,
    AttentionUpsample,
    PolyphaseDownsample,
    PolyphasePatchEmbedding,
    PolyphaseUpsample,
)
from teka.nn.local_conv import CONVOLUTION_MODULES
from teka.nn.sampling import OversampledGELU

BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


@dataclass(frozen=True)
class ResamplingFactory:
    """Factory of the layers of a model that downsample or upsample a grid by a factor of 2.

    Attributes:
        num_axes: Number of axes of the grid.
        periodic: True if opposite edges of the grid meet.
        select: Rule that chooses the pixels to keep, as in `teka.nn.PolyphaseDownsample`.
        blur: Low-pass filter before a downsampling, as in `teka.nn.PolyphaseDownsample`.
        attention: Options of the attention between two grids, or None for convolutions.
    """

    num_axes: int
    periodic: bool
    select: str
    blur: int | str | None
    attention: AttentionOptions | None

    @classmethod
    def from_config(cls, config: PerformerConfig, num_axes: int) -> "ResamplingFactory":
        """Create the factory with the options of a model."""
        select = "fixed" if config.stem_layer == "strided" else config.select
        attention = None
        if config.resampling == "attention":
            attention = replace(config.attention_options(), value_convolution=None)
        return cls(num_axes, config.periodic, select, config.blur, attention)

    def make_stage_downsampling(
        self, before: StageSizes, after: StageSizes
    ) -> "PatchMerging | AttentionDownsample":
        """Create the layer between two stages, which downsamples the grid by 2.

        The layer also projects tokens from the size of the first stage, `before.dim`, to that of
        the second stage, `after.dim`.
        """
        if self.attention is None:
            return PatchMerging(before.dim, after.dim, self)
        return AttentionDownsample(
            before.dim,
            after.dim,
            after.heads,
            sampling=self.make_downsampling(before.dim),
            options=self.attention,
        )

    def make_upsampling(
        self, coarse_dim: int, dim: int, dim_head: int
    ) -> "SkipUpsample | AttentionUpsample":
        """Create a layer that upsamples a grid by 2, to undo one downsampling layer.

        The inputs of the new layer are the coarse grid, the offset that the downsampling layer has
        chosen, and the input of the downsampling layer (a skip connection).
        """
        if self.attention is None:
            return SkipUpsample(coarse_dim, dim, self)
        layer = AttentionUpsample(
            coarse_dim,
            dim,
            max(1, dim // dim_head),
            stride=2,
            num_axes=self.num_axes,
            periodic=self.periodic,
            options=replace(self.attention, dim_head=min(dim, dim_head)),
        )
        # The input of the downsampling layer replaces the learned query.
        layer.query.requires_grad_(False)
        return layer

    def make_patch_embedding(
        self, in_channels: int, dim: int, patch_size: int
    ) -> PolyphasePatchEmbedding:
        """Create a patch embedding that is equivariant to shifts of the image by whole pixels.

        The first patch starts at an offset that depends on the content of the image.
        """
        return PolyphasePatchEmbedding(
            in_channels,
            dim,
            patch_size,
            num_axes=self.num_axes,
            select=self.select,
            blur=self.blur,
            periodic=self.periodic,
        )

    def make_downsampling(self, channels: int) -> PolyphaseDownsample:
        """Create a layer that keeps every second pixel along each axis of a grid."""
        return PolyphaseDownsample(
            2,
            num_axes=self.num_axes,
            select=self.select,
            channels=channels if self.select == "learned" else None,
            blur=self.blur,
            periodic=self.periodic,
        )

    def make_convolution_block(self, in_channels: int, width: int) -> nn.Sequential:
        """Create a convolution of kernel size 3, followed by batch normalization and a GELU."""
        mode = "circular" if self.periodic else "zeros"
        convolution = CONVOLUTION_MODULES[self.num_axes](
            in_channels, width, 3, padding=1, padding_mode=mode, bias=False
        )
        return nn.Sequential(convolution, BATCH_NORM[self.num_axes](width), self.make_activation())

    def make_activation(self) -> nn.Module:
        """Create a GELU, or an anti-aliased GELU if downsampling uses an ideal low-pass filter."""
        return OversampledGELU() if self.blur == "ideal" else nn.GELU()


class ResidualConvolutions(nn.Module):
    """Residual block of two convolutions with batch normalization.

    Source: He et al. 2016 (the basic block).
    """

    def __init__(self, width: int, resampling: ResamplingFactory) -> None:
        super().__init__()
        first = resampling.make_convolution_block(width, width)
        second = resampling.make_convolution_block(width, width)
        self.convolutions = nn.Sequential(first, second[:2])
        self.activation = resampling.make_activation()

    def forward(
        self, cells: Float[Tensor, "batch width *sides"]
    ) -> Float[Tensor, "batch width *sides"]:
        return self.activation(cells + self.convolutions(cells))


class ConvolutionalStem(nn.Module):
    """Convolutional stem that turns an image into a grid of tokens by repeated downsampling.

    Images of shape (B, C, *S) become tokens of shape (B, dim, *S / p), where the patch size p is a
    power of 2. The first convolution has stride 1 and dim / p channels. After each downsampling by
    2, a convolution doubles the number of channels. Residual blocks may follow each convolution.
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        patch_size: int,
        resampling: ResamplingFactory,
        depths: int | Sequence[int] = 0,
    ) -> None:
        super().__init__()
        num_halvings = patch_size.bit_length() - 1
        if 2**num_halvings != patch_size:
            expected = "a power of 2 with stem='polyphase' or 'strided'"
            raise wrong_value("patch_size", patch_size, expected)
        self.widths = [max(1, dim >> level) for level in range(num_halvings, -1, -1)]
        num_levels = len(self.widths)
        level_depths = depths if isinstance(depths, Sequence) else (depths,) * num_levels
        if len(level_depths) != num_levels:
            expected = f"one number, or one for each of {num_levels} levels"
            raise wrong_value("stem_depth", depths, expected)
        self.convolutions = nn.ModuleList()
        channels = in_channels
        for width, depth in zip(self.widths, level_depths, strict=True):
            level = resampling.make_convolution_block(channels, width)
            level.extend(ResidualConvolutions(width, resampling) for _ in range(depth))
            self.convolutions.append(level)
            channels = width
        self.samplings = nn.ModuleList(map(resampling.make_downsampling, self.widths[:-1]))

    def forward(
        self, images: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch dim *coarse"]:
        return self.encode(images)[0]

    def encode(
        self, images: Float[Tensor, "batch channels *sides"]
    ) -> tuple[Float[Tensor, "batch dim *coarse"], list[tuple[Tensor, Tensor]]]:
        """Return the grid of tokens, and the input of each downsampling layer.

        Each input comes with the offset of the pixels that the downsampling layer kept. A dense
        head uses the inputs and the offsets to restore the resolution of the image.
        """
        levels = []
        cells = images
        for convolution, sampling in zip(self.convolutions, self.samplings, strict=False):
            assert isinstance(sampling, PolyphaseDownsample)
            fine = convolution(cells)
            cells, offset = sampling.forward_with_offset(fine)
            levels.append((fine, offset))
        return self.convolutions[-1](cells), levels


class PatchMerging(nn.Module):
    """Downsampling by 2 that projects each block of neighboring tokens to one token.

    A block has 2 tokens along each axis. Layer normalization precedes the projection. The offset of
    the first block depends on the content, so that the layer is equivariant to shifts.
    """

    def __init__(self, dim: int, next_dim: int, resampling: ResamplingFactory) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.patches = resampling.make_patch_embedding(dim, next_dim, 2)

    def forward(
        self, cells: Float[Tensor, "batch dim *sides"]
    ) -> tuple[Float[Tensor, "batch next_dim *coarse"], Int[Tensor, "batch"]]:
        """Return the downsampled grid, and the offset of the first block in each sample."""
        return self.patches.forward_with_offset(self.norm(cells.movedim(1, -1)).movedim(-1, 1))


class SkipUpsample(nn.Module):
    """Upsampling by 2 with a skip connection, followed by a convolution.

    The upsampled grid is concatenated with the input of the matching downsampling layer, as in a
    U-Net.
    """

    def __init__(self, coarse_dim: int, dim: int, resampling: ResamplingFactory) -> None:
        super().__init__()
        self.upsampling = PolyphaseUpsample(
            2, num_axes=resampling.num_axes, periodic=resampling.periodic
        )
        self.convolution = resampling.make_convolution_block(coarse_dim + dim, dim)

    def forward(
        self,
        cells: Float[Tensor, "batch coarse_dim *coarse"],
        offset: Int[Tensor, "batch"],
        fine: Float[Tensor, "batch dim *sides"],
    ) -> Float[Tensor, "batch dim *sides"]:
        return self.convolution(torch.cat([self.upsampling(cells, offset), fine], dim=1))


class DenseHead(nn.Module):
    """Head that predicts class logits for every pixel, for example for segmentation.

    One upsampling layer for each downsampling layer of the model restores the resolution of the
    image. Then a projection turns the channels of each pixel into logits.
    """

    def __init__(
        self, widths: Sequence[int], num_classes: int, resampling: ResamplingFactory, dim_head: int
    ) -> None:
        super().__init__()
        self.widenings = nn.ModuleList(
            resampling.make_upsampling(coarse, fine, dim_head)
            for coarse, fine in itertools.pairwise(reversed(widths))
        )
        self.logits = CONVOLUTION_MODULES[resampling.num_axes](widths[0], num_classes, 1)

    def forward(
        self, cells: Float[Tensor, "batch dim *coarse"], levels: Sequence[tuple[Tensor, Tensor]]
    ) -> Float[Tensor, "batch classes *sides"]:
        """Return the class logits of every pixel.

        Args:
            cells: Grid of tokens after the last stage.
            levels: For each downsampling layer of the model, its input and the offset of the pixels
                that it has kept. The finest grid comes first.
        """
        for upsample, (fine, offset) in zip(self.widenings, reversed(levels), strict=True):
            cells = upsample(cells, offset, fine)
        return self.logits(cells)


def make_stem(config: PerformerConfig, dim: int, resampling: ResamplingFactory) -> nn.Module:
    """Create the stem of a model, which turns an image into a grid of tokens of size `dim`."""
    stem, in_channels, patch_size = config.stem_layer, config.in_channels, config.patch_size
    if isinstance(stem, nn.Module):
        return stem
    convolution = CONVOLUTION_MODULES[resampling.num_axes]
    if stem == "patch":
        return convolution(in_channels, dim, patch_size, patch_size)
    if stem == "polyphase_patch":
        return resampling.make_patch_embedding(in_channels, dim, patch_size)
    if stem in HALVING_STEMS:
        return ConvolutionalStem(in_channels, dim, patch_size, resampling, config.stem_depth)
    hidden = max(1, dim // 2)
    # Pad a bounded image with zeros before the first convolution only. Zeros after its bias would
    # make content at the edge look different from the same content inside.
    first_padding, second_padding = (1, 1) if config.periodic else (2, 0)
    mode = "circular" if config.periodic else "zeros"
    return nn.Sequential(
        convolution(in_channels, hidden, 3, padding=first_padding, padding_mode=mode),
        nn.GELU(),
        convolution(
            hidden, dim, patch_size + 2, patch_size, padding=second_padding, padding_mode=mode
        ),
    )
