"""The fully attentional network of Cordonnier et al.: self-attention that can do what convolutions do."""

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from reproduction.baselines.blocks import ImageClassifier, ImageSize, PostNormBlock
from teka.checks import MAX_NUM_BLOCKS, check_name, check_sizes
from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn import Attention, EmbeddedTable, RelativeKernel, SpaceToDepth, prune_heads
from teka.nn.relative import RelativeModule, inverse_softplus

POSITIONS = ("quadratic", "generalized_quadratic", "table")
INITIAL_PRECISION = (
    0.5  # α = ½ is a Gaussian of standard deviation 1, as Σ = 1 of the generalised one
)
PRECISION_NOISE = 0.01


def make_gaussian_or_table(
    position: str, *, heads: int, sides: tuple[int, ...], embedding_dim: int
) -> RelativeModule:
    """The relative kernel of a block on a grid of these sides, as it begins in Cordonnier et al. 2020, §4.2, 4.3, A.1.

    Centres begin as N(0, 2²) along every axis, Gaussians with a standard deviation of one cell, those of any shape with
    Σ^(−1/2) = 1 + N(0, 0.01²), and the table as `teka.nn.EmbeddedTable` says, with an embedding of every offset on the
    grid. Where the text leaves it open their code counts: 2 and 0.01 are standard deviations, and the width of the
    plain Gaussians.
    """
    check_name("position", position, POSITIONS)
    num_axes = len(sides)
    if position == "table":
        return EmbeddedTable(
            num_axes, heads, max_offset=max(*sides, 2) - 1, embedding_dim=embedding_dim
        )
    with torch.no_grad():
        if position == "quadratic":
            quadratic = RelativeKernel("quadratic", num_axes=num_axes, heads=heads)
            quadratic.raw_precision.copy_(
                inverse_softplus(torch.full_like(quadratic.raw_precision, INITIAL_PRECISION))
            )
            return quadratic
        generalized = RelativeKernel("generalized_quadratic", num_axes=num_axes, heads=heads)
        generalized.precision_factor.add_(
            PRECISION_NOISE * torch.randn_like(generalized.precision_factor)
        )
        return generalized


