import math

import pytest
import torch
from torch import Tensor

from reproduction.baselines import RoutingTransformer
from reproduction.baselines.routing_transformer import RoutingAttention, clustered_attention
from reproduction.flops import make_flop_counter
from tests.contracts.cases import relative_error


def draw_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def cluster_members(vectors: Tensor, centroid: Tensor, cluster_size: int) -> Tensor:
    """Return a mask (B, H, c, L) of the tokens in each cluster (the w largest products)."""
    products = torch.einsum("hcd,bhld->bhcl", centroid, vectors)
    return (products[..., None, :] > products[..., None]).sum(-1) < cluster_size


def dense_routing_attention(
    query: Tensor, key: Tensor, value: Tensor, centroid: Tensor, cluster_size: int
) -> Tensor:
    """Compute attention over all pairs, masked to the pairs within each cluster."""
    query_members, key_members = (
        cluster_members(vectors, centroid, cluster_size) for vectors in (query, key)
    )
    logits = (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]))[:, :, None]
    weights = logits.masked_fill(~key_members[..., None, :], -math.inf).softmax(-1)
    outputs = (weights @ value[:, :, None]) * query_members[..., None]
    return outputs.sum(2) / query_members.sum(2).clamp(min=1)[..., None]


def build(**options) -> RoutingTransformer:
    torch.manual_seed(0)
    return RoutingTransformer((5, 7), 3, 10, **{"dim": 12, "depth": 2, "heads": 3, **options})


@pytest.mark.parametrize(
    ("num_clusters", "cluster_size"),
    [
        pytest.param(3, 5, id="some tokens are in no cluster"),
        pytest.param(7, 2, id="many small clusters"),
        pytest.param(5, 11, id="tokens are in several clusters"),
    ],
)
def test_clustered_attention_equals_dense_in_values_and_gradients(
    num_clusters: int, cluster_size: int
):
    query, key = (draw_normal(2, 3, 17, 4, seed=seed).requires_grad_() for seed in (1, 2))
    value, centroid = (
        draw_normal(2, 3, 17, 5, seed=3).requires_grad_(),
        draw_normal(3, num_clusters, 4, seed=4),
    )
    found = clustered_attention(query, key, value, centroid, cluster_size)
    expected = dense_routing_attention(query, key, value, centroid, cluster_size)
    assert relative_error(found, expected) < 1e-12
    weight = draw_normal(2, 3, 17, 5, seed=5)
    for gradient, expected_gradient in zip(
        torch.autograd.grad((weight * found).sum(), (query, key, value)),
        torch.autograd.grad((weight * expected).sum(), (query, key, value)),
        strict=True,
    ):
        assert relative_error(gradient, expected_gradient) < 1e-10


def test_tokens_without_cluster_give_0_and_one_cluster_is_softmax():
    query, key, value, centroid = (
        draw_normal(2, 3, size, 4, seed=size) for size in (11, 11, 11, 2)
    )
    centroid = centroid[0]
    outside = ~cluster_members(query, centroid, 3).any(2)
    assert outside.any()
    assert not clustered_attention(query, key, value, centroid, 3)[outside].any()
    weights = (query @ key.transpose(-1, -2) / 2).softmax(-1)
    assert (
        relative_error(clustered_attention(query, key, value, centroid[:, :1], 11), weights @ value)
        < 1e-12
    )


