"""Performer: a transformer with linear attention that classifies signals, images and volumes."""

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter

from teka.checks import as_integer_tuple
from teka.errors import wrong_value
from teka.functional import RELATIVES
from teka.functional.kernels import RANDOM_KERNELS, make_rectified_kernel
from teka.functional.relative.rotation import NUM_FREQUENCIES, initial_frequencies
from teka.grid import Grid
from teka.memory import MAX_IMAGE_PIXELS
from teka.models.performer_config import PerformerConfig, StageSizes
from teka.models.performer_layers import ConvolutionalStem, DenseHead, ResamplingFactory, make_stem
from teka.nn import (
    AttentionPool,
    LearnedPositionEmbedding,
    LearnedRelativeKernel,
    SinusoidalPositionEmbedding,
    TransformerBlock,
)
from teka.nn.head_groups import count_position_heads
from teka.nn.inputs import check_layer_input
from teka.nn.local_conv import CONVOLUTION_MODULES
from teka.nn.options import backend_without_relative_kernel
from teka.nn.relative import RelativeModule, make_learned_relative_kernel
from teka.nn.sampling import SubpixelAlignment
from teka.nn.transformer_block import count_window_heads

RELATIVE_OPTIONS = (
    "num_waves",
    "longest_wave",
    "wave_weight",
    "rotation_weight_scale",
    "max_distance",
)