class SelfAttentionNetwork(ImageClassifier):
    """Post-norm blocks whose heads attend by position, to whole tokens; then a mean over the tokens.

        image → normalised channels → 2 × 2 invertible down-sampling → linear → blocks → mean → linear

    A head takes a mean of the tokens, with weights that depend on where they are alone, and has a matrix of dim × dim
    for it; with K² heads whose weights are 1 at the offsets of a K × K window and 0 elsewhere, that is any convolution
    (Theorem 1). With `content`, that of queries and keys is a factor of the weights.

    The defaults are the paper's: 12,086,844 parameters for 10 classes and 3 channels with the quadratic position. As in
    the paper's code values are the tokens, without a map, and a linear map of dim × dim follows the heads'; linear maps
    begin as PyTorch's. Channels have mean 0 and variance 1, there by the data set's statistics, here by a batch
    normalisation without parameters. Unlike there, nothing is dropped of the weights: the separable evaluation of the
    positions "quadratic" and "table" holds no matrix of them.

    Source: Cordonnier et al. 2020, §4, A.1 and A.4; their code, github.com/epfml/attention-cnn.

    >>> import torch, reproduction.baselines
    >>> sizes = {"image_size": 8, "in_channels": 3, "num_classes": 10, "dim": 16, "depth": 1}
    >>> model = reproduction.baselines.SelfAttentionNetwork(**sizes, heads=9, periodic=True).eval()
    >>> image = torch.rand(1, 3, 8, 8)
    >>> torch.allclose(model(image.roll(2, 3)), model(image), atol=1e-5)  # by a token, which is 2 × 2 pixels
    True

    Args:
        position: How weights depend on positions: "quadratic" (Gaussians about a learned offset),
            "generalized_quadratic" (Gaussians of any shape) or "table" (learned for rows and columns).
        content: Content kernel beside the position, such as "softmax", or None for attention by position alone.
        dim: Size of a token, of a head's values, and of its queries and keys.
        depth: Number of blocks.
        heads: Number of heads of every block, or one number for each block.
        mlp_ratio: Width of the MLPs' hidden layer over dim.
        downsampling: Side of the blocks of pixels that become tokens, a divisor of the image's height and width.
        periodic: Whether the image's edges meet, left and right, top and bottom.
        dropout: Probability of dropping a number that a block adds.
        backend: Backend of the attention; "dense" is the paper's evaluation, of every pair of tokens.
    """

    def __init__(
        self,
        image_size: ImageSize,
        in_channels: int,
        num_classes: int,
        *,
        position: str = "quadratic",
        content: str | None = None,
        dim: int = 400,
        depth: int = 6,
        heads: int | Sequence[int] = 9,
        mlp_ratio: float = 1.28,
        downsampling: int = 2,
        periodic: bool = False,
        dropout: float = 0.1,
        backend: str = "auto",
    ) -> None:
        super().__init__(image_size, in_channels, num_classes)
        check_sizes({"dim": dim, "downsampling": downsampling})
        check_sizes({"depth": depth}, most=MAX_NUM_BLOCKS)
        self.heads = (heads,) * depth if isinstance(heads, int) else tuple(heads)
        if len(self.heads) != depth or not all(
            isinstance(number, int) and number >= 1 for number in self.heads
        ):
            expected = f"a number of at least 1, or one for each of depth = {depth} blocks"
            raise wrong_value("heads", heads, expected)
        if any(side % downsampling for side in self.image_size):
            raise wrong_value(
                "image_size",
                image_size,
                f"height and width, multiples of downsampling = {downsampling}",
            )
        height, width = (side // downsampling for side in self.image_size)
        self.grid = Grid((height, width), periodic=periodic)
        self.normalization = nn.BatchNorm2d(in_channels, affine=False)
        self.downsampling = SpaceToDepth(downsampling)
        self.stem = nn.Linear(in_channels * downsampling**2, dim)
        self.blocks = nn.ModuleList()
        kernel = "constant" if content is None else content
        options: dict[str, Any] = {
            "dim_head": dim,
            "kernel": kernel,
            "values": "tokens",
            "backend": backend,
        }
        for own_heads in self.heads:
            relative = make_gaussian_or_table(
                position, heads=own_heads, sides=self.grid.shape, embedding_dim=dim
            )
            attention = Attention(
                dim, own_heads, **options | {"relative": relative, "position_heads": 0}
            )
            self.blocks.append(PostNormBlock(attention, mlp_ratio=mlp_ratio, dropout=dropout))
        self.head = nn.Linear(dim, num_classes)
        self.chosen_backends()  # a backend that cannot compute this model is an error now, not at the first image

    def attentions(self) -> tuple[Attention, ...]:
        """The attention of every block."""
        return tuple(block.attention for block in self.blocks if isinstance(block, PostNormBlock))

    def training_callbacks(self, run: Any, folder: Path) -> list[Any]:
        """Return the Lightning callback that records the heads in `heads.npz` after each epoch."""
        from reproduction.heads.record import HeadRecorder

        return [HeadRecorder(self, run, folder)]

    def chosen_backends(self, batch: int = 1) -> tuple[str, ...]:
        """Names of the backends that compute the blocks."""
        return tuple(
            sorted(
                {
                    attention.chosen_backend(self.grid, batch=batch)
                    for attention in self.attentions()
                }
            )
        )

    def without_heads(self, heads: Sequence[Iterable[int]]) -> "SelfAttentionNetwork":
        """This network without these heads of each block; this one stays as it is. `teka.nn.prune_heads` says more."""
        if len(heads) != len(self.blocks):
            raise wrong_value(
                "heads", heads, f"the heads to remove for each of {len(self.blocks)} blocks"
            )
        pruned = copy.deepcopy(self)
        for block, removed in zip(pruned.blocks, heads, strict=True):
            assert isinstance(block, PostNormBlock)
            block.attention = prune_heads(block.attention, removed)
        pruned.heads = tuple(attention.heads for attention in pruned.attentions())
        return pruned

    def logits(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        tokens = self.stem(self.grid.flatten(self.downsampling(self.normalization(images))))
        for block in self.blocks:
            tokens = block(tokens, self.grid)
        return self.head(tokens.mean(dim=1))
