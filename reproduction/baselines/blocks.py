"""Building blocks of the baseline models: a base class, transformer blocks and head reshaping."""

from jaxtyping import Float
from torch import Tensor, nn

from teka.checks import MAX_NUM_BLOCKS, check_image_size, check_sizes, check_tensor
from teka.functional.shapes import Outputs
from teka.grid import Grid
from teka.nn import Attention
from teka.nn.inputs import Tokens
from teka.nn.transformer_block import compute_mlp_width, make_mlp

NORM_EPSILON = 1e-12
ImageSize = int | tuple[int, int]
Images = Float[Tensor, "batch channels height width"]
Logits = Float[Tensor, "batch classes"]


class ImageClassifier(nn.Module):
    """Base class for image classifiers with a fixed image size.

    Subclasses define the method `logits`. Calling the model also checks the shape of the images.

    Args:
        image_size: Height and width of the images, or one number for both.
        in_channels: Number of channels of the images.
        num_classes: Number of logits.
        smallest: Smallest height and width that the model supports.
        depth: Number of blocks.
        sizes: Other sizes to check, which must be positive integers.
    """

    def __init__(
        self,
        image_size: ImageSize,
        in_channels: int,
        num_classes: int,
        *,
        smallest: int = 1,
        depth: int = 1,
        **sizes: int,
    ) -> None:
        super().__init__()
        check_sizes({"in_channels": in_channels, "num_classes": num_classes, **sizes})
        check_sizes({"depth": depth}, most=MAX_NUM_BLOCKS)
        self.image_size = check_image_size("image_size", image_size, smallest=smallest)
        self.in_channels = in_channels

    def forward(self, images: Images) -> Logits:
        """Check the shape of the images, and return their logits."""
        check_tensor("images", images, "batch", self.in_channels, *self.image_size)
        return self.logits(images)

    def logits(self, images: Images) -> Logits:
        """Return the logits of images. Subclasses define this method."""
        raise NotImplementedError


class PreNormBlock(nn.Module):
    """A pre-norm transformer block with an arbitrary attention module.

    It computes x ← x + attention(norm(x)), then x ← x + MLP(norm(x)).

    Args:
        attention: Module that maps tokens to tokens.
        dim: Size of a token.
        dropout: Dropout rate after the attention and within the MLP.
    """

    def __init__(self, attention: nn.Module, dim: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = attention
        self.attention_dropout = nn.Dropout(dropout)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = make_mlp(dim, 4 * dim, dropout)

    def forward(self, tokens: Tokens) -> Tokens:
        tokens = tokens + self.attention_dropout(self.attention(self.attention_norm(tokens)))
        return tokens + self.mlp(self.mlp_norm(tokens))


class PostNormBlock(nn.Module):
    """A post-norm transformer block with a linear layer W after the attention.

    It computes x ← norm(x + W attention(x)), then x ← norm(x + MLP(x)), as in the code of
    Cordonnier et al. 2020. The layer norms add ε = 10⁻¹² to the variance.

    Source: Vaswani et al. 2017; Devlin et al. 2019 (BERT).

    Args:
        attention: Attention layer.
        mlp_ratio: Width of the hidden layer of the MLP divided by the size of a token.
        dropout: Dropout rate of the outputs of W and the MLP.
    """

    def __init__(
        self, attention: Attention, *, mlp_ratio: float = 4.0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        dim = attention.dim
        hidden = compute_mlp_width(dim, mlp_ratio, round)
        self.attention = attention
        self.attention_output = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))
        self.attention_norm = nn.LayerNorm(dim, eps=NORM_EPSILON)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim), nn.Dropout(dropout)
        )
        self.mlp_norm = nn.LayerNorm(dim, eps=NORM_EPSILON)

    def forward(self, tokens: Tokens, grid: Grid) -> Tokens:
        tokens = self.attention_norm(tokens + self.attention_output(self.attention(tokens, grid)))
        return self.mlp_norm(tokens + self.mlp(tokens))


def project_heads(linear: nn.Module, tokens: Tokens, dim_head: int) -> Outputs:
    """Apply a linear layer to tokens, and split its outputs into heads of size `dim_head`."""
    return linear(tokens).unflatten(-1, (-1, dim_head)).transpose(1, 2)


def join_heads(linear: nn.Module, heads: Outputs) -> Tokens:
    """Concatenate the heads of each token, and apply a linear layer to them."""
    return linear(heads.transpose(1, 2).flatten(2))
