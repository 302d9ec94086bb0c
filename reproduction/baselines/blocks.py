"""What the models are made of beside their attention: a classifier of images, pre-norm and post-norm blocks."""

from abc import abstractmethod
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from teka.checks import MAX_NUM_BLOCKS, check_image_size, check_sizes, check_tensor
from teka.functional.shapes import Outputs
from teka.grid import Grid
from teka.nn import Attention
from teka.nn.inputs import Tokens
from teka.nn.transformer_block import hidden_size, make_mlp

NORM_EPSILON = 1e-12
ImageSize = int | tuple[int, int]


class ImageClassifier(nn.Module):
    """Images of one size to logits; `logits` is what a model computes of images that have been checked."""

    def __init__(
        self, image_size: ImageSize, in_channels: int, num_classes: int, *, smallest: int = 1
    ) -> None:
        super().__init__()
        check_sizes({"in_channels": in_channels, "num_classes": num_classes})
        self.image_size, self.in_channels = (
            check_image_size("image_size", image_size, smallest=smallest),
            in_channels,
        )

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        """Logits of images; a ValueError if they have other channels or another size than the model was made for."""
        check_tensor("images", images, "batch", self.in_channels, *self.image_size)
        return self.logits(images)

    @abstractmethod
    def logits(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        """Logits of images of the right size."""


class PreNormBlock(nn.Module):
    """`teka.nn.TransformerBlock` for another attention: x + attention(norm(x)), then x + MLP(norm(x)) with a GELU."""

    def __init__(
        self, attention: nn.Module, dim: int, *, mlp_ratio: float = 4.0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = attention
        self.attention_dropout = nn.Dropout(dropout)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = make_mlp(dim, hidden_size(dim, mlp_ratio), dropout)

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        tokens = tokens + self.attention_dropout(self.attention(self.attention_norm(tokens)))
        return tokens + self.mlp(self.mlp_norm(tokens))


def pre_norm_blocks(
    make_attention: Callable[[], nn.Module],
    dim: int,
    depth: int,
    *,
    mlp_ratio: float,
    dropout: float,
) -> nn.Sequential:
    """Blocks one after another, each with an attention of its own."""
    check_sizes({"depth": depth}, most=MAX_NUM_BLOCKS)
    blocks = (
        PreNormBlock(make_attention(), dim, mlp_ratio=mlp_ratio, dropout=dropout)
        for _ in range(depth)
    )
    return nn.Sequential(*blocks)


class PostNormBlock(nn.Module):
    """x ← norm(x + W attention(x)), then norm(x + MLP(x)) with a GELU; W is a linear map as in Cordonnier et al.'s.

    Source: Vaswani et al. 2017; Devlin et al. 2019 (BERT), with its ε = 10⁻¹² of the norms.
    """

    def __init__(
        self, attention: Attention, *, mlp_ratio: float = 4.0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        dim = attention.dim
        hidden = hidden_size(dim, mlp_ratio, round)
        self.attention = attention
        self.attention_output = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))
        self.attention_norm = nn.LayerNorm(dim, eps=NORM_EPSILON)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim), nn.Dropout(dropout)
        )
        self.mlp_norm = nn.LayerNorm(dim, eps=NORM_EPSILON)

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid
    ) -> Float[Tensor, "batch tokens dim"]:
        tokens = self.attention_norm(tokens + self.attention_output(self.attention(tokens, grid)))
        return self.mlp_norm(tokens + self.mlp(tokens))


def project_heads(
    linear: nn.Module, tokens: Tokens, dim_head: int
) -> Float[Tensor, "batch heads tokens dim_head"]:
    """Project tokens and split the result into heads of size `dim_head`."""
    return linear(tokens).unflatten(-1, (-1, dim_head)).transpose(1, 2)


def join_heads(linear: nn.Module, heads: Outputs) -> Tokens:
    """Concatenate the heads of each token and project them."""
    return linear(heads.transpose(1, 2).flatten(2))