def test_layer_normalizes_and_routes_queries_and_keys():
    torch.manual_seed(0)
    layer = RoutingAttention(12, 3, num_clusters=4, cluster_size=5).double().eval()
    tokens = draw_normal(2, 17, 12)
    query, key, value = (
        part(tokens).unflatten(-1, (3, 4)).transpose(1, 2)
        for part in (layer.query, layer.key, layer.value)
    )
    query, key = (
        (part - part.mean(-1, True)) / (part.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        for part in (query, key)
    )
    mixed = dense_routing_attention(query, key, value, layer.centroid, 5)
    assert relative_error(layer(tokens), layer.output(mixed.transpose(1, 2).flatten(2))) < 1e-12


def test_initial_centroids_have_the_norm_of_queries_and_keys():
    layer = RoutingAttention(24, 3, num_clusters=5, cluster_size=2)
    torch.testing.assert_close(
        layer.centroid.norm(dim=-1), torch.full((3, 5), math.sqrt(8)), rtol=1e-3, atol=0
    )
    assert layer.centroid.mean(-1).abs().max() < 1e-6


def test_centroid_moves_towards_the_mean_of_the_nearest_vectors(monkeypatch):
    monkeypatch.setattr("reproduction.baselines.routing_transformer.DECAY", 0.75)
    layer = RoutingAttention(8, 2, num_clusters=13, cluster_size=2).double()
    before, vectors = layer.centroid.clone(), draw_normal(3, 2, 5, 4)
    layer.update_centroids(vectors)
    moved = 0
    for head in range(2):
        nearest = [
            int((before[head] @ vector).argmax()) for vector in vectors[:, head].flatten(0, 1)
        ]
        for cluster in range(13):
            is_assigned = torch.tensor(nearest) == cluster
            expected = before[head, cluster]
            if is_assigned.any():
                mean = vectors[:, head].flatten(0, 1)[is_assigned].mean(dim=0)
                expected = 0.75 * expected + 0.25 * mean
                moved += 1
            torch.testing.assert_close(layer.centroid[head, cluster], expected)
    assert 0 < moved < 26


def test_centroids_move_only_in_training_and_after_the_forward_pass():
    model, images = build(dropout=0.0).double(), draw_normal(3, 3, 5, 7)
    names = [name for name, _ in model.named_buffers()]
    assert names == ["blocks.0.attention.centroid", "blocks.1.attention.centroid"]
    assert set(names) <= set(model.state_dict())
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    evaluated = model.eval()(images)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert relative_error(model.train()(images), evaluated) < 1e-12
    assert all(not torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_other_images_of_a_batch_change_the_next_training_step(monkeypatch):
    monkeypatch.setattr("reproduction.baselines.routing_transformer.DECAY", 0.0)
    images, others = draw_normal(2, 3, 5, 7), draw_normal(2, 3, 5, 7, seed=1)
    alone, together = (build(dropout=0.0).double() for _ in range(2))
    first = alone(images), together(torch.cat([images, others]))[:2]
    assert relative_error(*first) < 1e-12
    assert relative_error(alone(images), together(images)) > 1e-6


@pytest.mark.parametrize(
    ("size", "num_clusters", "cluster_size"),
    [
        pytest.param(32, 32, 32, id="32 clusters of 32 at 32 × 32"),
        pytest.param(14, 14, 14, id="14 clusters of 14 at 14 × 14"),
        pytest.param((5, 7), 6, 6, id="rounded at 5 × 7"),
    ],
)
def test_default_number_of_clusters_is_about_the_cluster_size(size, num_clusters, cluster_size):
    layer = RoutingTransformer(size, 1, 10, dim=4, depth=1, heads=2).blocks.get_submodule(
        "0.attention"
    )
    assert isinstance(layer, RoutingAttention)
    assert layer.centroid.shape == (2, num_clusters, 2)
    assert layer.cluster_size == cluster_size


def test_number_of_parameters_equals_the_formula():
    with torch.device("meta"):
        model = RoutingTransformer(32, 3, 10)
    layer = 4 * 256**2 + 2 * 256 * 1024 + 1024 + 256 + 4 * 256
    expected = 3 * 256 + 256 + 2 * 32 * 256 + 6 * layer + 2 * 256 + 2570
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_flops_equal_the_formula():
    num_tokens, dim, heads, clusters, size = 35, 12, 3, 6, 6
    attention = 4 * num_tokens * dim**2  # queries, keys, values and output
    attention += (
        2 * clusters * num_tokens * dim
    )  # products of queries and of keys with the centroids
    attention += 2 * clusters * size**2 * dim  # logits and their sums, in all heads
    mlp = 2 * num_tokens * dim * 4 * dim
    expected = 2 * (num_tokens * 3 * dim + 2 * (attention + mlp) + dim * 10)
    model = build(heads=heads).eval()
    with make_flop_counter() as counter:
        model(torch.zeros(1, 3, 5, 7))
    assert counter.get_total_flops() == expected


def test_invalid_numbers_of_heads_are_errors():
    with pytest.raises(ValueError, match=r"heads must be a divisor of dim = 12 below it.*got 12"):
        build(heads=12)
