"""A vision Performer: images to logits, with a choice of what it knows of positions."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter
from typing_extensions import Unpack

from teka.checks import MOST_BLOCKS, check_flags, check_name, check_sizes, height_and_width
from teka.errors import wrong_value
from teka.functional import RELATIVES, Kernel
from teka.functional.kernel import RANDOM_KERNELS, with_floor
from teka.functional.relative.rotation import NUM_FREQUENCIES, initial_frequency
from teka.grid import Grid
from teka.nn import (
    AbsolutePosition,
    AttentionOptions,
    AttentionPool,
    Fourier,
    Rotation,
    RotationJoint,
    TransformerBlock,
)
from teka.nn.heads import count_position_heads, without_relative
from teka.nn.options import HeadKeywords, takes
from teka.nn.tokens import check_tokens
from teka.nn.waves import RelativeModule

POSITIONS = ("none", "absolute", *RELATIVES)
STEMS = ("patch", "convolution")
POOLS = ("class", "mean", "attention")
# The positions that have an option.
POSITIONS_WITH = dict.fromkeys(("num_waves", "longest_wave", "wave_weight"), ("fourier",)) | {
    "rotation_weight_scale": ("rotation", "rotation_joint"),
    "rotary_normalizer": ("rotary",),
}


class Performer(nn.Module):
    """Transformer blocks over the pixels or patches of an image.

    The stem turns the image into one token a cell; with pool="class" a learned class token goes before them, which has
    no position in any variant. Then the last block, of which only the class token is read, has no relative kernel
    either: it could not change the logits. The frequencies of `rotation` are shared by the layers (Horn et al. 2021).

    Args:
        image_size: Height and width in pixels, or one number for both.
        in_channels: Channels of the images.
        num_classes: Number of logits.
        dim: Size of a token.
        depth: Number of blocks.
        heads: Number of heads.
        position: "none", "absolute" (sinusoids added once), or a name of `teka.functional.RELATIVES`.
        patch_size: Side of a token in pixels; shifts by other than its multiples are seen by a model with patches.
        stem: "patch" (a linear map of each patch, as the paper's), "convolution" (two 3 × 3 convolutions with a GELU
            between them, for patches of one pixel), or a module of your own, (B, C, H, W) to (B, dim, H/p, W/p).
        periodic: Whether the image's edges meet, left and right, top and bottom. Then a model without or with exact
            relative positions is exactly invariant to rolling the image. On a bounded image it is not: a query near the
            edge has fewer keys on that side.
        pool: What the logits are made from: "class" (the class token), "mean" (of the tokens) or "attention" (a learned
            query).
        mlp_ratio: Width of the MLPs' hidden layer over dim.
        longest_wave: Longest wave of position="fourier" at first, in pixels or patches.
        wave_weight: Weight of all waves of position="fourier" at first over that of the constant.
        rotation_weight_scale: Standard deviation of the weights of position="rotation" at first.
        epsilon: Floor of the rectified kernels "squared_relu", "focused" and "relu", over the root mean square.
        options: Keywords of `teka.nn.AttentionOptions` for the attention of every block: dim_head, kernel,
            num_features, qkv_bias, dropout (also in the MLPs), backend, position_heads, num_waves, rotary_normalizer,
            query_key, gate, value_convolution. In the last block with pool="class", where positions could not change
            the logits, those of positions do not act.

    Raises:
        ValueError: Sizes that do not fit, an unknown name, or an option that the position or the kernel does not have.
    """

    @takes(HeadKeywords)
    def __init__(
        self,
        image_size: int | tuple[int, int],
        in_channels: int,
        num_classes: int,
        *,
        dim: int,
        depth: int,
        heads: int,
        position: str = "rotary",
        patch_size: int = 1,
        stem: str | nn.Module = "patch",
        periodic: bool = False,
        pool: str = "class",
        mlp_ratio: float = 4.0,
        longest_wave: float | None = None,
        wave_weight: float | None = None,
        rotation_weight_scale: float | None = None,
        epsilon: float | None = None,
        **options: Unpack[HeadKeywords],
    ) -> None:
        super().__init__()
        check_sizes({"in_channels": in_channels, "num_classes": num_classes, "patch_size": patch_size})
        check_sizes({"dim": dim, "heads": heads})
        check_sizes({"depth": depth}, most=MOST_BLOCKS)
        check_flags({"periodic": periodic})
        check_name("position", position, POSITIONS)
        check_name("pool", pool, POOLS)
        if not isinstance(stem, nn.Module):
            check_name("stem", stem, STEMS)
        is_relative = position in RELATIVES
        chosen = AttentionOptions(**options, relative=position if is_relative else None)
        self.patch_size, self.periodic = patch_size, periodic
        self.resize(image_size)
        self.in_channels, self.position, self.pool = in_channels, position, pool
        self.stem = _make_stem(stem, in_channels, dim, patch_size, periodic) if isinstance(stem, str) else stem
        self.class_token = Parameter(torch.randn(dim)) if pool == "class" else None
        self.absolute_position = AbsolutePosition(dim, self.grid.num_axes) if position == "absolute" else None
        num_placed = depth - 1 if pool == "class" else depth
        if num_placed == 0 and is_relative:
            warnings.warn(
                f"position={position!r} has no effect with depth=1 and pool='class': the class token has no position, "
                "and nothing else is read of the last block; take depth of at least 2 or pool='mean'",
                stacklevel=3,  # past `takes`
            )
        if chosen.value_convolution is not None and num_placed == 0:
            expected = "None with depth=1 and pool='class', where it could not change the logits"
            raise wrong_value("value_convolution", chosen.value_convolution, expected)
        own = {"longest_wave": longest_wave, "wave_weight": wave_weight}
        own |= {"rotation_weight_scale": rotation_weight_scale, "num_waves": chosen.num_waves}
        for option, value in (own | {"rotary_normalizer": chosen.rotary_normalizer}).items():
            if value is not None and position not in POSITIONS_WITH[option]:
                others = " or ".join(map(repr, POSITIONS_WITH[option]))
                raise wrong_value(option, value, f"None with position={position!r}; position={others} takes it")
        by_position = count_position_heads(chosen.position_heads, chosen.relative, heads)
        relatives = _make_relatives(
            position,
            num_placed,
            {"num_axes": self.grid.num_axes, "heads": by_position or heads},
            dim // heads if chosen.dim_head is None else chosen.dim_head,
            {name: value for name, value in own.items() if value is not None},
        )
        random = isinstance(chosen.kernel, str) and chosen.kernel in RANDOM_KERNELS
        if chosen.num_features is not None and not random and position != "clipped_features":
            expected = f"None with kernel={chosen.kernel!r} and position={position!r}"
            raise wrong_value("num_features", chosen.num_features, expected)
        if epsilon is not None:
            named = chosen.kernel if isinstance(chosen.kernel, str | Kernel) else chosen.kernel()
            options["kernel"] = with_floor(named, epsilon)
        options.pop("num_waves", None)  # the relative kernels have them
        # In the last block before a class token is read, positions could not change the logits.
        unplaced = options | {"value_convolution": None}
        if is_relative:
            unplaced |= {"position_heads": None, "rotary_normalizer": None, "backend": without_relative(chosen.backend)}
            unplaced |= {"num_features": chosen.num_features if random else None}
        self.blocks = nn.ModuleList(
            TransformerBlock(dim, heads, mlp_ratio=mlp_ratio, relative=relative, **options) for relative in relatives
        )
        for _ in range(depth - num_placed):
            self.blocks.append(TransformerBlock(dim, heads, mlp_ratio=mlp_ratio, relative=None, **unplaced))
        self.norm = nn.LayerNorm(dim)
        self.attention_pool = AttentionPool(dim, heads, qkv_bias=chosen.qkv_bias) if pool == "attention" else None
        self.head = nn.Linear(dim, num_classes)
        self.chosen_backends()  # a backend that cannot compute this model is an error now, not at the first image

    def resize(self, image_size: int | tuple[int, int]) -> None:
        """Take images of another size from now on, multiples of the patch size: no parameter depends on it."""
        self.image_size = size = height_and_width("image_size", image_size)
        if any(side % self.patch_size for side in size):
            expected = f"height and width, multiples of patch_size = {self.patch_size}"
            raise wrong_value("image_size", image_size, expected)
        self.grid = Grid((size[0] // self.patch_size, size[1] // self.patch_size), periodic=self.periodic)

    def chosen_backends(self) -> tuple[str, ...]:
        """Names of the backends that compute the blocks with a relative kernel, or all blocks if none has one."""
        attentions = [block.attention for block in self.blocks if isinstance(block, TransformerBlock)]
        placed = [attention for attention in attentions if attention.relative is not None] or attentions
        first = 0 if self.class_token is None else 1
        return tuple(sorted({attention.chosen_backend(self.grid, first) for attention in placed}))

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Logits of images; a ValueError if they have other channels or another size than the model was made for."""
        stem = self.stem[0] if isinstance(self.stem, nn.Sequential) else self.stem
        check_tokens("images", images, "batch", self.in_channels, *self.image_size, first=stem)
        tokens = self.grid.flatten(self.stem(images))
        if self.absolute_position is not None:
            tokens = self.absolute_position(tokens, self.grid)
        first = 0 if self.class_token is None else 1
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.expand(tokens.shape[0], 1, -1).to(tokens.dtype), tokens], dim=1)
        for block in self.blocks:
            # Of the last block before a class token is read, nothing else is needed.
            num_queries = 1 if self.pool == "class" and block is self.blocks[-1] else None
            tokens = block(tokens, self.grid, None, first, num_queries)
        tokens = self.norm(tokens)
        if self.pool == "class":
            pooled = tokens[:, 0]
        elif self.attention_pool is not None:
            pooled = self.attention_pool(tokens)[:, 0]
        else:
            pooled = tokens.mean(dim=1)
        return self.head(pooled)


