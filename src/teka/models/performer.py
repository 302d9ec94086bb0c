"""A vision Performer: images to logits, with a choice of what it knows of positions."""

import warnings
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter

from teka.checks import LARGEST, MOST_BLOCKS, check_flags, check_name, check_sizes, is_whole
from teka.errors import wrong_value
from teka.functional import Kernel
from teka.functional.backend import BACKENDS
from teka.functional.kernel import RANDOM_KERNELS, with_floor
from teka.functional.relative import RELATIVES
from teka.grid import Grid
from teka.models.relatives import make_relatives
from teka.nn import AbsolutePosition, AttentionPool, TransformerBlock
from teka.nn.head_group import count_position_heads
from teka.nn.tokens import check_tokens

POSITIONS = ("none", "absolute", *RELATIVES)
STEMS = ("patch", "convolution")
POOLS = ("class", "mean", "attention")


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
        dim_head: Size of a head, dim / heads by default.
        position: "none", "absolute" (sinusoids added once), or a name of `teka.functional.RELATIVES`.
        kernel: Content kernel, a name of `teka.functional.KERNELS` or an instance.
        num_features: Number of random features of the kernels that have them.
        backend: Backend of the attention.
        patch_size: Side of a token in pixels; shifts by other than its multiples are seen by a model with patches.
        stem: "patch" (a linear map of each patch, as the paper's), "convolution" (two 3 × 3 convolutions with a GELU
            between them, for patches of one pixel), or a module of your own, (B, C, H, W) to (B, dim, H/p, W/p).
        periodic: Whether the image's edges meet, left and right, top and bottom. Then a model without or with exact
            relative positions is exactly invariant to rolling the image. On a bounded image it is not: a query near the
            edge has fewer keys on that side.
        pool: What the logits are made from: "class" (the class token), "mean" (of the tokens) or "attention" (a learned
            query).
        mlp_ratio: Width of the MLPs' hidden layer over dim.
        qkv_bias: Whether queries, keys and values have a bias.
        dropout: Probability of dropping in attention outputs and MLPs.
        position_heads: Number of last heads of a block that attend by position alone, while the others attend by
            content alone; with 0 both act in every head. By default half of the heads of "clipped", 0 of the others'.
        num_waves: Number of waves of position="fourier".
        longest_wave: Longest wave of position="fourier" at first, in pixels or patches.
        wave_weight: Weight of all waves of position="fourier" at first over that of the constant.
        rotation_weight_scale: Standard deviation of the weights of position="rotation" at first.
        rotary_normalizer: What the denominator of position="rotary" is made of; see `teka.nn.Attention`.
        epsilon: Floor of the rectified kernels "squared_relu", "focused" and "relu", over the root mean square.
        query_key: What is done to queries and keys: "plain", "normalized" or "centred"; see `teka.nn.Attention`.
        gate: Whether a sigmoid of a linear map of each token gates what its heads give.
        value_convolution: Side in tokens of a depthwise convolution of the values, added to what the heads give; the
            last block has none with pool="class", where it could not change the logits.

    Raises:
        ValueError: Sizes that do not fit, an unknown name, or an option that the position or the kernel does not have.
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        in_channels: int,
        num_classes: int,
        *,
        dim: int,
        depth: int,
        heads: int,
        dim_head: int | None = None,
        position: str = "rotary",
        kernel: str | Kernel = "squared_relu",
        num_features: int | None = None,
        backend: str = "auto",
        patch_size: int = 1,
        stem: str | nn.Module = "patch",
        periodic: bool = False,
        pool: str = "class",
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        position_heads: int | None = None,
        num_waves: int | None = None,
        longest_wave: float | None = None,
        wave_weight: float | None = None,
        rotation_weight_scale: float | None = None,
        rotary_normalizer: str | None = None,
        epsilon: float | None = None,
        query_key: str = "plain",
        gate: bool = False,
        value_convolution: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes({"in_channels": in_channels, "num_classes": num_classes, "patch_size": patch_size})
        check_sizes({"dim": dim, "heads": heads})
        check_sizes({"depth": depth}, most=MOST_BLOCKS)
        check_sizes({"dim_head": dim_head, "num_features": num_features}, or_none=True)
        check_flags({"periodic": periodic})
        self.patch_size, self.periodic = patch_size, periodic
        self.resize(image_size)
        check_name("position", position, POSITIONS)
        check_name("pool", pool, POOLS)
        check_name("backend", backend, BACKENDS)
        if not isinstance(stem, nn.Module):
            check_name("stem", stem, STEMS)
        self.in_channels = in_channels
        self.position, self.pool = position, pool
        self.stem = _make_stem(stem, in_channels, dim, patch_size, periodic) if isinstance(stem, str) else stem
        self.class_token = Parameter(torch.randn(dim)) if pool == "class" else None
        self.absolute_position = AbsolutePosition(dim, self.grid.num_axes) if position == "absolute" else None
        placed_blocks = depth - 1 if pool == "class" else depth
        if placed_blocks == 0 and position in RELATIVES:
            warnings.warn(
                f"position={position!r} has no effect with depth=1 and pool='class': the class token has no position, "
                "and nothing else is read of the last block; take depth of at least 2 or pool='mean'",
                stacklevel=2,
            )
        by_position = count_position_heads(position_heads, position if position in RELATIVES else None, heads)
        if value_convolution is not None and placed_blocks == 0:
            expected = "None with depth=1 and pool='class', where it could not change the logits"
            raise wrong_value("value_convolution", value_convolution, expected)
        relatives = make_relatives(
            position,
            placed_blocks,
            num_axes=self.grid.num_axes,
            heads=by_position or heads,
            dim_head=dim // heads if dim_head is None else dim_head,
            num_waves=num_waves,
            longest_wave=longest_wave,
            wave_weight=wave_weight,
            rotation_weight_scale=rotation_weight_scale,
            rotary_normalizer=rotary_normalizer,
        )
        self.blocks = nn.ModuleList()
        random = isinstance(kernel, str) and kernel in RANDOM_KERNELS
        if num_features is not None and not random and position != "clipped_features":
            raise wrong_value("num_features", num_features, f"None with kernel={kernel!r} and position={position!r}")
        kernel = kernel if epsilon is None else with_floor(kernel, epsilon)
        for place, relative in enumerate((*relatives, *[None] * (depth - placed_blocks))):
            unplaced = relative is None and position in RELATIVES
            block = TransformerBlock(
                dim,
                heads,
                dim_head=dim_head,
                mlp_ratio=mlp_ratio,
                kernel=kernel,
                relative=relative,
                num_features=num_features if random or relative is not None else None,
                qkv_bias=qkv_bias,
                dropout=dropout,
                backend="auto" if unplaced and backend in ("toeplitz", "rings", "fft") else backend,
                position_heads=None if unplaced else position_heads,
                rotary_normalizer=None if unplaced else rotary_normalizer,
                query_key=query_key,
                gate=gate,
                value_convolution=value_convolution if place < placed_blocks else None,
            )
            self.blocks.append(block)
        self.norm = nn.LayerNorm(dim)
        self.attention_pool = AttentionPool(dim, heads, qkv_bias=qkv_bias) if pool == "attention" else None
        self.head = nn.Linear(dim, num_classes)
        self.chosen_backends()  # a backend that cannot compute this model is an error now, not at the first image

    def resize(self, image_size: int | tuple[int, int]) -> None:
        """Take images of another size from now on: no parameter depends on it.

        Args:
            image_size: Height and width in pixels, or one number for both.

        Raises:
            ValueError: Not a positive multiple of the patch size.
        """
        size = tuple(image_size) if isinstance(image_size, Sequence) else (image_size, image_size)
        sides = (is_whole(side) and 1 <= side <= LARGEST and side % self.patch_size == 0 for side in size)
        if len(size) != 2 or not all(sides):
            raise wrong_value(
                "image_size", image_size, f"height and width, multiples of patch_size = {self.patch_size}"
            )
        self.image_size = size
        self.grid = Grid((size[0] // self.patch_size, size[1] // self.patch_size), periodic=self.periodic)

    def chosen_backends(self) -> tuple[str, ...]:
        """Names of the backends that compute the blocks with a relative kernel, or all blocks if none has one."""
        attentions = [block.attention for block in self.blocks if isinstance(block, TransformerBlock)]
        placed = [attention for attention in attentions if attention.relative is not None] or attentions
        first = 0 if self.class_token is None else 1
        return tuple(sorted({attention.chosen_backend(self.grid, first) for attention in placed}))

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Logits of images.

        Args:
            images: Images, shape (B, C, H, W).

        Raises:
            ValueError: Another number of channels or another size than the model was made for.
        """
        stem = self.stem[0] if isinstance(self.stem, nn.Sequential) else self.stem
        check_tokens("images", images, "batch", self.in_channels, *self.image_size, first=stem)
        tokens = self.grid.flatten(self.stem(images))
        if self.absolute_position is not None:
            tokens = self.absolute_position(tokens, self.grid)
        first = 0
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.expand(tokens.shape[0], 1, -1).to(tokens.dtype), tokens], dim=1)
            first = 1
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
