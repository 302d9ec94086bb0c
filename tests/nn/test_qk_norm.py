"""Normalization of queries and keys."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from teka import Grid
from teka.nn import Attention
from teka.nn.qk_norm import QUERY_KEYS, KeyCentering, QueryKeyRMSNorm, make_query_key_norm
from tests.contracts.cases import relative_error


def draw(heads: int = 3, tokens: int = 7, dim: int = 5, seed: int = 1) -> Tensor:
    return torch.randn(
        2, heads, tokens, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def build(**options: Any) -> Attention:
    torch.manual_seed(0)
    options = {"relative": None, **options}
    return Attention(12, 3, **options).double().eval()


@pytest.mark.parametrize("query_key", QUERY_KEYS)
def test_queries_and_keys_keep_their_shapes(query_key: str):
    module = make_query_key_norm(query_key, 3, 5).double()
    query, key = module(draw(tokens=7), draw(tokens=11), None)
    assert query.shape == (2, 3, 7, 5)
    assert key.shape == (2, 3, 11, 5)


def test_normalized_vectors_keep_their_direction():
    module = QueryKeyRMSNorm(3, 5).double()
    one = torch.ones((), dtype=torch.float64)
    inputs = (draw(), draw(seed=2))
    for vectors, normalized in zip(inputs, module(*inputs, None), strict=True):
        assert torch.allclose(normalized.square().mean(dim=-1), one, atol=1e-12)
        assert torch.allclose(torch.cosine_similarity(normalized, vectors, dim=-1), one)
    nn.init.normal_(module.key_gain)
    scaled = module(*inputs, None)[1]
    unscaled = QueryKeyRMSNorm(3, 5).double()(*inputs, None)[1]
    assert torch.allclose(scaled / module.key_gain, unscaled)


def test_a_normalized_layer_does_not_depend_on_the_size_of_queries_and_keys():
    layer = build(query_key="normalized", kernel="softmax", qkv_bias=False)
    tokens = torch.randn(2, 7, 12, dtype=torch.float64)
    before = layer(tokens)
    with torch.no_grad():
        for linear in (layer.query, layer.key):
            assert linear is not None
            linear.weight.mul_(100)
    assert relative_error(layer(tokens), before) < 1e-10


@pytest.mark.parametrize(("kernel", "acts"), [("softmax", True), ("squared_relu", False)])
def test_gain_is_a_temperature_of_softmax_and_cancels_in_squared_relu(kernel: str, acts: bool):
    layer = build(query_key="normalized", kernel=kernel)
    tokens = torch.randn(2, 7, 12, dtype=torch.float64)
    before = layer(tokens)
    with torch.no_grad():
        layer.get_parameter("query_key.query_gain").mul_(3)
    assert (relative_error(layer(tokens), before) > 1e-3) == acts


def test_centered_keys_have_mean_0_over_the_kept_keys():
    module, key = KeyCentering(), draw()
    keep = torch.tensor([[True] * 4 + [False] * 3, [False, True] * 3 + [True]])
    query, centred = module(draw(seed=2), key, keep)
    assert torch.equal(query, draw(seed=2))
    for sample, kept in enumerate(keep):
        assert centred[sample][:, kept].mean(dim=1).abs().max() < 1e-12
    is_kept = keep[:, None].expand(2, 3, 7)
    with_nan = key.masked_fill(~is_kept[..., None], torch.nan)
    assert torch.equal(module(query, with_nan, keep)[1][is_kept], centred[is_kept])


@pytest.mark.parametrize("query_key", ["normalized", "centred"])
def test_query_key_options_change_the_output(query_key: str):
    tokens = torch.randn(2, 7, 12, dtype=torch.float64)
    layer = build(query_key=query_key)
    plain = build()
    plain.load_state_dict(
        {name: tensor for name, tensor in layer.state_dict().items() if "gain" not in name},
        strict=False,
    )
    assert relative_error(layer(tokens), plain(tokens)) > 1e-3


def test_keys_have_a_bias_unless_it_cancels():
    for options, has_bias in (
        ({"query_key": "centred"}, False),
        ({"query_key": "normalized"}, True),
        ({"query_key": "normalized", "kernel": "softmax"}, True),
        ({"query_key": "plain", "kernel": "softmax"}, False),
    ):
        layer = build(**options)
        assert layer.key is not None
        assert (layer.key.bias is not None) == has_bias


def test_queries_of_position_heads_do_not_change():
    layer = build(relative="clipped", position_heads=1, query_key="normalized")
    tokens = torch.randn(2, 15, 12, dtype=torch.float64)
    query, key, _ = layer.project(tokens)
    assert query is not None
    assert key is not None
    assert query.shape[1] == 3
    assert key.shape[1] == 2
    assert layer.query is not None
    assert relative_error(query[:, 2], layer.query(tokens)[..., 8:]) < 1e-12
    assert torch.allclose(query[:, :2].square().mean(dim=-1), torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"query_key": "normalised"},
            "query_key must be .*got 'normalised'.*Did you mean 'normalized'",
        ),
        (
            {"query_key": "centred", "causal": True},
            "query_key must be 'plain' or 'normalized' with causal.*got 'centred'",
        ),
        (
            {"query_key": "centred", "kernel": "softmax"},
            r"query_key must be .*got 'centred'. The mean of the keys has no effect with",
        ),
        (
            {"query_key": "centred", "kernel": "constant"},
            "query_key must be 'plain', got 'centred'",
        ),
        (
            {"query_key": "normalized", "kernel": "constant"},
            "query_key must be 'plain', got 'normalized'",
        ),
    ],
    ids=str,
)
def test_normalizations_without_effect_or_causality_are_errors(
    options: dict[str, Any], message: str
):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_a_mask_with_another_shape_is_an_error(unchecked_annotations: None):
    tokens, mask = torch.randn(2, 15, 12, dtype=torch.float64), torch.ones(2, 14, dtype=torch.bool)
    for layer in (build(query_key="centred"), build(value_convolution=3)):
        with pytest.raises(ValueError, match=r"key_mask must have shape \(2, 15\).*got \(2, 14\)"):
            layer(tokens, Grid((3, 5)), mask)
