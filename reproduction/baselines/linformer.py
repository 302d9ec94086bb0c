"""Linformer on images: keys and values projected along the tokens to a fixed number."""

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import scaled_dot_product_attention

from reproduction.baselines.blocks import (
    ImageClassifier,
    ImageSize,
    join_heads,
    pre_norm_blocks,
    project_heads,
)
from teka.checks import check_name, check_sizes
from teka.errors import wrong_shape, wrong_value

TOKENS = ("pixel", "image")


class LinformerAttention(nn.Module):
    """softmax(Q (E K)ᵀ / √d) (F V) for every head, with E and F learned matrices of k × L.

    E and F belong to the layer and are shared by its heads ("headwise sharing"). They have a column for each token, so
    that the layer knows where tokens are, and takes no other number of them. The cost is O(L · k).

    Queries, keys and values have no bias, as in the implementation that Horn et al. used. Initialisation as in the code
    of Wang et al. (fairseq, examples/linformer): Xavier's uniform for all matrices, over √2 for all but the output's.

    Source: Wang et al. 2020, eq. 7 and "Parameter Sharing Between Projections".
    """

    def __init__(
        self, dim: int, heads: int, num_tokens: int, num_projected: int, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_sizes(
            {"dim": dim, "heads": heads, "num_tokens": num_tokens, "num_projected": num_projected}
        )
        if dim % heads:
            raise wrong_value("heads", heads, f"a divisor of dim = {dim}")
        self.dim_head, self.num_tokens = dim // heads, num_tokens
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.key_projection = Parameter(torch.empty(num_projected, num_tokens))
        self.value_projection = Parameter(torch.empty(num_projected, num_tokens))
        self.output = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        maps = (self.query.weight, self.key.weight, self.value.weight)
        for weight in (*maps, self.key_projection, self.value_projection):
            nn.init.xavier_uniform_(weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Attend; a ValueError if there are not as many tokens as the layer was made for."""
        if tokens.ndim != 3 or tuple(tokens.shape[1:]) != (self.num_tokens, self.query.in_features):
            raise wrong_shape(
                "tokens", tokens.shape, f"(batch, {self.num_tokens}, {self.query.in_features})"
            )
        mixed = scaled_dot_product_attention(
            project_heads(self.query, tokens, self.dim_head),
            self._project(self.key, self.key_projection, tokens),
            self._project(self.value, self.value_projection, tokens),
            dropout_p=self.dropout.p if self.training else 0.0,
        )
        return join_heads(self.output, mixed)

    def _project(
        self,
        linear: nn.Linear,
        projection: Float[Tensor, "k tokens"],
        tokens: Float[Tensor, "batch tokens dim"],
    ) -> Float[Tensor, "batch heads k dim_head"]:
        """Heads of E X W, with the product first that leaves fewer rows to the other."""
        if projection.shape[0] < self.num_tokens:
            return project_heads(linear, projection @ tokens, self.dim_head)
        return projection @ project_heads(linear, tokens, self.dim_head)


class Linformer(ImageClassifier):
    """A vision transformer whose attention is `LinformerAttention`.

    Two forms, by what a token is. `tokens="pixel"`: each pixel, and a class token, 1,025 at 32 × 32, the level at which
    the Performers of Horn et al. work. `tokens="image"`: the whole image in one linear map, and the class token. Their
    Linformer had these 2 tokens, of which it makes 64 keys; with depth=12 and dropout=0.0 this is it, 10,261,514
    parameters for 10 classes and 3 channels at 32 × 32 (10.2M in their Table 1).

    Each token, the class token too, has a learned position added to it. The class token is what the logits are read
    from. Blocks are pre-norm, as in Wang et al.'s code.

    Dropout is 0.1, of tokens with their positions, attention weights and what the blocks add, as in RoBERTa, which Wang
    et al. train (§5.1), and after the GELU. Positions and class token begin as N(0, 1), as in the code of Horn et al.;
    the attention as `LinformerAttention` says; the other linear maps as PyTorch's.

    Source: Wang et al. 2020; Horn et al. 2021, Table 1, and their notebook CNN/CIFAR10.ipynb; Dosovitskiy et al. 2021
    for the tokens.

    >>> import torch, teka
    >>> sizes = {"image_size": 8, "in_channels": 3, "num_classes": 10, "dim": 16, "depth": 1, "heads": 2}
    >>> model = reproduction.baselines.Linformer(**sizes, tokens="pixel", num_projected=4)  # 65 tokens attend to 4 keys
    >>> model(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])

    Args:
        tokens: What a token is: "pixel", or "image" for one token that holds all pixels.
        dim: Size of a token.
        depth: Number of blocks.
        heads: Number of heads, a divisor of dim.
        num_projected: Number of projected keys and values.
        mlp_ratio: Width of the MLPs' hidden layer over dim.
        dropout: Probability of dropping a number.
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
        mlp_ratio: float = 4.0,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(image_size, in_channels, num_classes)
        check_sizes({"dim": dim})
        check_name("tokens", tokens, TOKENS)
        patch_size = (1, 1) if tokens == "pixel" else self.image_size
        num_tokens = 1 + (math.prod(self.image_size) if tokens == "pixel" else 1)
        self.stem = nn.Conv2d(in_channels, dim, patch_size, patch_size)
        self.class_token = Parameter(torch.randn(dim))
        self.position_embedding = Parameter(torch.randn(num_tokens, dim))
        self.dropout = nn.Dropout(dropout)
        attention = partial(
            LinformerAttention, dim, heads, num_tokens, num_projected, dropout=dropout
        )
        self.blocks = pre_norm_blocks(attention, dim, depth, mlp_ratio=mlp_ratio, dropout=dropout)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def logits(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        tokens = self.stem(images).flatten(2).transpose(1, 2)
        tokens = torch.cat(
            [self.class_token.expand(tokens.shape[0], 1, -1).to(tokens.dtype), tokens], dim=1
        )
        tokens = self.blocks(self.dropout(tokens + self.position_embedding))
        return self.head(self.norm(tokens[:, 0]))
