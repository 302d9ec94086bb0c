"""A Performer of signals, images and volumes, with a choice of what it knows of positions."""

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter
from typing_extensions import Unpack

from teka.checks import check_flags, check_name, check_sizes, check_tensor_sizes, is_whole
from teka.errors import wrong_value
from teka.functional import RELATIVES, Kernel
from teka.functional.kernels import RANDOM_KERNELS, with_floor
from teka.grid import Grid
from teka.memory import LARGEST_IMAGE
from teka.models.positions import POSITIONS, check_options, make_absolute, make_relatives
from teka.models.stem import (
    STEMS,
    DenseHead,
    SampledStem,
    Sampling,
    check_halvings,
    make_stem,
    stage_sizes,
)
from teka.nn import AttentionPool, TransformerBlock
from teka.nn.additions import CONVOLUTION_MODULES
from teka.nn.options import AttentionOptions, HeadKeywords, takes, without_relative
from teka.nn.resample import SubpixelAlignment
from teka.nn.tokens import check_tokens

POOLS = ("class", "mean", "attention")
HEADS = ("pooled", "dense")


class Performer(nn.Module):
    """Transformer blocks over the pixels or patches of a signal, an image or a volume.

    The stem turns the image into one token a cell; with pool="class" a learned class token goes before them, which has
    no position in any variant. Then the last block, of which only the class token is read, has no relative kernel
    either: it could not change the logits. The frequencies of `rotation` are shared by the layers (Horn et al. 2021).

    With one number for each stage in `dim`, `depth` and `heads` a polyphase halving stands between two stages. On
    periodic images stem="polyphase" and these halvings keep every whole shift exactly (docs/maths/polyphase.md).

    >>> import torch, teka
    >>> sizes = {"image_size": (8, 12), "in_channels": 3, "num_classes": 10, "dim": 16, "depth": 2, "heads": 2}
    >>> model, image = teka.models.Performer(**sizes, periodic=True), torch.rand(1, 3, 8, 12)
    >>> torch.allclose(model(image.roll((3, 5), (2, 3))), model(image), atol=1e-5)
    True

    Args:
        image_size: Pixels along each of one to three axes, or one number for the height and width of an image.
        in_channels: Channels of the images.
        num_classes: Number of logits.
        dim: Size of a token, one number or one for each stage.
        depth: Number of blocks, one number or one for each stage.
        heads: Number of heads, one number or one for each stage.
        position: "none", "absolute" (sinusoids added once), "absolute_table" (a learned vector for each cell),
            or a name of `teka.functional.RELATIVES`.
        patch_size: Side of a token in pixels; shifts by other than its multiples are seen by a model with patches.
        stem: "convolution" (two convolutions of 3 × 3 and (p + 2) × (p + 2) pixels, the second with stride p, and a
            GELU between them; the default where a token is a pixel), "patch" (a linear map of each patch, as the
            paper's, which learns little of single pixels; the default of larger patches), "polyphase_patch" (patches
            from an offset that the image chooses), "polyphase" (a convolution on every pixel and one after each of
            log2(p) polyphase halvings), "strided" (the same with an ordinary stride, to compare with), or a module of
            your own, (B, C, H, W) to (B, dim, H/p, W/p).
        stem_depth: Residual blocks of two convolutions at each of the log2(p) + 1 levels of stem "polyphase" or
            "strided", the finest first; one number, or one for each level.
        periodic: Whether the image's edges meet, left and right, top and bottom. Then a model without or with exact
            relative positions is exactly invariant to rolling the image. On a bounded image it is not: a query near the
            edge has fewer keys on that side.
        pool: What the logits are made from: "class" (the class token), "mean" (of the tokens) or "attention" (a learned
            query).
        head: "pooled", logits of a whole image, or "dense", logits of every pixel, (B, classes, H, W): what a halving
            took goes back to where it was. Then nothing is pooled.
        select: What chooses among the offsets of a halving, "norm" or "learned"; see `teka.nn.PolyphaseDownsample`.
        blur: The low pass before a halving, None, an odd number of cells, or "ideal", with which the GELUs of the
            stem's convolutions are oversampled too (`teka.nn.alias_free.OversampledGELU`).
        resampling: What makes a stage's first tokens of the last of the one before, and undoes halvings for a dense
            head: "convolution", or "attention" of the one grid's cells to the other's (`teka.nn.AttentionDownsample`).
        subpixels: Fractions of a pixel that images are aligned to first (`teka.nn.resample.SubpixelAlignment`), so that
            shifts by these change no more than whole ones do, where edges meet; 1 for none.
        mlp_ratio: Width of the MLPs' hidden layer over dim.
        longest_wave: Longest wave of position="fourier" at first, in pixels or patches.
        wave_weight: Weight of all waves of position="fourier" at first over that of the constant.
        rotation_weight_scale: Standard deviation of the weights of position="rotation" at first.
        max_distance: Distance in pixels or patches beyond which position="clipped", "clipped_features" and "shaw" (by
            axis) tell no two places apart, 6 by default, and "window" sees nothing, 3 by default.
        window_reach: How many cells along every axis half of the heads of a block see by softmax, in a window around
            the query, in place of what the others do (`teka.nn.TransformerBlock`); None for no such heads.
        epsilon: Floor of the rectified kernels "squared_relu", "focused" and "relu", over the root mean square.
        options: Keywords of `teka.nn.AttentionOptions` for the attention of every block: dim_head, kernel,
            num_features, projection, qkv_bias, dropout (also in the MLPs), backend, position_heads, num_waves,
            rotary_normalizer, query_key, gate, value_convolution. In the last block with pool="class", where positions
            could not change the logits, those of positions do not act.

    Raises:
        ValueError: Sizes that do not fit, an unknown name, or an option that the position or the kernel does not have.
    """

    @takes(HeadKeywords)
    def __init__(
        self,
        image_size: int | tuple[int, ...],
        in_channels: int,
        num_classes: int,
        *,
        dim: int | tuple[int, ...],
        depth: int | tuple[int, ...],
        heads: int | tuple[int, ...],
        position: str = "rotary",
        patch_size: int = 1,
        stem: str | nn.Module | None = None,
        stem_depth: int | tuple[int, ...] = 0,
        periodic: bool = False,
        pool: str = "class",
        head: str = "pooled",
        select: str = "norm",
        blur: int | str | None = None,
        resampling: str = "convolution",
        subpixels: int = 1,
        mlp_ratio: float = 4.0,
        longest_wave: float | None = None,
        wave_weight: float | None = None,
        rotation_weight_scale: float | None = None,
        max_distance: int | None = None,
        window_reach: int | None = None,
        epsilon: float | None = None,
        **options: Unpack[HeadKeywords],
    ) -> None:
        super().__init__()
        sizes = {"in_channels": in_channels, "num_classes": num_classes, "patch_size": patch_size}
        check_sizes({**sizes, "subpixels": subpixels})
        if subpixels > 1 and not (periodic and head == "pooled"):
            raise wrong_value(
                "subpixels", subpixels, "1 without periodic=True, or with head='dense'"
            )
        stages = stage_sizes({"dim": dim, "depth": depth, "heads": heads})
        check_flags({"periodic": periodic})
        check_name("position", position, POSITIONS)
        check_name("pool", pool, POOLS)
        check_name("head", head, HEADS)
        if stem is None:
            stem = "convolution" if patch_size == 1 else "patch"
        if not isinstance(stem, nn.Module):
            check_name("stem", stem, STEMS)
        self.patch_size, self.periodic, self.num_stages = patch_size, periodic, len(stages)
        self.only_size: tuple[int, ...] | None = (
            None  # that it takes, if it has a vector for each cell
        )
        self.image_size: tuple[int, ...] = ()  # the number of its axes is not known yet
        self.resize(image_size)
        self.only_size = self.image_size if position == "absolute_table" else None
        self.in_channels, self.position = in_channels, position
        for stage in stages:
            check_tensor_sizes({"dim": stage.dim}, stage.dim**2)
        cells = patch_size**self.grid.num_axes
        check_tensor_sizes(
            {"in_channels": in_channels, "dim": stages[0].dim}, in_channels * stages[0].dim * cells
        )
        check_tensor_sizes({"num_classes": num_classes, "dim": stages[-1].dim})
        self.pool = pool if head == "pooled" else None
        check_halvings(
            stem,
            stem_depth,
            self.num_stages,
            patch_size,
            pool,
            head,
            select,
            blur,
            periodic,
            resampling,
        )
        is_relative = position in RELATIVES
        chosen = AttentionOptions(**options, relative=position if is_relative else None)
        axes = self.grid.num_axes
        self.align = SubpixelAlignment(subpixels, num_axes=axes) if subpixels > 1 else None
        between = replace(chosen, value_convolution=None) if resampling == "attention" else None
        sampling = Sampling(axes, periodic, "fixed" if stem == "strided" else select, blur, between)
        first, last = stages[0].dim, stages[-1]
        self.stem = make_stem(stem, in_channels, first, patch_size, sampling, stem_depth)
        self.class_token = Parameter(torch.randn(first)) if self.pool == "class" else None
        self.absolute_position = make_absolute(position, first, self.grid)
        num_placed = last.depth - 1 if self.pool == "class" else last.depth
        if num_placed == 0 and is_relative:
            warnings.warn(
                f"position={position!r} has no effect with depth=1 and pool='class': the class token has no position, "
                "and nothing else is read of the last block; take depth of at least 2 or pool='mean'",
                stacklevel=3,  # past `takes`
            )
        for option, value in (
            ("value_convolution", chosen.value_convolution),
            ("window_reach", window_reach),
        ):
            if value is not None and num_placed == 0:
                expected = (
                    "None with depth=1 and pool='class', where it could not change the logits"
                )
                raise wrong_value(option, value, expected)
        own = {
            "num_waves": chosen.num_waves,
            "longest_wave": longest_wave,
            "wave_weight": wave_weight,
        }
        own |= {"rotation_weight_scale": rotation_weight_scale, "max_distance": max_distance}
        check_options(position, own | {"rotary_normalizer": chosen.rotary_normalizer})
        if epsilon is not None:
            named = chosen.kernel if isinstance(chosen.kernel, str | Kernel) else chosen.kernel()
            options["kernel"] = with_floor(named, epsilon)
        options.pop("num_waves", None)  # the relative kernels have them
        is_random = isinstance(chosen.kernel, str) and chosen.kernel in RANDOM_KERNELS
        unneeded = position == "clipped_features" and not is_random
        if max_distance is not None and unneeded:
            options.pop("num_features", None)
        placed = [stage._replace(depth=num_placed) if stage is last else stage for stage in stages]
        relatives = make_relatives(position, placed, chosen, axes, own, window_reach)
        # In the last block before a class token is read, positions could not change the logits.
        unplaced = options | {"value_convolution": None}
        if is_relative:
            unplaced |= {
                "position_heads": None,
                "rotary_normalizer": None,
                "backend": without_relative(chosen.backend),
            }
        if unneeded:
            unplaced["num_features"] = None
        self.blocks = nn.ModuleList(
            TransformerBlock(
                stage.dim,
                stage.heads,
                mlp_ratio=mlp_ratio,
                window_reach=window_reach,
                relative=relative,
                num_axes=axes,
                **options,
            )
            for stage, of_stage in zip(stages, relatives, strict=True)
            for relative in of_stage
        )
        for _ in range(last.depth - num_placed):
            self.blocks.append(
                TransformerBlock(
                    last.dim,
                    last.heads,
                    mlp_ratio=mlp_ratio,
                    relative=None,
                    num_axes=axes,
                    **unplaced,
                )
            )
        widths = [stage.dim for stage in stages]
        self.depths = [stage.depth for stage in stages]
        self.merges = nn.ModuleList(sampling.merge(*pair) for pair in itertools.pairwise(stages))
        self.norm = nn.LayerNorm(widths[-1])
        pooled = self.pool == "attention"
        self.attention_pool = (
            AttentionPool(widths[-1], last.heads, qkv_bias=chosen.qkv_bias) if pooled else None
        )
        if head == "dense":
            dim_head = chosen.dim_head or first // stages[0].heads
            stem_widths = self.stem.widths[:-1] if isinstance(self.stem, SampledStem) else []
            self.head: nn.Module = DenseHead(
                [*stem_widths, *widths], num_classes, sampling, dim_head
            )
        else:
            self.head = nn.Linear(widths[-1], num_classes)
        self.chosen_backends()  # a backend that cannot compute this model is an error now, not at the first image

    def resize(self, image_size: int | tuple[int, ...]) -> None:
        """Take images of another size from now on, multiples of the patch size: no parameter depends on it.

        A model with "absolute_table" has a vector for each cell, and takes no other.
        """
        axes = len(self.image_size)
        sides = (
            tuple(image_size) if isinstance(image_size, Sequence) else (image_size,) * (axes or 2)
        )
        fits = len(sides) in ((axes,) if axes else (1, 2, 3))
        if not fits or not all(is_whole(side) and side >= 1 for side in sides):
            expected = f"a number of pixels of at least 1 for each of {axes or '1 to 3'} axes"
            raise wrong_value("image_size", image_size, expected)
        if math.prod(sides) > LARGEST_IMAGE:
            raise wrong_value("image_size", image_size, f"at most {LARGEST_IMAGE:,} pixels")
        if not self.takes(sides):
            halved = (
                f" × {2 ** (self.num_stages - 1)} for {self.num_stages} stages"
                if self.num_stages > 1
                else ""
            )
            expected = f"sides that are multiples of patch_size = {self.patch_size}{halved}"
            if self.only_size is not None:
                expected = f"{self.only_size}, for which position='absolute_table' has vectors"
            raise wrong_value("image_size", image_size, expected)
        self.image_size = tuple(int(side) for side in sides)
        cells = [side // self.patch_size for side in sides]
        self.grids = [
            Grid([side >> stage for side in cells], periodic=self.periodic)
            for stage in range(self.num_stages)
        ]

    def takes(self, sides: Sequence[int]) -> bool:
        """Whether its patches and stages divide an image of these sides, for which it has positions."""
        divides = not any(side % (self.patch_size * 2 ** (self.num_stages - 1)) for side in sides)
        return divides and self.only_size in (None, tuple(sides))

    @property
    def grid(self) -> Grid:
        """Where the tokens of the first stage are."""
        return self.grids[0]

    def chosen_backends(self, batch: int = 1) -> tuple[str, ...]:
        """Names of the backends that compute the blocks with a relative kernel, or all blocks if none has one."""
        placed = [
            (block.attention, grid)
            for block, grid in zip(self.blocks, self._grids_of_blocks(), strict=True)
            if isinstance(block, TransformerBlock)
        ]
        placed = [pair for pair in placed if pair[0].relative is not None] or placed
        first = 0 if self.class_token is None else 1
        return tuple(
            sorted({attention.chosen_backend(grid, first, batch) for attention, grid in placed})
        )

    def _grids_of_blocks(self) -> list[Grid]:
        return [
            grid for grid, depth in zip(self.grids, self.depths, strict=True) for _ in range(depth)
        ]

    def forward(
        self, images: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch classes *dense"]:
        """Logits of images; a ValueError if they have other channels or another size than the model was made for."""
        tokens, levels = self.encode(images)
        if self.pool is None:
            return self.head(self.grids[-1].unflatten(tokens), levels)
        if self.pool == "class":
            pooled = tokens[:, 0]
        elif self.attention_pool is not None:
            pooled = self.attention_pool(tokens)[:, 0]
        else:
            pooled = tokens.mean(dim=1)
        return self.head(pooled)

    def encode(
        self, images: Float[Tensor, "batch channels *sides"]
    ) -> tuple[Float[Tensor, "batch tokens dim"], list[tuple[Tensor, Tensor]]]:
        """Tokens after the last block and its norm, and of every halving the cells before it and what it chose."""
        kinds = (nn.Linear, *CONVOLUTION_MODULES.values())
        first_map = [*(one for one in self.stem.modules() if isinstance(one, kinds)), self.stem][0]
        check_tokens("images", images, "batch", self.in_channels, *self.image_size, first=first_map)
        images = images if self.align is None else self.align(images)
        cells, levels = (
            self.stem.encode(images)
            if isinstance(self.stem, SampledStem)
            else (self.stem(images), [])
        )
        tokens = self.grid.flatten(cells)
        if self.absolute_position is not None:
            tokens = self.absolute_position(tokens, self.grid)
        first = 0 if self.class_token is None else 1
        if self.class_token is not None:
            tokens = torch.cat(
                [self.class_token.expand(tokens.shape[0], 1, -1).to(tokens.dtype), tokens], dim=1
            )
        blocks = iter(self.blocks)
        for stage, (grid, depth) in enumerate(zip(self.grids, self.depths, strict=True)):
            if stage:
                before = self.grids[stage - 1].unflatten(tokens)
                cells, offset = self.merges[stage - 1](before)
                levels.append((before, offset))
                tokens = grid.flatten(cells)
            for block in itertools.islice(blocks, depth):
                # Of the last block before a class token is read, nothing else is needed.
                num_queries = 1 if self.pool == "class" and block is self.blocks[-1] else None
                tokens = block(tokens, grid, None, first, num_queries)
        return self.norm(tokens), levels
