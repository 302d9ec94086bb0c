"""Routing Transformer for images: attention within clusters of similar queries and keys."""

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

DECAY = 0.999  # decay rate of the moving average of the centroids
Centroids = Float[Tensor, "heads clusters dim_head"]


def clustered_attention(
    query: Queries,
    key: Keys,
    value: Values,
    centroid: Centroids,
    cluster_size: int,
    *,
    dropout: float = 0.0,
) -> Outputs:
    """Compute softmax attention within clusters of similar queries and keys.

    A cluster consists of the w = `cluster_size` queries and the w keys with the largest inner
    products with its centroid. A query attends to the keys of its cluster. If a query belongs to
    several clusters, their outputs are averaged. If it belongs to no cluster, its output is 0.

    The cost of n clusters is O(n L d + n w² d), which is O(L^1.5 d) for n = w = √L.

    Source: Roy et al. 2021, Algorithm 1 without the causal mask; the mean as in the authors' code.

    Args:
        query: Queries. All queries and keys must have the same length.
        key: Keys.
        value: Values.
        centroid: Centroid of each cluster for each head.
        cluster_size: Number of queries, and of keys, in each cluster.
        dropout: Dropout rate of the attention weights.
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
    """Multi-head attention within clusters of similar queries and keys.

    Each cluster has a centroid. After each forward pass in training, the centroid μ moves toward
    the mean of the set A of queries and keys of the batch that are nearest to it:

        μ ← λ μ + (1 − λ) mean(A),   λ = 0.999.

    If the set is empty, the centroid does not move. The centroids are a buffer, without gradients.
    A layer norm without scale and bias gives all queries and keys the length √d.

    The layer differs from the paper in three ways:

    - It uses the mean over A instead of the sum, because the sum grows with the batch.
    - It has no commitment loss, which has the weight 10⁻⁴ in the authors' code.
    - Inner products are divided by √d as in Vaswani et al. 2017, because the scaling of queries in
      the authors' code has no effect before their normalization.

    As in that code, no linear layer has a bias, and centroids are initialized as normalized
    Gaussian vectors.

    Source: Roy et al. 2021, Algorithm 1; their code, google-research/routing_transformer.

    Args:
        dim: Size of a token.
        heads: Number of heads, a divisor of `dim` that is smaller than `dim`.
        num_clusters: Number of clusters of each head.
        cluster_size: Number of queries, and of keys, in each cluster.
        dropout: Dropout rate of the attention weights.
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
        centroid = _normalize_vectors(torch.randn(heads, num_clusters, self.dim_head))
        self.register_buffer("centroid", centroid)

    def forward(self, tokens: Tokens) -> Tokens:
        """Return the attention outputs. In training mode, also update the centroids."""
        query, key, value = (
            project_heads(linear, tokens, self.dim_head)
            for linear in (self.query, self.key, self.value)
        )
        query, key = _normalize_vectors(query), _normalize_vectors(key)
        outputs = clustered_attention(
            query,
            key,
            value,
            self.centroid.to(query.dtype),
            self.cluster_size,
            dropout=self.dropout if self.training else 0.0,
        )
        if self.training:
            self.update_centroids(torch.cat([query, key], dim=2))
        return join_heads(self.output, outputs)

    @torch.no_grad()
    def update_centroids(self, vectors: Float[Tensor, "batch heads vectors dim_head"]) -> None:
        """Move each centroid toward the mean of the normalized vectors nearest to it."""
        with without_autocast(vectors.device.type):  # sums over a batch overflow half precision
            vectors = vectors.to(self.centroid.dtype).transpose(0, 1).flatten(1, 2)
            nearest = (vectors @ self.centroid.mT).argmax(dim=-1)
            assigned = one_hot(nearest, self.centroid.shape[1]).mT.to(vectors.dtype)
            count = assigned.sum(dim=-1, keepdim=True)
            mean = torch.where(count > 0, assigned @ vectors / count.clamp(min=1), self.centroid)
        self.centroid.lerp_(mean, 1 - DECAY)


class RoutingTransformer(ImageClassifier):
    """A vision transformer in which each pixel attends only to a cluster of similar pixels.

    Every pixel is a token. L tokens form √L clusters of √L tokens, for example 32 clusters of 32
    tokens for an image of 32 × 32 pixels. The default sizes and the default dropout are those of
    the Performers of Horn et al. 2021 (A.2). The paper does not give the sizes of its Routing
    Transformer, which has 11.4M parameters.

    Learned embeddings of the row and the column are added to each token. They are initialized from
    N(0, 1), as in the authors' code for images. The logits are computed from the mean of all
    tokens, because a class token might be in no cluster. All heads attend within clusters, whereas
    the authors' models for images also have heads that attend to nearby pixels.

    In evaluation, the logits of a sample do not depend on the rest of its batch. In training, they
    depend on earlier batches through the centroids.

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
        dropout: Dropout rate of the attention weights and after the attention, the GELU and the
            MLP.
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


def _normalize_vectors(vectors: Vectors) -> Vectors:
    """Normalize vectors to mean 0 and length √d."""
    return layer_norm(vectors, vectors.shape[-1:])
