"""Routing Transformer on images: attention within clusters of queries and keys."""

import math
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import layer_norm, scaled_dot_product_attention

from reproduction.baselines.blocks import (
    ImageClassifier,
    ImageSize,
    join_heads,
    pre_norm_blocks,
    project_heads,
)
from teka.checks import check_sizes
from teka.errors import wrong_value
from teka.functional.shapes import Keys, Outputs, Queries, Values
from teka.precision import without_autocast

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
    """Softmax attention of the queries of a cluster to its keys, averaged over the clusters of a query.

    out_i = mean over clusters c with i ∈ Q_c of Σ_{j ∈ K_c} softmax_j(q_iᵀk_j / √d) v_j, and 0 for a query of no
    cluster. Q_c and K_c are the w = `cluster_size` queries and the w keys with the largest products with centroid c,
    all of one length. The cost is O(L c d + c w² d): O(L^1.5 d) for c = w = √L. Source: Roy et al. 2021, Algorithm 1
    without the causal mask; the mean as in the authors' code.
    """
    with torch.no_grad():
        query_places, key_places = (
            (centroid @ vectors.transpose(-1, -2))
            .topk(cluster_size, dim=-1)
            .indices.flatten(2)[..., None]
            for vectors in (query, key)
        )
    mixed = scaled_dot_product_attention(
        _gather(query, query_places, cluster_size),
        _gather(key, key_places, cluster_size),
        _gather(value, key_places, cluster_size),
        dropout_p=dropout,
    )
    mixed = mixed.unflatten(1, (query.shape[1], -1)).flatten(2, 3)
    total = torch.zeros_like(value, dtype=mixed.dtype).scatter_add(
        2, query_places.expand_as(mixed), mixed
    )
    count = mixed.new_zeros(*query.shape[:3], 1).scatter_add(
        2, query_places, torch.ones_like(mixed[..., :1])
    )
    return total / count.clamp(min=1)


class RoutingAttention(nn.Module):
    """`routed_attention` between learned projections, with centroids that follow the queries and keys.

    Queries and keys are normalised to the length √d by a layer norm without scale and bias. After each forward pass in
    training, with A_c the queries and keys of the whole batch whose largest product is with centroid c,

        μ_c ← λ μ_c + (1 − λ) mean(A_c),   λ = `decay`,

    and a centroid of none stays. Of the paper's sum over A_c the mean is taken, as in the authors' code, where moving
    sums are divided by moving counts: a sum grows with the batch. The centroids are a buffer: no gradient reaches them,
    and they are in the `state_dict`. The authors' commitment loss, 10⁻⁴ in their code, is left out.

    The factor 1/√d of the products is that of Vaswani et al. 2017; the authors' code scales queries before they are
    normalised, which has no effect. No linear map has a bias, as in that code. Centroids begin as normalised Gaussian
    vectors, as there, and the linear maps as PyTorch's.

    Source: Roy et al. 2021, Algorithm 1; their code, google-research/routing_transformer.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        num_clusters: int,
        cluster_size: int,
        decay: float = 0.999,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(
            {"dim": dim, "heads": heads, "num_clusters": num_clusters, "cluster_size": cluster_size}
        )
        if dim % heads or dim == heads:
            raise wrong_value(
                "heads", heads, f"a divisor of dim = {dim} below it; one number has no direction"
            )
        if not 0 <= decay <= 1:
            raise wrong_value("decay", decay, "between 0 and 1")
        self.dim_head, self.cluster_size, self.decay = dim // heads, cluster_size, decay
        self.query, self.key, self.value, self.output = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )
        self.dropout = nn.Dropout(dropout)
        self.centroid: Tensor
        self.register_buffer(
            "centroid", _normalize(torch.randn(heads, num_clusters, self.dim_head))
        )

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Attend, and in training move the centroids; a ValueError with fewer tokens than a cluster has."""
        if tokens.shape[1] < self.cluster_size:
            raise wrong_value(
                "cluster_size",
                self.cluster_size,
                f"at most the number of tokens = {tokens.shape[1]}",
            )
        query, key, value = (
            project_heads(one, tokens, self.dim_head) for one in (self.query, self.key, self.value)
        )
        query, key = _normalize(query), _normalize(key)
        centroid = self.centroid.to(query.dtype)
        dropout = self.dropout.p if self.training else 0.0
        mixed = routed_attention(query, key, value, centroid, self.cluster_size, dropout=dropout)
        if self.training:
            self.move_centroids(torch.cat([query, key], dim=2))
        return join_heads(self.output, mixed)

    @torch.no_grad()
    def move_centroids(self, vectors: Float[Tensor, "batch heads vectors dim_head"]) -> None:
        """Move each centroid a little to the mean of the normalised queries and keys that are assigned to it."""
        with without_autocast(vectors.device.type):  # sums over a batch do not fit half precision
            vectors = vectors.to(self.centroid.dtype).transpose(0, 1).flatten(1, 2)
            nearest = (vectors @ self.centroid.transpose(-1, -2)).argmax(dim=-1)
            clusters = torch.arange(self.centroid.shape[1], device=nearest.device)[:, None]
            assigned = (nearest[:, None] == clusters).to(vectors.dtype)
            count = assigned.sum(dim=-1, keepdim=True)
            mean = torch.where(count > 0, assigned @ vectors / count.clamp(min=1), self.centroid)
        self.centroid.lerp_(mean, 1 - self.decay)


