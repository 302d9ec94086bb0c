"""The network of Cordonnier et al. 2020, which classifies images with attention alone."""

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reproduction.baselines.blocks import ImageClassifier, Images, ImageSize, Logits, PostNormBlock
from teka.checks import as_integer_tuple, check_name
from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn import Attention, EmbeddedBiasTable, LearnedRelativeKernel, SpaceToDepth, prune_heads
from teka.nn.relative import RelativeModule, inverse_softplus

POSITIONS = ("quadratic", "generalized_quadratic", "table")
INITIAL_PRECISION = 0.5  # α of a Gaussian with a standard deviation of one token
PRECISION_NOISE = 0.01


def make_relative_kernel(
    position: str, *, heads: int, sides: tuple[int, ...], embedding_dim: int
) -> RelativeModule:
    """Create the relative kernel of an attention layer, which determines where its heads attend.

    The attention weights of a head are either a Gaussian of the offset or given by a learned table.
    The initial values are those of Cordonnier et al. 2020 (§4.2, §4.3, A.1) and of their code: the
    centers of Gaussians are drawn from N(0, 2²) along every axis, and their standard deviation is
    one token. For Gaussians of any shape, the square root of the precision matrix is the identity
    plus N(0, 0.01²).

    Args:
        position: "quadratic", "generalized_quadratic" or "table".
        heads: Number of heads.
        sides: Number of tokens along each axis of the grid.
        embedding_dim: Size of the embeddings of a table, which has one for every offset on the
            grid.
    """
    check_name("position", position, POSITIONS)
    num_axes = len(sides)
    if position == "table":
        max_offset = max(*sides, 2) - 1
        return EmbeddedBiasTable(
            num_axes, heads, max_offset=max_offset, embedding_dim=embedding_dim
        )
    relative = LearnedRelativeKernel(position, num_axes=num_axes, heads=heads)
    with torch.no_grad():
        if position == "quadratic":
            relative.raw_precision.fill_(inverse_softplus(torch.tensor(INITIAL_PRECISION)))
        else:
            factor = relative.precision_factor
            factor.add_(PRECISION_NOISE * torch.randn_like(factor))
    return relative


class SelfAttentionNetwork(ImageClassifier):
    """An image classifier whose attention weights depend on relative token positions.

        image → normalized channels → 2 × 2 space to depth → linear → blocks → mean → linear

    A head averages the tokens with weights that depend only on their offset from the query, and
    multiplies the mean by its own matrix. Such heads can compute any K × K convolution: each of K²
    heads attends to one offset of the window (Theorem 1). With the option `content`, the weights
    also depend on queries and keys.

    The default options are those of the paper and give 12,086,844 parameters for 10 classes and 3
    channels. As in the paper's code, values are the tokens themselves, and a linear layer follows
    the heads. The network differs from that code in two details:

    - Channels are normalized by a batch normalization without parameters, instead of the mean and
      deviation of the data set.
    - Attention weights have no dropout, because the backend "toeplitz" does not compute them.

    Source: Cordonnier et al. 2020, §4, A.1 and A.4; their code, github.com/epfml/attention-cnn.

    >>> import torch
    >>> from reproduction.baselines import SelfAttentionNetwork
    >>> sizes = {"image_size": 8, "in_channels": 3, "num_classes": 10, "dim": 16, "depth": 1}
    >>> model = SelfAttentionNetwork(**sizes, heads=9, periodic=True).eval()
    >>> image = torch.rand(1, 3, 8, 8)
    >>> torch.allclose(model(image.roll(2, 3)), model(image), atol=1e-5)  # a token is 2 × 2 pixels
    True

    Args:
        image_size: Height and width of the images, or one number for both.
        in_channels: Number of channels of the images.
        num_classes: Number of logits.
        position: Relative kernel: "quadratic" (Gaussians around a learned offset),
            "generalized_quadratic" (Gaussians of any shape) or "table" (learned for rows and
            columns).
        content: Content kernel, such as "softmax", or None for attention by position alone.
        dim: Size of a token, of a head's values, and of its queries and keys.
        depth: Number of blocks.
        heads: Number of heads of every block, or one number for each block.
        mlp_ratio: Width of the hidden layer of the MLPs divided by `dim`.
        downsampling: Side in pixels of the blocks that become tokens, a divisor of height and
            width.
        periodic: Treat opposite edges of the image as neighbors.
        dropout: Dropout rate of the sublayer outputs.
        backend: Backend of the attention. "dense" evaluates every pair of tokens, as in the paper.
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
        super().__init__(
            image_size, in_channels, num_classes, dim=dim, depth=depth, downsampling=downsampling
        )
        expected = f"a positive integer, or one for each of depth = {depth} blocks"
        self.heads = as_integer_tuple("heads", heads, depth, 1, expected)
        if any(side % downsampling for side in self.image_size):
            expected = f"height and width, multiples of downsampling = {downsampling}"
            raise wrong_value("image_size", image_size, expected)
        height, width = (side // downsampling for side in self.image_size)
        self.grid = Grid((height, width), periodic=periodic)
        self.normalization = nn.BatchNorm2d(in_channels, affine=False)
        self.downsampling = SpaceToDepth(downsampling)
        self.stem = nn.Linear(in_channels * downsampling**2, dim)
        self.blocks = nn.ModuleList()
        for num_heads in self.heads:
            relative = make_relative_kernel(
                position, heads=num_heads, sides=self.grid.shape, embedding_dim=dim
            )
            attention = Attention(
                dim,
                num_heads,
                dim_head=dim,
                kernel="constant" if content is None else content,
                relative=relative,
                position_heads=0,
                values="tokens",
                backend=backend,
            )
            self.blocks.append(PostNormBlock(attention, mlp_ratio=mlp_ratio, dropout=dropout))
        self.head = nn.Linear(dim, num_classes)
        self.chosen_backends()  # raises an error if the backend cannot compute this model

    def attention_layers(self) -> tuple[Attention, ...]:
        """Return the attention layer of every transformer block."""
        return tuple(block.attention for block in self.blocks if isinstance(block, PostNormBlock))

    def chosen_backends(self, batch: int = 1) -> tuple[str, ...]:
        """Return the names of the backends that compute the attention, without repetitions."""
        backends = {
            layer.chosen_backend(self.grid, batch=batch) for layer in self.attention_layers()
        }
        return tuple(sorted(backends))

    def training_callbacks(self, run: Any, folder: Path) -> list[Any]:
        """Return the Lightning callback that records in `heads.npz` where the heads attend."""
        from reproduction.heads.record import HeadRecorder

        return [HeadRecorder(self, run, folder)]

    def copy_without_heads(self, heads: Sequence[Iterable[int]]) -> "SelfAttentionNetwork":
        """Return a copy of the network without some of its attention heads.

        Args:
            heads: Indices of the heads to remove, for each block.
        """
        pruned = copy.deepcopy(self)
        for block, removed in zip(pruned.blocks, heads, strict=True):
            assert isinstance(block, PostNormBlock)
            block.attention = prune_heads(block.attention, removed)
        pruned.heads = tuple(attention.heads for attention in pruned.attention_layers())
        return pruned

    def logits(self, images: Images) -> Logits:
        tokens = self.stem(self.grid.flatten(self.downsampling(self.normalization(images))))
        for block in self.blocks:
            tokens = block(tokens, self.grid)
        return self.head(tokens.mean(dim=1))
