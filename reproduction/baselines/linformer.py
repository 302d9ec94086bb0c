"""Linformer for images, which attends to a fixed number of combined keys and values."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import scaled_dot_product_attention

from reproduction.baselines.blocks import (
    ImageClassifier,
    Images,
    ImageSize,
    Logits,
    PreNormBlock,
    join_heads,
    project_heads,
)
from teka.checks import check_name
from teka.errors import wrong_value
from teka.functional.shapes import Values
from teka.nn.inputs import Tokens


class LinformerAttention(nn.Module):
    """Softmax attention to k learned combinations of the L tokens instead of all tokens.

    This reduces the cost from O(L²) to O(L k). The output of a head is

        softmax(Q (E K)ᵀ / √d) (F V),

    where the learned matrices E and F of shape (k, L) combine the keys K and the values V of all
    tokens. All heads share E and F ("headwise sharing"). The layer accepts exactly L tokens.

    Queries, keys and values have no bias, as in the code of Horn et al. The initial weights are
    those of the authors' code (fairseq, examples/linformer): Xavier uniform, divided by √2 for all
    matrices except the output matrix.

    Source: Wang et al. 2020, eq. 7 and "Parameter Sharing Between Projections".

    Args:
        dim: Size of a token.
        heads: Number of heads, a divisor of `dim`.
        num_tokens: Number of tokens L.
        num_projected: Number of projected keys and values k.
        dropout: Dropout rate of the attention weights.
    """

    def __init__(
        self, dim: int, heads: int, num_tokens: int, num_projected: int, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if dim % heads:
            raise wrong_value("heads", heads, f"a divisor of dim = {dim}")
        self.dim_head = dim // heads
        self.dropout = dropout
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.key_projection = Parameter(torch.empty(num_projected, num_tokens))
        self.value_projection = Parameter(torch.empty(num_projected, num_tokens))
        self.output = nn.Linear(dim, dim)
        for weight in (
            self.query.weight,
            self.key.weight,
            self.value.weight,
            self.key_projection,
            self.value_projection,
        ):
            nn.init.xavier_uniform_(weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, tokens: Tokens) -> Tokens:
        outputs = scaled_dot_product_attention(
            project_heads(self.query, tokens, self.dim_head),
            self._project_along_tokens(self.key, self.key_projection, tokens),
            self._project_along_tokens(self.value, self.value_projection, tokens),
            dropout_p=self.dropout if self.training else 0.0,
        )
        return join_heads(self.output, outputs)

    def _project_along_tokens(
        self, linear: nn.Linear, projection: Float[Tensor, "k tokens"], tokens: Tokens
    ) -> Values:
        """Combine the keys or values of all tokens into k keys or values with learned weights.

        The linear layer and the combination of tokens are applied in the cheaper order.
        """
        if projection.shape[0] < projection.shape[1]:
            return project_heads(linear, projection @ tokens, self.dim_head)
        return projection @ project_heads(linear, tokens, self.dim_head)


class Linformer(ImageClassifier):
    """A vision transformer with Linformer attention.

    A token is a pixel or the whole image. The logits are computed from a class token.

    - With `tokens="pixel"`, each pixel is a token, as in the Performers of Horn et al. 2021.
    - With `tokens="image"`, the whole image is one token. Horn et al. trained this variant with
      `depth=12, dropout=0.0`. It has 10,261,514 parameters for 10 classes and 3 channels of 32 × 32
      pixels (10.2M in their Table 1).

    A learned position embedding is added to each token. Blocks are pre-norm, as in the code of Wang
    et al. Dropout is applied to the embedded tokens, the attention weights, the hidden layers and
    the outputs of attention and MLP, as in RoBERTa, which Wang et al. train (§5.1). Position
    embeddings and class token are initialized from N(0, 1), as in the code of Horn et al.

    Source: Wang et al. 2020; Horn et al. 2021, Table 1, and their notebook CNN/CIFAR10.ipynb;
    Dosovitskiy et al. 2021 for the tokens.

    >>> import torch
    >>> from reproduction.baselines import Linformer
    >>> sizes = {"dim": 16, "depth": 1, "heads": 2}
    >>> model = Linformer(8, 3, 10, **sizes, num_projected=4)  # 65 tokens attend to 4 keys
    >>> model(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])

    Args:
        image_size: Height and width of the images, or one number for both.
        in_channels: Number of channels of the images.
        num_classes: Number of logits.
        tokens: "pixel" for one token per pixel, or "image" for one token that holds all pixels.
        dim: Size of a token.
        depth: Number of blocks.
        heads: Number of heads, a divisor of `dim`.
        num_projected: Number of projected keys and values.
        dropout: Dropout rate.
    """

    def __init__(
        self,
        image_size: ImageSize,
        in_channels: int,
        num_classes: int,
        *,
        tokens: str = "pixel",
        dim: int = 256,
        depth: int = 6,
        heads: int = 8,
        num_projected: int = 64,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(
            image_size,
            in_channels,
            num_classes,
            dim=dim,
            depth=depth,
            heads=heads,
            num_projected=num_projected,
        )
        check_name("tokens", tokens, ("pixel", "image"))
        patch_size = (1, 1) if tokens == "pixel" else self.image_size
        num_tokens = 1 + math.prod(self.image_size) // math.prod(patch_size)
        self.stem = nn.Conv2d(in_channels, dim, patch_size, patch_size)
        self.class_token = Parameter(torch.randn(dim))
        self.position_embedding = Parameter(torch.randn(num_tokens, dim))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential()
        for _ in range(depth):
            attention = LinformerAttention(dim, heads, num_tokens, num_projected, dropout=dropout)
            self.blocks.append(PreNormBlock(attention, dim, dropout=dropout))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def logits(self, images: Images) -> Logits:
        tokens = self.stem(images).flatten(2).transpose(1, 2)
        class_tokens = self.class_token.expand(len(tokens), 1, -1).to(tokens.dtype)
        tokens = torch.cat([class_tokens, tokens], dim=1)
        tokens = self.blocks(self.dropout(tokens + self.position_embedding))
        return self.head(self.norm(tokens[:, 0]))