class Performer(nn.Module):
    """Transformer with linear attention that classifies signals, images or volumes.

    The first layers, called the stem, turn the image into a grid of tokens, one for each pixel or
    patch. With pool="class", the sequence starts with a class token, which has no position. The
    last block then ignores positions, because only its class token is read. With
    position="rotation", all layers share the frequencies (Horn et al. 2021).

    On periodic images, a model with stem="polyphase" and several stages is equivariant to every
    shift by whole pixels (docs/maths/polyphase.md).

    >>> import torch, teka
    >>> options = {"dim": 16, "depth": 2, "heads": 2, "periodic": True}
    >>> model = teka.models.Performer((8, 12), in_channels=3, num_classes=10, **options)
    >>> image = torch.rand(1, 3, 8, 12)
    >>> torch.allclose(model(image.roll((3, 5), (2, 3))), model(image), atol=1e-5)
    True

    Args:
        config: A `PerformerConfig`. Alternatively pass the fields of one:
            `Performer(image_size, in_channels, num_classes, **options)`.

    Raises:
        ValueError: The sizes do not fit together, a name is unknown, or an option has no effect.
    """

    @overload
    def __init__(self, config: PerformerConfig, /) -> None: ...

    @overload
    def __init__(
        self, image_size: int | tuple[int, ...], in_channels: int, num_classes: int, **options: Any
    ) -> None: ...

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], PerformerConfig) and not options:
            config = args[0]
        else:
            config = PerformerConfig(*args, **options)
        self.config = config
        stages = config.stages
        first, last = stages[0], stages[-1]
        self.patch_size = config.patch_size
        self.periodic = config.periodic
        self.num_stages = len(stages)
        self.in_channels = config.in_channels
        self.position = config.position
        self.pool = config.pool if config.head == "pooled" else None
        self.image_size: tuple[int, ...] = ()
        self.fixed_image_size: tuple[int, ...] | None = None
        self.resize(config.image_size)
        if config.position == "absolute_table":
            self.fixed_image_size = self.image_size
        num_axes = self.grid.num_axes
        self.align = None
        if config.subpixels > 1:
            self.align = SubpixelAlignment(config.subpixels, num_axes=num_axes)
        resampling = ResamplingFactory.from_config(config, num_axes)
        self.stem = make_stem(config, first.dim, resampling)
        self.class_token = Parameter(torch.randn(first.dim)) if self.pool == "class" else None
        self.absolute_position: SinusoidalPositionEmbedding | LearnedPositionEmbedding | None = None
        if config.position == "absolute":
            self.absolute_position = SinusoidalPositionEmbedding(first.dim, num_axes)
        elif config.position == "absolute_table":
            self.absolute_position = LearnedPositionEmbedding(first.dim, self.grid.shape)
        if config.num_position_aware_blocks == 0 and config.position in RELATIVES:
            warnings.warn(
                "With depth=1 and pool='class', the logits depend only on the class token, which "
                "has no position. Use a depth of at least 2, or pool='mean', so that "
                f"position={config.position!r} has an effect.",
                stacklevel=2,
            )
        self.blocks = nn.ModuleList(_make_blocks(config, num_axes))
        self.depths = [stage.depth for stage in stages]
        self.merges = nn.ModuleList(
            resampling.make_stage_downsampling(*pair) for pair in itertools.pairwise(stages)
        )
        self.norm = nn.LayerNorm(last.dim)
        self.attention_pool = None
        if self.pool == "attention":
            self.attention_pool = AttentionPool(last.dim, last.heads, qkv_bias=config.qkv_bias)
        self.head: nn.Module = nn.Linear(last.dim, config.num_classes)
        if config.head == "dense":
            dim_head = config.dim_head or first.dim // first.heads
            stem_widths = self.stem.widths[:-1] if isinstance(self.stem, ConvolutionalStem) else []
            widths = [*stem_widths, *(stage.dim for stage in stages)]
            self.head = DenseHead(widths, config.num_classes, resampling, dim_head)
        self.chosen_backends()  # Raises an error if a backend cannot compute this model.

    def resize(self, image_size: int | tuple[int, ...]) -> None:
        """Change the image size that the model accepts, without changing its parameters.

        Raises:
            ValueError: A side is not a multiple of the patch size (times 2 for each stage after
                the first), or the size changes with position="absolute_table", whose table has one
                vector for each cell.
        """
        num_axes = len(self.image_size)
        expected = f"a number of pixels of at least 1 for each of {num_axes or '1 to 3'} axes"
        if not num_axes:
            num_axes = len(image_size) if isinstance(image_size, Sequence) else 2
        sides = as_integer_tuple("image_size", image_size, num_axes, 1, expected)
        if num_axes not in (1, 2, 3):
            raise wrong_value("image_size", image_size, expected)
        if math.prod(sides) > MAX_IMAGE_PIXELS:
            raise wrong_value("image_size", image_size, f"at most {MAX_IMAGE_PIXELS:,} pixels")
        if not self.takes(sides):
            expected = f"sides that are multiples of patch_size = {self.patch_size}"
            if self.num_stages > 1:
                expected += f" × {2 ** (self.num_stages - 1)} for {self.num_stages} stages"
            if self.fixed_image_size is not None:
                expected = (
                    f"{self.fixed_image_size}, for which position='absolute_table' has vectors"
                )
            raise wrong_value("image_size", image_size, expected)
        self.image_size = tuple(map(int, sides))
        cells = [side // self.patch_size for side in sides]
        self.grids = [
            Grid([side >> stage for side in cells], periodic=self.periodic)
            for stage in range(self.num_stages)
        ]

    def takes(self, sides: Sequence[int]) -> bool:
        """Return True if the model can take images with these sides."""
        divisor = self.patch_size * 2 ** (self.num_stages - 1)
        is_multiple = not any(side % divisor for side in sides)
        return is_multiple and self.fixed_image_size in (None, tuple(sides))

    @property
    def grid(self) -> Grid:
        """Grid of the tokens of the first stage."""
        return self.grids[0]

    def chosen_backends(self, batch: int = 1) -> tuple[str, ...]:
        """Return the names of the attention algorithms (backends) that the blocks of the model use.

        If the attention weights of some blocks depend on positions, only the backends of these
        blocks are returned. The last block before a class token, for example, ignores positions.
        """
        layers = []
        blocks = iter(self.blocks)
        for grid, depth in zip(self.grids, self.depths, strict=True):
            for block in itertools.islice(blocks, depth):
                assert isinstance(block, TransformerBlock)
                layers.append((block.attention, grid))
        relative_layers = [pair for pair in layers if pair[0].relative is not None]
        backends = {
            attention.chosen_backend(grid, self._num_prefix_tokens, batch)
            for attention, grid in relative_layers or layers
        }
        return tuple(sorted(backends))

    @property
    def _num_prefix_tokens(self) -> int:
        return 0 if self.class_token is None else 1

    def forward(
        self, images: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch classes *dense"]:
        """Return the class logits of each image, or of each pixel with head="dense".

        Raises:
            ValueError: The images have another size or another number of channels.
        """
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
        """Return the tokens after the last block, and the input of each downsampling layer.

        Each input comes with the offset of the pixels that the downsampling layer kept. A dense
        head uses the inputs and the offsets to restore the resolution of the image.
        """
        projections = (nn.Linear, *CONVOLUTION_MODULES.values())
        first_layer: nn.Module = self.stem
        for module in self.stem.modules():
            if isinstance(module, projections):
                first_layer = module
                break
        sizes = ("batch", self.in_channels, *self.image_size)
        check_layer_input("images", images, *sizes, layer=first_layer)
        if self.align is not None:
            images = self.align(images)
        levels: list[tuple[Tensor, Tensor]] = []
        if isinstance(self.stem, ConvolutionalStem):
            cells, levels = self.stem.encode(images)
        else:
            cells = self.stem(images)
        tokens = self.grid.flatten(cells)
        if self.absolute_position is not None:
            tokens = self.absolute_position(tokens, self.grid)
        if self.class_token is not None:
            class_tokens = self.class_token.expand(tokens.shape[0], 1, -1).to(tokens.dtype)
            tokens = torch.cat([class_tokens, tokens], dim=1)
        blocks = iter(self.blocks)
        for stage, (grid, depth) in enumerate(zip(self.grids, self.depths, strict=True)):
            if stage > 0:
                fine = self.grids[stage - 1].unflatten(tokens)
                cells, offset = self.merges[stage - 1](fine)
                levels.append((fine, offset))
                tokens = grid.flatten(cells)
            for block in itertools.islice(blocks, depth):
                # Only the class token of the last block is read.
                is_last = block is self.blocks[-1]
                num_queries = 1 if self.pool == "class" and is_last else None
                tokens = block(tokens, grid, None, self._num_prefix_tokens, num_queries)
        return self.norm(tokens), levels


def _make_blocks(config: PerformerConfig, num_axes: int) -> list[TransformerBlock]:
    """Create the transformer blocks of all stages of a model."""
    keywords = config.attention_options_except_relative()
    kernel = keywords["kernel"]
    if config.epsilon is not None:
        keywords["kernel"] = make_rectified_kernel(kernel, config.epsilon)
    keywords |= {"num_waves": None, "mlp_ratio": config.mlp_ratio, "num_axes": num_axes}
    is_random = isinstance(kernel, str) and kernel in RANDOM_KERNELS
    # If the relative kernel is a module, this module draws the features itself.
    is_feature_count_of_relative = config.position == "clipped_features" and not is_random
    if is_feature_count_of_relative and config.max_distance is not None:
        keywords["num_features"] = None
    shared_frequency = Parameter(initial_frequencies(NUM_FREQUENCIES).to(torch.get_default_dtype()))
    blocks = []
    stages = config.stages
    for index, stage in enumerate(stages):
        num_position_aware_blocks = (
            config.num_position_aware_blocks if index == len(stages) - 1 else stage.depth
        )
        for _ in range(num_position_aware_blocks):
            relative = _relative_option(config, stage, num_axes, shared_frequency)
            blocks.append(
                TransformerBlock(
                    stage.dim,
                    stage.heads,
                    relative=relative,
                    window_reach=config.window_reach,
                    **keywords,
                )
            )
    # In the last block before the class token is read, positions cannot change the logits.
    keywords["value_convolution"] = None
    if config.position in RELATIVES:
        keywords |= {
            "position_heads": None,
            "rotary_normalizer": None,
            "backend": backend_without_relative_kernel(config.backend),
        }
    if is_feature_count_of_relative:
        keywords["num_features"] = None
    last = stages[-1]
    for _ in range(last.depth - config.num_position_aware_blocks):
        blocks.append(TransformerBlock(last.dim, last.heads, relative=None, **keywords))
    return blocks


def _relative_option(
    config: PerformerConfig, stage: StageSizes, num_axes: int, shared_frequency: Parameter
) -> str | RelativeModule | None:
    """Return the option `relative` of the attention in a block of a stage.

    It is the name of a relative kernel, or None if the model has no relative positions. It is a
    module if the config sets options of the kernel or if the blocks share its frequencies.
    """
    position = config.position
    relative = position if position in RELATIVES else None
    heads = stage.heads - count_window_heads(config.window_reach, stage.heads)
    position_heads = count_position_heads(config.position_heads, relative, heads)
    sizes: dict[str, Any] = {
        "num_axes": num_axes,
        "heads": position_heads or heads,
        "dim_head": config.dim_head or stage.dim // stage.heads,
    }
    if position in ("rotation", "rotation_joint"):
        scale = 1.0 if config.rotation_weight_scale is None else config.rotation_weight_scale
        return LearnedRelativeKernel(
            position, **sizes, frequency=shared_frequency, weight_scale=scale
        )
    options = {name: getattr(config, name) for name in RELATIVE_OPTIONS}
    options = {name: value for name, value in options.items() if value is not None}
    if not options:
        return relative
    options |= sizes | {"num_features": config.num_features}
    return make_learned_relative_kernel(RELATIVES[position], **options)