def _make_stem(stem: str, in_channels: int, dim: int, patch_size: int, periodic: bool) -> nn.Module:
    if stem == "patch":
        return nn.Conv2d(in_channels, dim, patch_size, patch_size)
    hidden = max(1, dim // 2)
    # A bounded image is taken to go on as zeros, the background, before the first convolution and not after its bias:
    # content at the edge then looks as it does inside.
    first, second, mode = (1, 1, "circular") if periodic else (2, 0, "zeros")
    return nn.Sequential(
        nn.Conv2d(in_channels, hidden, 3, padding=first, padding_mode=mode),
        nn.GELU(),
        nn.Conv2d(hidden, dim, patch_size + 2, patch_size, padding=second, padding_mode=mode),
    )


def _make_relatives(
    position: str, count: int, sizes: dict[str, int], dim_head: int, options: dict[str, Any]
) -> Sequence[str | RelativeModule | None]:
    """The relative kernel of each of `count` blocks, a name where nothing is shared or asked for."""
    if position in ("rotation", "rotation_joint"):
        kind = Rotation if position == "rotation" else RotationJoint
        shared = Parameter(initial_frequency(NUM_FREQUENCIES).to(torch.get_default_dtype()))
        scale = options.get("rotation_weight_scale", 1.0)
        return [kind(**sizes, dim_head=dim_head, frequency=shared, weight_scale=scale) for _ in range(count)]
    if options:
        return [Fourier(**sizes, **options) for _ in range(count)]
    return [position if position in RELATIVES else None] * count
