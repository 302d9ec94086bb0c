"""Sizes and options of a Performer."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from torch import nn

from teka.checks import (
    MAX_NUM_BLOCKS,
    MAX_SIZE,
    check_flags,
    check_name,
    check_sizes,
    check_tensor_sizes,
)
from teka.errors import wrong_value
from teka.functional import RELATIVES
from teka.nn.features import AnyContentKernel
from teka.nn.options import AttentionOptions
from teka.nn.sampling.filters import check_blur

POOLS = ("class", "mean", "attention")
HEADS = ("pooled", "dense")
RESAMPLINGS = ("convolution", "attention")
STEMS = ("patch", "convolution", "polyphase_patch", "polyphase", "strided")
HALVING_STEMS = ("polyphase", "strided")
POSITIONS = ("none", "absolute", "absolute_table", *RELATIVES)
# Position encodings that have each of these options.
POSITIONS_WITH = {
    "num_waves": ("fourier",),
    "longest_wave": ("fourier",),
    "wave_weight": ("fourier",),
    "rotation_weight_scale": ("rotation", "rotation_joint"),
    "max_distance": ("clipped", "clipped_features", "shaw", "window"),
    "rotary_normalizer": ("rotary",),
}
# Options that are passed on to the attention of every block.
ATTENTION_OPTIONS = (
    "dim_head",
    "kernel",
    "num_features",
    "projection",
    "qkv_bias",
    "dropout",
    "backend",
    "position_heads",
    "num_waves",
    "rotary_normalizer",
    "query_key",
    "gate",
    "value_convolution",
)


class StageSizes(NamedTuple):
    """Token size, number of blocks and number of heads of one stage of a model.

    A stage consists of the transformer blocks that process the same grid of tokens.
    """

    dim: int
    depth: int
    heads: int


@dataclass(frozen=True)
class PerformerConfig:
    """Sizes and options of a `Performer`.

    >>> import teka
    >>> config = teka.models.PerformerConfig((8, 12), 3, 10, dim=16, depth=2, heads=2)
    >>> model = teka.models.Performer(config)
    >>> model.config.position
    'rotary'

    Args:
        image_size: Pixels along each of one to three axes. One number stands for a square image.
        in_channels: Number of channels of the images.
        num_classes: Number of logits.
        dim: Size of a token. `dim`, `depth` and `heads` are one number, or one for each stage.
            Between two stages, a polyphase downsampling halves each side of the grid.
        depth: Number of blocks.
        heads: Number of heads.
        position: Position encoding: "none", "absolute" (sinusoids added to the tokens),
            "absolute_table" (a learned vector for each cell), or a relative kernel: "rotation",
            "rotation_joint", "clipped", "clipped_features", "quadratic", "generalized_quadratic",
            "table", "fourier", "rotary", "decay", "alibi", "t5", "kerple", "shaw",
            "transformer_xl" or "window".
        patch_size: Side p of a token in pixels. With the stems "patch", "convolution" and
            "strided", the model is equivariant only to shifts by multiples of p.
        stem: First layers of the model, which turn pixels into tokens: one of these names, or a
            module that maps (B, C, H, W) to (B, dim, H/p, W/p).

            - "convolution", the default if a token is one pixel: convolutions of 3 × 3 and
              (p + 2) × (p + 2) pixels with a GELU between them. The second has stride p.
            - "patch", the default for larger tokens: a linear projection of each patch, as in the
              paper.
            - "polyphase_patch": a linear projection of patches whose offset depends on the image.
            - "polyphase": convolutions with log2(p) polyphase downsamplings between them.
            - "strided": like "polyphase" with ordinary strides, for comparison.
        stem_depth: Residual blocks at each of the log2(p) + 1 resolutions of a "polyphase" or
            "strided" stem. One number, or one for each resolution, finest first.
        periodic: If True, opposite edges of the image meet. A model with exact relative positions,
            or without positions, is then exactly invariant to rolling the image. On a bounded
            image it is not, because a query near the edge has fewer keys on that side.
        pool: Input of the classifier: "class" (a class token), "mean" (the mean of the tokens) or
            "attention" (attention pooling with a learned query).
        head: "pooled" for logits of the image, or "dense" for logits of every pixel. A dense head
            reverses each downsampling and does not pool.
        select: Rule that chooses the offset of a downsampling, "norm" or "learned". See
            `teka.nn.PolyphaseDownsample`.
        blur: Low-pass filter before a downsampling: None, an odd width in cells, or "ideal". With
            "ideal" the GELUs of the stem are oversampled too (`teka.nn.sampling.OversampledGELU`).
        resampling: Layer between stages and in a dense head: "convolution", or "attention" between
            the two grids (`teka.nn.AttentionDownsample`).
        subpixels: Factor k of `teka.nn.sampling.SubpixelAlignment`, which makes a periodic model
            invariant to shifts by multiples of 1/k pixel. With 1 images are not aligned.
        mlp_ratio: Width of the hidden layer of an MLP divided by `dim`.
        longest_wave: Initial longest wavelength of position "fourier", in tokens.
        wave_weight: Initial weight of the waves of position "fourier", relative to the constant.
        rotation_weight_scale: Initial standard deviation of the weights of position "rotation".
        max_distance: Largest distance in tokens that positions "clipped", "clipped_features" and
            "shaw" (along each axis) distinguish, 6 by default. For position "window", the reach of
            the window along each axis, 3 by default.
        window_reach: If given, half of the heads use softmax attention within a window of this
            many cells to each side. See `teka.nn.TransformerBlock`.
        epsilon: Floor of the rectified kernels "squared_relu", "focused" and "relu", relative to
            the root mean square.
        dim_head: Size of a head, dim / heads by default.
        kernel: Content kernel: "softmax", "squared_relu", "focused", "relu", "elu", "taylor2",
            "constant", "positive", "hyperbolic", "optimal", "trigonometric", "hedgehog",
            "gaussian", "dot_product" or "concatenation".
        num_features: Number of random features.
        projection: Distribution of random features: "orthogonal" (the default), "independent" or
            "fixed_norm".
        qkv_bias: If True, queries, keys and values have a bias.
        dropout: Dropout probability of the attention and of the MLPs.
        backend: Backend of the attention: "auto", "dense", "linear", "toeplitz", "rings", "fft" or
            "windows".
        position_heads: Number of heads that attend by position alone.
        num_waves: Number of waves of position "fourier".
        rotary_normalizer: Denominator of position "rotary". See `teka.nn.Attention`.
        query_key: Normalization of queries and keys: "plain" (none), "normalized" or "centred".
        gate: If True, multiply the output of the heads by a learned gate.
        value_convolution: Side of a depthwise convolution of the values.

    Raises:
        ValueError: The sizes do not fit together, a name is unknown, or an option has no effect.
    """

    image_size: int | tuple[int, ...]
    in_channels: int
    num_classes: int
    _: KW_ONLY
    dim: int | tuple[int, ...]
    depth: int | tuple[int, ...]
    heads: int | tuple[int, ...]
    position: str = "rotary"
    patch_size: int = 1
    stem: str | nn.Module | None = None
    stem_depth: int | tuple[int, ...] = 0
    periodic: bool = False
    pool: str = "class"
    head: str = "pooled"
    select: str = "norm"
    blur: int | str | None = None
    resampling: str = "convolution"
    subpixels: int = 1
    mlp_ratio: float = 4.0
    longest_wave: float | None = None
    wave_weight: float | None = None
    rotation_weight_scale: float | None = None
    max_distance: int | None = None
    window_reach: int | None = None
    epsilon: float | None = None
    dim_head: int | None = None
    kernel: str | AnyContentKernel = "squared_relu"
    num_features: int | None = None
    projection: str | None = None
    qkv_bias: bool = True
    dropout: float = 0.0
    backend: str = "auto"
    position_heads: int | None = None
    num_waves: int | None = None
    rotary_normalizer: str | None = None
    query_key: str = "plain"
    gate: bool = False
    value_convolution: int | None = None

    def __post_init__(self) -> None:
        sizes = ("in_channels", "num_classes", "patch_size", "subpixels")
        check_sizes({name: getattr(self, name) for name in sizes})
        if self.subpixels > 1 and not (self.periodic and self.head == "pooled"):
            expected = "1 without periodic=True, or with head='dense'"
            raise wrong_value("subpixels", self.subpixels, expected)
        stages = self.stages
        check_flags({"periodic": self.periodic})
        check_name("position", self.position, POSITIONS)
        check_name("pool", self.pool, POOLS)
        check_name("head", self.head, HEADS)
        check_name("select", self.select, ("norm", "learned"))
        check_name("resampling", self.resampling, RESAMPLINGS)
        if not isinstance(self.stem_layer, nn.Module):
            check_name("stem", self.stem_layer, STEMS)
        check_blur(self.blur, self.periodic)
        for stage in stages:
            check_tensor_sizes({"dim": stage.dim}, stage.dim**2)
        num_axes = len(self.image_size) if isinstance(self.image_size, Sequence) else 2
        first_dim = stages[0].dim
        num_weights = self.in_channels * first_dim * self.patch_size**num_axes
        check_tensor_sizes({"in_channels": self.in_channels, "dim": first_dim}, num_weights)
        check_tensor_sizes({"num_classes": self.num_classes, "dim": stages[-1].dim})
        self._check_downsampling_options()
        self._check_head_options()
        self.attention_options()  # Checks its values.
        self._check_position_options()

    @property
    def stages(self) -> list[StageSizes]:
        """Sizes of each stage."""
        options = {"dim": self.dim, "depth": self.depth, "heads": self.heads}
        sizes = {
            name: tuple(value) if isinstance(value, Sequence) else (value,)
            for name, value in options.items()
        }
        num_stages = max(map(len, sizes.values()))
        for name, values in sizes.items():
            if len(values) not in (1, num_stages):
                expected = f"one number, or one for each of {num_stages} stages"
                raise wrong_value(name, options[name], expected)
            for value in values or (None,):
                check_sizes({name: value}, most=MAX_NUM_BLOCKS if name == "depth" else MAX_SIZE)
        columns = [values * num_stages if len(values) == 1 else values for values in sizes.values()]
        return [StageSizes(*column) for column in zip(*columns, strict=True)]

    @property
    def stem_layer(self) -> str | nn.Module:
        """Option `stem`, or its default value, which depends on the patch size."""
        if self.stem is not None:
            return self.stem
        return "convolution" if self.patch_size == 1 else "patch"

    @property
    def num_position_aware_blocks(self) -> int:
        """Number of blocks of the last stage that use the positions of the tokens.

        If the logits come from a class token, the last block does not use positions, because it
        computes only the class token, which has no position. Otherwise, all blocks use them.
        """
        depth = self.stages[-1].depth
        return depth - 1 if self.pool == "class" and self.head == "pooled" else depth

    def attention_options(self) -> AttentionOptions:
        """Return the attention options, including the relative kernel."""
        relative = self.position if self.position in RELATIVES else None
        return AttentionOptions(**self.attention_options_except_relative(), relative=relative)

    def attention_options_except_relative(self) -> dict[str, Any]:
        """Return the attention options that all blocks share, except the relative kernel."""
        return {name: getattr(self, name) for name in ATTENTION_OPTIONS}

    def _check_downsampling_options(self) -> None:
        """Check the options of downsampling layers, which must be unset if the model has none."""
        stem = self.stem_layer
        num_stages = len(self.stages)
        if self.resampling == "attention" and num_stages == 1 and self.head != "dense":
            hint = "A model with one stage and head='pooled' has no layer that resamples tokens."
            raise wrong_value("resampling", self.resampling, "'convolution'", hint)
        has_sampling_stem = stem in ("polyphase_patch", *HALVING_STEMS) and self.patch_size > 1
        if num_stages == 1 and not has_sampling_stem:
            expected = "its default"
            hint = "A model with one stage and this stem has no layer that downsamples tokens."
            if self.select != "norm":
                raise wrong_value("select", self.select, expected, hint)
            if self.blur is not None:
                raise wrong_value("blur", self.blur, expected, hint)
        depths = self.stem_depth if isinstance(self.stem_depth, Sequence) else (self.stem_depth,)
        for depth in depths:
            check_sizes({"stem_depth": depth}, 0, most=MAX_NUM_BLOCKS)
        if self.stem_depth != 0 and stem not in HALVING_STEMS:
            expected = "0, except with stem='polyphase' or 'strided'"
            raise wrong_value("stem_depth", self.stem_depth, expected)
        if stem == "strided" and self.select != "norm":
            expected = "'norm' with stem='strided', which has a fixed offset"
            raise wrong_value("select", self.select, expected)

    def _check_head_options(self) -> None:
        """Check that pooling, patches and stages are compatible with the head of the model."""
        if self.head == "dense":
            if self.pool != "class":
                expected = "left out with head='dense', which does not pool"
                raise wrong_value("pool", self.pool, expected)
            if self.patch_size > 1 and self.stem_layer not in HALVING_STEMS:
                expected = "1 with head='dense', or stem='polyphase' or 'strided'"
                raise wrong_value("patch_size", self.patch_size, expected)
        elif self.pool == "class" and len(self.stages) > 1:
            expected = "'mean' or 'attention' with several stages"
            hint = (
                "A class token is not part of the grid, so it cannot be downsampled with the grid."
            )
            raise wrong_value("pool", self.pool, expected, hint)

    def _check_position_options(self) -> None:
        """Check that the model uses every option about positions that is set."""
        if self.num_position_aware_blocks == 0:
            for option in ("value_convolution", "window_reach"):
                if getattr(self, option) is not None:
                    expected = "None with depth=1 and pool='class'"
                    hint = "The logits would not depend on it."
                    raise wrong_value(option, getattr(self, option), expected, hint)
        for option, positions in POSITIONS_WITH.items():
            value = getattr(self, option)
            if value is not None and self.position not in positions:
                others = " or ".join(map(repr, positions))
                expected = f"None with position={self.position!r}"
                raise wrong_value(option, value, expected, f"It is an option of position={others}.")