class RoutingTransformer(ImageClassifier):
    """A vision transformer whose attention is `RoutingAttention`, with each pixel as a token.

    Without other arguments √L clusters of L / √L tokens, rounded: 32 of 32 at 32 × 32. Horn et al. 2021 say of theirs
    only that it has 11.4M parameters; these are the sizes of their Performers.

    A learned position for each row and one for each column are added to the tokens once, N(0, 1) at first, as in the
    authors' code for images. The logits are read from the mean of the tokens: a class token need not be in any cluster.
    All heads route; the authors' models of images have local heads beside them. Blocks are pre-norm with a GELU.
    Dropout is that of the Performers of Horn et al. 2021, A.2; that of Roy et al., 0.3 in their code for images, is for
    generating them.

    In evaluation a sample's logits do not depend on the others of its batch. In training they depend on them through
    the centroids, from the next step on.

    Source: Roy et al. 2021; Horn et al. 2021, Table 1.

    >>> import torch, teka
    >>> model = reproduction.baselines.RoutingTransformer(8, in_channels=3, num_classes=10, dim=16, depth=1, heads=2).eval()
    >>> images = torch.rand(4, 3, 8, 8)
    >>> torch.allclose(model(images)[:1], model(images[:1]), atol=1e-5)
    True

    Args:
        dim: Size of a token.
        depth: Number of blocks.
        heads: Number of heads, a divisor of dim.
        num_clusters: Number of clusters of a head, √L rounded by default.
        cluster_size: Number of queries, and of keys, of a cluster, L / num_clusters rounded up by default.
        decay: Share of a centroid that a training step keeps.
        mlp_ratio: Width of the MLPs' hidden layer over dim.
        dropout: Probability of dropping attention weights and numbers after the attention, the GELU and the MLP.
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
        num_clusters: int | None = None,
        cluster_size: int | None = None,
        decay: float = 0.999,
        mlp_ratio: float = 4.0,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(image_size, in_channels, num_classes)
        check_sizes({"dim": dim})
        num_tokens = math.prod(self.image_size)
        num_clusters = round(math.sqrt(num_tokens)) if num_clusters is None else num_clusters
        check_sizes({"num_clusters": num_clusters})
        cluster_size = (
            math.ceil(num_tokens / num_clusters) if cluster_size is None else cluster_size
        )
        if cluster_size > num_tokens:
            raise wrong_value(
                "cluster_size", cluster_size, f"at most the number of tokens = {num_tokens}"
            )
        height, width = self.image_size
        self.stem = nn.Conv2d(in_channels, dim, 1)
        self.row_embedding = Parameter(torch.randn(height, dim))
        self.column_embedding = Parameter(torch.randn(width, dim))
        clusters = {"num_clusters": num_clusters, "cluster_size": cluster_size}
        attention = partial(RoutingAttention, dim, heads, **clusters, decay=decay, dropout=dropout)
        self.blocks = pre_norm_blocks(attention, dim, depth, mlp_ratio=mlp_ratio, dropout=dropout)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def logits(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        position = self.row_embedding[:, None] + self.column_embedding
        tokens = (self.stem(images).permute(0, 2, 3, 1) + position).flatten(1, 2)
        return self.head(self.norm(self.blocks(tokens)).mean(dim=1))


def _gather(
    vectors: Float[Tensor, "batch heads tokens dim"],
    places: Int[Tensor, "batch heads places 1"],
    cluster_size: int,
) -> Float[Tensor, "batch heads_clusters cluster_size dim"]:
    """Vectors of each cluster, heads and clusters in one dimension, as the fused attention takes them."""
    gathered = vectors.gather(2, places.expand(-1, -1, -1, vectors.shape[-1]))
    return gathered.unflatten(2, (-1, cluster_size)).flatten(1, 2)


def _normalize(vectors: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
    """Vectors of mean 0 and length √d: on a sphere the nearest centroid has the largest product."""
    return layer_norm(vectors, vectors.shape[-1:])
