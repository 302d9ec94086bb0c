from typing import Any

import pytest
import torch
from tests.contracts.cases import relative_change
from torch import Tensor, nn

from teka import Grid
from teka.nn import Attention
from teka.nn.additions import QUERY_KEYS, CentredQueryKey, NormalizedQueryKey, make_query_key


def draw(heads: int = 3, tokens: int = 7, dim: int = 5, seed: int = 1) -> Tensor:
    return torch.randn(2, heads, tokens, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(**options: Any) -> Attention:
    torch.manual_seed(0)
    return Attention(12, 3, **{"relative": None, **options}).double().eval()


@pytest.mark.parametrize("query_key", QUERY_KEYS)
def test_shapes_are_kept_for_any_number_of_queries_and_keys(query_key: str):
    module = make_query_key(query_key, 3, 5).double()
    query, key = module(draw(tokens=7), draw(tokens=11), None)
    assert query.shape == (2, 3, 7, 5)
    assert key.shape == (2, 3, 11, 5)


def test_normalized_vectors_have_the_root_mean_square_of_their_gain_and_their_own_direction():
    module = NormalizedQueryKey(3, 5).double()
    for given, came in zip((draw(), draw(seed=2)), module(draw(), draw(seed=2), None), strict=True):
        assert torch.allclose(came.square().mean(dim=-1), torch.ones((), dtype=torch.float64), atol=1e-12)
        assert torch.allclose(torch.cosine_similarity(came, given, dim=-1), torch.ones((), dtype=torch.float64))
    nn.init.normal_(module.key_gain)
    gained = module(draw(), draw(seed=2), None)[1]
    assert torch.allclose(gained / module.key_gain, NormalizedQueryKey(3, 5).double()(draw(), draw(seed=2), None)[1])


def test_a_normalized_layer_does_not_see_the_size_of_queries_and_keys():
    layer = build(query_key="normalized", kernel="softmax", qkv_bias=False)
    tokens = torch.randn(2, 7, 12, dtype=torch.float64)
    before = layer(tokens)
    with torch.no_grad():
        for linear in (layer.query, layer.key):
            assert linear is not None
            linear.weight.mul_(100)
    assert relative_change(layer(tokens), before) < 1e-10


@pytest.mark.parametrize(("kernel", "acts"), [("softmax", True), ("squared_relu", False)])
def test_the_gains_size_is_a_temperature_of_the_softmax_and_cancels_in_squared_relu(kernel: str, acts: bool):
    layer, tokens = build(query_key="normalized", kernel=kernel), torch.randn(2, 7, 12, dtype=torch.float64)
    before = layer(tokens)
    with torch.no_grad():
        layer.get_parameter("query_key.query_gain").mul_(3)
    assert (relative_change(layer(tokens), before) > 1e-3) == acts


def test_centred_keys_have_mean_0_over_what_is_kept_and_ignore_what_is_not():
    module, key = CentredQueryKey(), draw()
    keep = torch.tensor([[True] * 4 + [False] * 3, [False, True] * 3 + [True]])
    query, centred = module(draw(seed=2), key, keep)
    assert torch.equal(query, draw(seed=2))
    for sample, kept in enumerate(keep):
        assert centred[sample][:, kept].mean(dim=1).abs().max() < 1e-12
    other = key.masked_fill(~keep[:, None, :, None], torch.nan)
    assert torch.equal(
        module(query, other, keep)[1][keep[:, None].expand(2, 3, 7)], centred[keep[:, None].expand(2, 3, 7)]
    )


@pytest.mark.parametrize("query_key", ["normalized", "centred"])
def test_the_options_change_the_output(query_key: str):
    tokens = torch.randn(2, 7, 12, dtype=torch.float64)
    layer = build(query_key=query_key)
    plain = build()
    plain.load_state_dict(
        {name: tensor for name, tensor in layer.state_dict().items() if "gain" not in name}, strict=False
    )
    assert relative_change(layer(tokens), plain(tokens)) > 1e-3


def test_a_bias_of_keys_is_there_where_it_does_not_cancel():
    for options, expected in (
        ({"query_key": "centred"}, False),
        ({"query_key": "normalized"}, True),
        ({"query_key": "normalized", "kernel": "softmax"}, True),
        ({"query_key": "plain", "kernel": "softmax"}, False),
    ):
        layer = build(**options)
        assert layer.key is not None
        assert (layer.key.bias is not None) == expected


def test_queries_of_heads_by_position_stay_as_they_are():
    layer = build(relative="clipped", position_heads=1, query_key="normalized")
    tokens = torch.randn(2, 15, 12, dtype=torch.float64)
    query, key, _ = layer.project(tokens)
    assert query is not None
    assert key is not None
    assert query.shape[1] == 3
    assert key.shape[1] == 2
    assert layer.query is not None
    assert relative_change(query[:, 2], layer.query(tokens)[..., 8:]) < 1e-12
    assert torch.allclose(query[:, :2].square().mean(dim=-1), torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_key": "normalised"}, "query_key is 'normalised', expected .*; did you mean 'normalized'"),
        (
            {"query_key": "centred", "causal": True},
            "query_key is 'centred', expected 'plain' or 'normalized' with causal",
        ),
        ({"query_key": "centred", "kernel": "softmax"}, "query_key is 'centred', .* the mean cancels in the softmax"),
        ({"query_key": "centred", "kernel": "constant"}, "query_key is 'centred', expected 'plain' with a kernel"),
        (
            {"query_key": "normalized", "kernel": "constant"},
            "query_key is 'normalized', expected 'plain' with a kernel",
        ),
    ],
    ids=str,
)
def test_what_would_have_no_effect_or_see_later_keys_is_refused(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_a_mask_of_another_shape_is_refused(as_users_run_it: None):
    layer, tokens = build(query_key="centred"), torch.randn(2, 15, 12, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"key_mask has shape \(2, 14\), expected \(2, 15\)"):
        layer(tokens, Grid((3, 5)), torch.ones(2, 14, dtype=torch.bool))
