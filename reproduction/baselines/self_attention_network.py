"""The fully attentional network of Cordonnier et al. 2020."""

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reproduction.baselines.blocks import ImageClassifier, Images, ImageSize, Logits, PostNormBlock
from teka.checks import check_name, is_integer
from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn import Attention, EmbeddedBiasTable, LearnedRelativeKernel, SpaceToDepth, prune_heads
from teka.nn.relative import RelativeModule, inverse_softplus

POSITIONS = ("quadratic", "generalized_quadratic", "table")
INITIAL_PRECISION = 0.5  # α of a Gaussian with a standard deviation of one cell
PRECISION_NOISE = 0.01


def make_gaussian_or_table(
    position: str, *, heads: int, sides: tuple[int, ...], embedding_dim: int
) -> RelativeModule:
    """Create the relative kernel of a block, with the initial values of Cordonnier et al. 2020.

    Centers start from N(0, 2²) along every axis and Gaussians from a standard deviation of one
    cell. Σ^(−1/2) of a generalized Gaussian starts from 1 + N(0, 0.01²). Where the paper (§4.2,
    §4.3, A.1) leaves this open, the values are those of its code.

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
    """Post-norm blocks whose heads attend by position to whole tokens, and a mean over the tokens.

        image → normalized channels → 2 × 2 space to depth → linear → blocks → mean → linear

    A head averages the tokens with weights that depend only on their positions, and applies its own
    matrix of dim × dim. K² heads whose weights are 1 at one offset of a K × K window each, and 0
    elsewhere, compute any convolution (Theorem 1). With `content`, the weights are multiplied by a
    content kernel of queries and keys.

    The defaults are the paper's: 12,086,844 parameters for 10 classes and 3 channels with the
    quadratic position. As in the paper's code, values are the unprojected tokens, and a linear
    layer of dim × dim follows the heads. Two things differ from that code:

    - A batch normalization without parameters normalizes the channels; the code has the statistics
      of the data set.
    - Attention weights have no dropout, because the separable evaluation of "quadratic" and "table"
      does not compute the matrix of weights.

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
        dropout: Probability of dropping an element of a sublayer's output.
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
        sizes = {"dim": dim, "depth": depth, "downsampling": downsampling}
        super().__init__(image_size, in_channels, num_classes, **sizes)
        self.heads = (heads,) * depth if isinstance(heads, int) else tuple(heads)
        if len(self.heads) != depth or any(not is_integer(n) or n < 1 for n in self.heads):
            expected = f"a number of at least 1, or one for each of depth = {depth} blocks"
            raise wrong_value("heads", heads, expected)
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
            relative = make_gaussian_or_table(
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

    def attentions(self) -> tuple[Attention, ...]:
        """Return the attention of every block."""
        return tuple(block.attention for block in self.blocks if isinstance(block, PostNormBlock))

    def chosen_backends(self, batch: int = 1) -> tuple[str, ...]:
        """Return the names of the backends that compute the blocks."""
        backends = {layer.chosen_backend(self.grid, batch=batch) for layer in self.attentions()}
        return tuple(sorted(backends))

    def training_callbacks(self, run: Any, folder: Path) -> list[Any]:
        """Return the Lightning callback that records the heads in `heads.npz` after each epoch."""
        from reproduction.heads.record import HeadRecorder

        return [HeadRecorder(self, run, folder)]

    def without_heads(self, heads: Sequence[Iterable[int]]) -> "SelfAttentionNetwork":
        """Return a copy without some heads of each block, see `teka.nn.prune_heads`."""
        if len(heads) != len(self.blocks):
            expected = f"the heads to remove for each of {len(self.blocks)} blocks"
            raise wrong_value("heads", heads, expected)
        pruned = copy.deepcopy(self)
        for block, removed in zip(pruned.blocks, heads, strict=True):
            assert isinstance(block, PostNormBlock)
            block.attention = prune_heads(block.attention, removed)
        pruned.heads = tuple(attention.heads for attention in pruned.attentions())
        return pruned

    def logits(self, images: Images) -> Logits:
        tokens = self.stem(self.grid.flatten(self.downsampling(self.normalization(images))))
        for block in self.blocks:
            tokens = block(tokens, self.grid)
        return self.head(tokens.mean(dim=1))
