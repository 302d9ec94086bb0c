"""From images to tokens, between stages of tokens, and from tokens back to every pixel."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from teka.checks import LARGEST, MOST_BLOCKS, check_name, check_sizes
from teka.errors import wrong_value
from teka.nn import (
    AttentionDownsample,
    AttentionOptions,
    AttentionUpsample,
    PolyphaseDownsample,
    PolyphasePatchEmbedding,
    PolyphaseUpsample,
)
from teka.nn.additions import CONVOLUTION_MODULES
from teka.nn.alias_free import OversampledGELU, check_blur

RESAMPLINGS = ("convolution", "attention")
STEMS = ("patch", "convolution", "polyphase_patch", "polyphase", "strided")
BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


@dataclass(frozen=True)
class Sampling:
    """How a model halves its grids, by the options of `teka.nn.PolyphaseDownsample`."""

    num_axes: int
    periodic: bool
    select: str = "norm"
    blur: int | str | None = None
    attention: AttentionOptions | None = (
        None  # of cells between the grids of two stages, None for convolutions
    )

    def merge(self, before: "Stage", after: "Stage") -> "Merge | AttentionDownsample":
        """What makes the cells of a stage of those of the one before, and says which coset they are."""
        if self.attention is None:
            return Merge(before.dim, after.dim, self)
        return AttentionDownsample(
            before.dim,
            after.dim,
            after.heads,
            sampling=self.halve(before.dim),
            options=self.attention,
        )

    def widen(self, coarse_dim: int, dim: int, dim_head: int) -> "Widen | AttentionUpsample":
        """What makes fine cells of coarse ones, of the number of the coset that these are, and of what was there."""
        if self.attention is None:
            return Widen(coarse_dim, dim, self)
        upsample = AttentionUpsample(
            coarse_dim,
            dim,
            max(1, dim // dim_head),
            stride=2,
            num_axes=self.num_axes,
            periodic=self.periodic,
            options=replace(self.attention, dim_head=min(dim, dim_head)),
        )
        upsample.query.requires_grad_(False)  # what was there asks in its place
        return upsample

    def patches(self, in_channels: int, dim: int, patch_size: int) -> PolyphasePatchEmbedding:
        """Tokens of patches from an offset that the content chooses."""
        options: dict[str, Any] = {
            "select": self.select,
            "blur": self.blur,
            "periodic": self.periodic,
        }
        return PolyphasePatchEmbedding(
            in_channels, dim, patch_size, num_axes=self.num_axes, **options
        )

    def halve(self, channels: int) -> PolyphaseDownsample:
        """A layer that keeps every second cell of each axis."""
        return PolyphaseDownsample(
            2,
            num_axes=self.num_axes,
            select=self.select,
            channels=channels if self.select == "learned" else None,
            blur=self.blur,
            periodic=self.periodic,
        )

    def convolution(self, in_channels: int, width: int) -> nn.Sequential:
        """3 cells a side around every cell, batch normalisation and GELU."""
        mode = "circular" if self.periodic else "zeros"
        mapped = CONVOLUTION_MODULES[self.num_axes](
            in_channels, width, 3, padding=1, padding_mode=mode, bias=False
        )
        return nn.Sequential(mapped, BATCH_NORM[self.num_axes](width), self.activation())

    def activation(self) -> nn.Module:
        """GELU, which before an ideal low pass makes no frequencies that would fold down."""
        return OversampledGELU() if self.blur == "ideal" else nn.GELU()


class ResidualConvolutions(nn.Module):
    """x + two convolutions of x, then GELU. Source: He et al. 2016 (the basic block)."""

    def __init__(self, width: int, sampling: Sampling) -> None:
        super().__init__()
        first, second = (sampling.convolution(width, width) for _ in range(2))
        self.convolutions, self.activation = nn.Sequential(first, second[:2]), sampling.activation()

    def forward(
        self, cells: Float[Tensor, "batch width *sides"]
    ) -> Float[Tensor, "batch width *sides"]:
        return self.activation(cells + self.convolutions(cells))


class SampledStem(nn.Module):
    """Convolutions, the first on every pixel, and a halving after each but the last: (B, C, *S) to (B, dim, *S / p).

    The first has dim / p channels, with p = 2^halvings the patch size, and every halving doubles them. After each come
    `depths` residual blocks, one number for all of these halvings + 1 levels or one for each, the finest first.
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        patch_size: int,
        sampling: Sampling,
        depths: int | tuple[int, ...] = 0,
    ) -> None:
        super().__init__()
        halvings = patch_size.bit_length() - 1
        if 2**halvings != patch_size:
            raise wrong_value(
                "patch_size", patch_size, "a power of 2 with stem='polyphase' or 'strided'"
            )
        self.widths = [max(1, dim >> step) for step in range(halvings, -1, -1)]
        self.convolutions = nn.ModuleList(
            map(sampling.convolution, [in_channels, *self.widths], self.widths)
        )
        given = depths if isinstance(depths, Sequence) else (depths,) * len(self.widths)
        if len(given) != len(self.widths):
            raise wrong_value(
                "stem_depth", depths, f"one number, or one for each of {len(self.widths)} levels"
            )
        for width, count, convolution in zip(self.widths, given, self.convolutions, strict=True):
            assert isinstance(convolution, nn.Sequential)
            convolution.extend(ResidualConvolutions(width, sampling) for _ in range(count))
        self.samplings = nn.ModuleList(map(sampling.halve, self.widths[:-1]))

    def forward(
        self, images: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch dim *coarse"]:
        return self.encode(images)[0]

    def encode(
        self, images: Float[Tensor, "batch channels *sides"]
    ) -> tuple[Float[Tensor, "batch dim *coarse"], list[tuple[Tensor, Tensor]]]:
        """The tokens on their grid; and of every halving what went in and the number of the coset that came out."""
        levels = []
        for convolution, sampling in zip(self.convolutions, self.samplings, strict=False):
            assert isinstance(sampling, PolyphaseDownsample)
            fine = convolution(images)
            images, offset = sampling.sample(fine)
            levels.append((fine, offset))
        return self.convolutions[-1](images), levels


class Merge(nn.Module):
    """Between two stages: a linear map of every 2 cells a side at every offset, of which the content chooses one."""

    def __init__(self, dim: int, next_dim: int, sampling: Sampling) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.patches = sampling.patches(dim, next_dim, 2)

    def forward(
        self, cells: Float[Tensor, "batch dim *sides"]
    ) -> tuple[Float[Tensor, "batch next_dim *coarse"], Tensor]:
        """The coarse cells and the number of the coset they are."""
        return self.patches.sample(self.norm(cells.movedim(1, -1)).movedim(-1, 1))


class Widen(nn.Module):
    """A convolution of coarse cells, put back to where a halving took them, beside the fine cells that went into it."""

    def __init__(self, coarse_dim: int, dim: int, sampling: Sampling) -> None:
        super().__init__()
        self.upsampling = PolyphaseUpsample(
            2, num_axes=sampling.num_axes, periodic=sampling.periodic
        )
        self.convolution = sampling.convolution(coarse_dim + dim, dim)

    def forward(
        self,
        cells: Float[Tensor, "batch coarse_dim *coarse"],
        offset: Int[Tensor, "batch"],
        fine: Float[Tensor, "batch dim *sides"],
    ) -> Float[Tensor, "batch dim *sides"]:
        return self.convolution(torch.cat([self.upsampling(cells, offset), fine], dim=1))


class DenseHead(nn.Module):
    """Logits of every pixel: each halving is undone, with what went into it."""

    def __init__(
        self, widths: Sequence[int], num_classes: int, sampling: Sampling, dim_head: int
    ) -> None:
        super().__init__()
        finest_last = itertools.pairwise(reversed(widths))
        self.widenings = nn.ModuleList(
            sampling.widen(coarse, fine, dim_head) for coarse, fine in finest_last
        )
        self.logits = CONVOLUTION_MODULES[sampling.num_axes](widths[0], num_classes, 1)

    def forward(
        self, cells: Float[Tensor, "batch dim *coarse"], levels: Sequence[tuple[Tensor, Tensor]]
    ) -> Float[Tensor, "batch classes *sides"]:
        """The logits, from the coarsest cells and what `SampledStem.encode` and `Merge` said of every halving."""
        for widen, (fine, offset) in zip(self.widenings, reversed(levels), strict=True):
            cells = widen(cells, offset, fine)
        return self.logits(cells)


def make_stem(
    stem: str | nn.Module,
    in_channels: int,
    dim: int,
    patch_size: int,
    sampling: Sampling,
    depths: int | tuple[int, ...],
) -> nn.Module:
    """The stem of that name, or the one given."""
    if isinstance(stem, nn.Module):
        return stem
    kind, mode = (
        CONVOLUTION_MODULES[sampling.num_axes],
        "circular" if sampling.periodic else "zeros",
    )
    if stem == "patch":
        return kind(in_channels, dim, patch_size, patch_size)
    if stem == "polyphase_patch":
        return sampling.patches(in_channels, dim, patch_size)
    if stem in ("polyphase", "strided"):
        return SampledStem(in_channels, dim, patch_size, sampling, depths)
    hidden = max(1, dim // 2)
    # A bounded image is taken to go on as zeros, the background, before the first convolution and not after its bias:
    # content at the edge then looks as it does inside.
    first, second = (1, 1) if sampling.periodic else (2, 0)
    return nn.Sequential(
        kind(in_channels, hidden, 3, padding=first, padding_mode=mode),
        nn.GELU(),
        kind(hidden, dim, patch_size + 2, patch_size, padding=second, padding_mode=mode),
    )


class Stage(NamedTuple):
    """The sizes of a stage."""

    dim: int
    depth: int
    heads: int


def stage_sizes(sizes: dict[str, int | tuple[int, ...]]) -> list[Stage]:
    """The sizes of each stage."""
    given = {
        name: tuple(size) if isinstance(size, Sequence) else (size,) for name, size in sizes.items()
    }
    count = max(map(len, given.values()))
    for name, numbers in given.items():
        if len(numbers) not in (1, count):
            raise wrong_value(name, sizes[name], f"one number, or one for each of {count} stages")
        for number in numbers or (None,):
            check_sizes({name: number}, most=MOST_BLOCKS if name == "depth" else LARGEST)
    return [
        Stage(*(numbers[stage % len(numbers)] for numbers in given.values()))
        for stage in range(count)
    ]


def check_halvings(
    stem: str | nn.Module,
    stem_depth: int | tuple[int, ...],
    num_stages: int,
    patch_size: int,
    pool: str,
    head: str,
    select: str,
    blur: int | str | None,
    periodic: bool,
    resampling: str,
) -> None:
    """Check that the options of halvings and of what is made of the last tokens have an effect, and work together."""
    check_name("select", select, ("norm", "learned"))
    check_blur(blur, periodic)
    check_name("resampling", resampling, RESAMPLINGS)
    if resampling == "attention" and num_stages == 1 and head != "dense":
        raise wrong_value(
            "resampling",
            resampling,
            "'convolution' with one stage and head='pooled', where nothing is",
        )
    halves = num_stages > 1 or (
        stem in ("polyphase_patch", "polyphase", "strided") and patch_size > 1
    )
    if not halves and (select, blur) != ("norm", None):
        argument, value = ("blur", blur) if select == "norm" else ("select", select)
        raise wrong_value(
            argument, value, "its default without a halving: with one stage, and no stem with one"
        )
    for count in stem_depth if isinstance(stem_depth, tuple | list) else (stem_depth,):
        check_sizes({"stem_depth": count}, 0, most=MOST_BLOCKS)
    if stem_depth != 0 and stem not in ("polyphase", "strided"):
        raise wrong_value("stem_depth", stem_depth, "0 but with stem='polyphase' or 'strided'")
    if stem == "strided" and select != "norm":
        raise wrong_value("select", select, "'norm' with stem='strided', which chooses nothing")
    if head == "dense":
        if pool != "class":
            raise wrong_value("pool", pool, "to be left out with head='dense', which pools nothing")
        if patch_size > 1 and stem not in ("polyphase", "strided"):
            raise wrong_value(
                "patch_size", patch_size, "1 with head='dense', or stem='polyphase' or 'strided'"
            )
    elif pool == "class" and num_stages > 1:
        raise wrong_value(
            "pool",
            pool,
            "'mean' or 'attention' with several stages, which a class token does not pass",
        )
