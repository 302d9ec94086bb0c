"""Routing Transformer on images: attention within clusters of queries and keys."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import layer_norm, one_hot, pad, scaled_dot_product_attention

from reproduction.baselines.blocks import (
    ImageClassifier,
    Images,
    ImageSize,
    Logits,
    PreNormBlock,
    join_heads,
    project_heads,
)
from teka.errors import wrong_value
from teka.functional.shapes import Keys, Outputs, Queries, Values, Vectors
from teka.nn.inputs import Tokens
from teka.precision import without_autocast

DECAY = 0.999  # share of a centroid that a training step keeps
Centroids = Float[Tensor, "heads clusters dim_head"]


def routed_attention(
    query: Queries,
    key: Keys,
    value: Values,
    centroid: Centroids,
    cluster_size: int,
    *,
    dropout: float = 0.0,
) -> Outputs:
    """Compute softmax attention within clusters and average it over the clusters of a query.

        out_i = mean over clusters c with i ∈ Q_c of Σ_{j ∈ K_c} softmax_j(q_iᵀk_j / √d) v_j

    Q_c and K_c are the w = `cluster_size` queries and keys with the largest products with centroid
    c. All vectors have the same length. The output is 0 for a query in no cluster. The cost is
    O(L c d + c w² d), which is O(L^1.5 d) for c = w = √L.

    Source: Roy et al. 2021, Algorithm 1 without the causal mask; the mean as in the authors' code.
    """

    def gather(vectors: Tensor, members: Tensor) -> Tensor:
        # Heads and clusters share a dimension, because fused kernels need four dimensions.
        return vectors[:, :, None].take_along_dim(members[..., None], dim=3).flatten(1, 2)

    with torch.no_grad():
        query_members = (centroid @ query.mT).topk(cluster_size, dim=-1).indices
        key_members = (centroid @ key.mT).topk(cluster_size, dim=-1).indices
    outputs = scaled_dot_product_attention(
        gather(query, query_members),
        gather(key, key_members),
        gather(value, key_members),
        dropout_p=dropout,
    )
    # A column of ones counts the clusters of each query.
    outputs = pad(outputs, (0, 1), value=1.0).unflatten(1, (query.shape[1], -1)).flatten(2, 3)
    index = query_members.flatten(2)[..., None].expand_as(outputs)
    totals = outputs.new_zeros(*query.shape[:3], outputs.shape[-1]).scatter_add(2, index, outputs)
    return totals[..., :-1] / totals[..., -1:].clamp(min=1)


class RoutingAttention(nn.Module):
    """`routed_attention` between learned projections, with centroids that follow the tokens.

    A layer norm without scale and bias gives queries and keys the length √d. After each forward
    pass in training,

        μ_c ← λ μ_c + (1 − λ) mean(A_c),   λ = 0.999,

    where A_c are the queries and keys of the whole batch whose largest product is with centroid c.
    A centroid without such vectors does not move. The centroids are a buffer, without gradients.

    The paper has the sum over A_c, which grows with the batch; the authors' code divides moving
    sums by moving counts. The authors' commitment loss, with weight 10⁻⁴ in their code, is left
    out. Products are divided by √d as in Vaswani et al. 2017; the authors' code scales queries
    before they are normalized, which has no effect. No linear layer has a bias and centroids start
    as normalized Gaussian vectors, as in that code.

    Source: Roy et al. 2021, Algorithm 1; their code, google-research/routing_transformer.

    Args:
        dim: Size of a token.
        heads: Number of heads, a divisor of `dim` below it.
        num_clusters: Number of clusters of each head.
        cluster_size: Number of queries, and of keys, in each cluster.
        dropout: Probability of dropping an attention weight.
    """

    def __init__(
        self, dim: int, heads: int, num_clusters: int, cluster_size: int, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if dim % heads or dim == heads:
            expected = f"a divisor of dim = {dim} below it"
            raise wrong_value("heads", heads, expected, "Single numbers have no direction.")
        self.dim_head = dim // heads
        self.cluster_size = cluster_size
        self.dropout = dropout
        self.query, self.key, self.value, self.output = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )
        self.centroid: Tensor
        centroid = _normalize(torch.randn(heads, num_clusters, self.dim_head))
        self.register_buffer("centroid", centroid)

    def forward(self, tokens: Tokens) -> Tokens:
        """Attend, and move the centroids if the layer is in training mode."""
        query, key, value = (
            project_heads(linear, tokens, self.dim_head)
            for linear in (self.query, self.key, self.value)
        )
        query, key = _normalize(query), _normalize(key)
        outputs = routed_attention(
            query,
            key,
            value,
            self.centroid.to(query.dtype),
            self.cluster_size,
            dropout=self.dropout if self.training else 0.0,
        )
        if self.training:
            self.move_centroids(torch.cat([query, key], dim=2))
        return join_heads(self.output, outputs)

    @torch.no_grad()
    def move_centroids(self, vectors: Float[Tensor, "batch heads vectors dim_head"]) -> None:
        """Move each centroid towards the mean of the normalized vectors that it is nearest to."""
        with without_autocast(vectors.device.type):  # sums over a batch overflow half precision
            vectors = vectors.to(self.centroid.dtype).transpose(0, 1).flatten(1, 2)
            nearest = (vectors @ self.centroid.mT).argmax(dim=-1)
            assigned = one_hot(nearest, self.centroid.shape[1]).mT.to(vectors.dtype)
            count = assigned.sum(dim=-1, keepdim=True)
            mean = torch.where(count > 0, assigned @ vectors / count.clamp(min=1), self.centroid)
        self.centroid.lerp_(mean, 1 - DECAY)


class RoutingTransformer(ImageClassifier):
    """A vision transformer with `RoutingAttention` and one token per pixel.

    There are √L clusters of √L tokens, rounded: 32 of 32 for 32 × 32 pixels. Horn et al. 2021
    only say that their model has 11.4M parameters; the default sizes are those of their Performers.

    The embeddings of a token's row and column are added to it; they start from N(0, 1), as in the
    authors' code for images. The mean of the tokens gives the logits, because a class token need
    not be in any cluster. All heads route, whereas the authors' models of images also have local
    heads. Blocks are pre-norm with a GELU. The dropout is that of the Performers of Horn et al.
    2021, A.2.

    In evaluation, the logits of a sample do not depend on the rest of its batch. In training they
    do from the next step on, through the centroids.

    Source: Roy et al. 2021; Horn et al. 2021, Table 1.

    >>> import torch
    >>> from reproduction.baselines import RoutingTransformer
    >>> model = RoutingTransformer(8, 3, num_classes=10, dim=16, depth=1, heads=2).eval()
    >>> images = torch.rand(4, 3, 8, 8)
    >>> torch.allclose(model(images)[:1], model(images[:1]), atol=1e-5)
    True

    Args:
        image_size: Height and width of the images, or one number for both.
        in_channels: Number of channels of the images.
        num_classes: Number of logits.
        dim: Size of a token.
        depth: Number of blocks.
        heads: Number of heads, a divisor of `dim`.
        dropout: Probability of dropping attention weights and elements after the attention, the
            GELU and the MLP.
    """

    def __init__(
        self,
        image_size: ImageSize,
        in_channels: int,
        num_classes: int,
        *,
        dim: int = 256,
        depth: int = 6,
        heads: int = 8,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(image_size, in_channels, num_classes, dim=dim, depth=depth, heads=heads)
        height, width = self.image_size
        num_tokens = height * width
        num_clusters = round(math.sqrt(num_tokens))
        cluster_size = math.ceil(num_tokens / num_clusters)
        self.stem = nn.Conv2d(in_channels, dim, 1)
        self.row_embedding = Parameter(torch.randn(height, dim))
        self.column_embedding = Parameter(torch.randn(width, dim))
        self.blocks = nn.Sequential()
        for _ in range(depth):
            attention = RoutingAttention(dim, heads, num_clusters, cluster_size, dropout=dropout)
            self.blocks.append(PreNormBlock(attention, dim, dropout=dropout))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def logits(self, images: Images) -> Logits:
        position = self.row_embedding[:, None] + self.column_embedding
        tokens = (self.stem(images).permute(0, 2, 3, 1) + position).flatten(1, 2)
        return self.head(self.norm(self.blocks(tokens)).mean(dim=1))


def _normalize(vectors: Vectors) -> Vectors:
    """Give vectors mean 0 and length √d, so that the nearest centroid has the largest product."""
    return layer_norm(vectors, vectors.shape[-1:])
