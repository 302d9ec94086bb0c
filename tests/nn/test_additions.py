"""Gates, normalised and centred queries and keys, and convolutions of values."""

import itertools
import math
from typing import Any

import pytest
import torch
from tests.contracts.cases import relative_change
from torch import Tensor, nn

from teka import Grid
from teka.nn import Attention
from teka.nn.additions import (
    QUERY_KEYS,
    CentredQueryKey,
    Gate,
    NormalizedQueryKey,
    ValueConvolution,
    make_query_key,
)


def test_it_begins_nearly_open_and_the_same_for_every_token():
    gates = Gate(12, 3, 4)(torch.randn(2, 7, 12))
    assert gates.shape == (2, 3, 7, 4)
    assert torch.allclose(gates, torch.full_like(gates, 1 / (1 + math.exp(-2))))


def test_it_is_a_sigmoid_of_a_linear_map_of_the_token_itself():
    gate, tokens = Gate(12, 3, 4).double(), torch.randn(2, 7, 12, dtype=torch.float64)
    nn.init.normal_(gate.projection.weight)
    expected = torch.sigmoid(gate.projection(tokens))
    torch.testing.assert_close(
        gate(tokens).transpose(1, 2).flatten(2), expected, rtol=1e-14, atol=0
    )
    assert relative_change(gate(tokens[:, 3:4])[:, :, 0], gate(tokens)[:, :, 3]) < 1e-12


def test_a_layer_multiplies_what_its_heads_give_before_the_output():
    torch.manual_seed(0)
    gated, tokens = (
        Attention(12, 3, gate=True, relative=None).double(),
        torch.randn(2, 7, 12, dtype=torch.float64),
    )
    assert gated.gate is not None
    nn.init.normal_(gated.gate.projection.weight)
    plain = Attention(12, 3, relative=None).double()
    plain.load_state_dict(gated.state_dict(), strict=False)
    identity = nn.Linear(12, 12, bias=False).double()
    nn.init.eye_(identity.weight)
    output, plain.output = plain.output, identity
    expected = output(plain(tokens) * torch.sigmoid(gated.gate.projection(tokens)))
    assert relative_change(gated(tokens), expected) < 1e-12


def test_the_queries_tokens_open_it_and_not_the_contexts():
    torch.manual_seed(0)
    layer = Attention(12, 3, gate=True, relative=None, context_dim=5).double()
    assert layer.gate is not None
    nn.init.constant_(layer.gate.projection.bias, -1e3)
    nn.init.normal_(layer.gate.projection.weight)
    tokens, context = (
        torch.randn(2, 7, 12, dtype=torch.float64),
        torch.randn(2, 3, 5, dtype=torch.float64),
    )
    assert torch.allclose(layer(tokens, context=context), layer.output.bias.expand(2, 7, 12))


def draw(heads: int = 3, tokens: int = 7, dim: int = 5, seed: int = 1) -> Tensor:
    return torch.randn(
        2, heads, tokens, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def build(**options: Any) -> Attention:
    torch.manual_seed(0)
    options = {"relative": None, **options}
    return Attention(12, 3, **options).double().eval()


@pytest.mark.parametrize("query_key", QUERY_KEYS)
def test_shapes_are_kept_for_any_number_of_queries_and_keys(query_key: str):
    module = make_query_key(query_key, 3, 5).double()
    query, key = module(draw(tokens=7), draw(tokens=11), None)
    assert query.shape == (2, 3, 7, 5)
    assert key.shape == (2, 3, 11, 5)


def test_normalized_vectors_have_the_root_mean_square_of_their_gain_and_their_own_direction():
    module = NormalizedQueryKey(3, 5).double()
    for given, came in zip((draw(), draw(seed=2)), module(draw(), draw(seed=2), None), strict=True):
        assert torch.allclose(
            came.square().mean(dim=-1), torch.ones((), dtype=torch.float64), atol=1e-12
        )
        assert torch.allclose(
            torch.cosine_similarity(came, given, dim=-1), torch.ones((), dtype=torch.float64)
        )
    nn.init.normal_(module.key_gain)
    gained = module(draw(), draw(seed=2), None)[1]
    assert torch.allclose(
        gained / module.key_gain, NormalizedQueryKey(3, 5).double()(draw(), draw(seed=2), None)[1]
    )


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
def test_the_gains_size_is_a_temperature_of_the_softmax_and_cancels_in_squared_relu(
    kernel: str, acts: bool
):
    layer, tokens = (
        build(query_key="normalized", kernel=kernel),
        torch.randn(2, 7, 12, dtype=torch.float64),
    )
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
        module(query, other, keep)[1][keep[:, None].expand(2, 3, 7)],
        centred[keep[:, None].expand(2, 3, 7)],
    )


@pytest.mark.parametrize("query_key", ["normalized", "centred"])
def test_the_options_change_the_output(query_key: str):
    tokens = torch.randn(2, 7, 12, dtype=torch.float64)
    layer = build(query_key=query_key)
    plain = build()
    plain.load_state_dict(
        {name: tensor for name, tensor in layer.state_dict().items() if "gain" not in name},
        strict=False,
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
            r"query_key must be .*got 'centred'. The mean cancels in the softmax",
        ),
        (
            {"query_key": "centred", "kernel": "constant"},
            "query_key must be 'plain' with a kernel.*got 'centred'",
        ),
        (
            {"query_key": "normalized", "kernel": "constant"},
            "query_key must be 'plain' with a kernel.*got 'normalized'",
        ),
    ],
    ids=str,
)
def test_what_would_have_no_effect_or_see_later_keys_is_refused(
    options: dict[str, Any], message: str
):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_a_mask_of_another_shape_is_refused(as_users_run_it: None):
    tokens, mask = torch.randn(2, 15, 12, dtype=torch.float64), torch.ones(2, 14, dtype=torch.bool)
    for layer in (build(query_key="centred"), build(value_convolution=3)):
        with pytest.raises(ValueError, match=r"key_mask must have shape \(2, 15\).*got \(2, 14\)"):
            layer(tokens, Grid((3, 5)), mask)


GRIDS = [
    pytest.param(Grid(7), id="a line"),
    pytest.param(Grid(5, periodic=True), id="a ring"),
    pytest.param(Grid((3, 5)), id="a plane"),
    pytest.param(Grid((3, 5), periodic=(True, False)), id="a cylinder"),
    pytest.param(
        Grid((2, 3, 4), periodic=(False, True, True)), id="a volume, periodic along two axes"
    ),
    pytest.param(Grid((1, 2), periodic=True), id="a torus smaller than the cube"),
]


def by_definition(value: Tensor, weight: Tensor, grid: Grid, side: int) -> Tensor:
    """Sum over the cells of the cube around each cell, one at a time."""
    _, heads, _, dim = value.shape
    output = torch.zeros_like(value)
    place = {cell: index for index, cell in enumerate(itertools.product(*map(range, grid.shape)))}
    weight = weight.reshape(heads, dim, *weight.shape[2:])
    for cell, offset in itertools.product(
        place, itertools.product(range(side), repeat=grid.num_axes)
    ):
        there = [one + step - side // 2 for one, step in zip(cell, offset, strict=True)]
        there = [
            one % size if wraps else one
            for one, size, wraps in zip(there, grid.shape, grid.periodic, strict=True)
        ]
        source = place.get(tuple(there))
        if source is not None:
            output[:, :, place[cell]] += (
                weight[(slice(None), slice(None), *offset)] * value[:, :, source]
            )
    return output


@pytest.mark.parametrize("grid", GRIDS)
def test_it_is_the_sum_over_the_cells_around(grid: Grid):
    for side in (1, 3, 5):
        module = ValueConvolution(2, 3, side, grid.num_axes).double()
        nn.init.normal_(module.weight)
        value = torch.randn(2, 2, 2 + grid.num_tokens, 3, dtype=torch.float64)
        output = module(value, grid, 2, None)
        assert (output[:, :, :2] == 0).all()
        expected = by_definition(value[:, :, 2:], module.weight, grid, side)
        assert torch.allclose(output[:, :, 2:], expected, atol=1e-12), side


def test_dropped_values_are_0_whatever_they_are():
    module, grid = ValueConvolution(2, 3, 3, 2).double(), Grid((3, 5))
    nn.init.normal_(module.weight)
    value, keep = (
        torch.randn(2, 2, 15, 3, dtype=torch.float64),
        torch.arange(30).reshape(2, 15) % 4 > 0,
    )
    zeros, nans = (value.masked_fill(~keep[:, None, :, None], fill) for fill in (0.0, math.nan))
    assert torch.equal(module(nans, grid, 0, keep), module(zeros, grid, 0, None))


def test_at_first_the_layer_is_the_plain_one():
    torch.manual_seed(0)
    layer, tokens = (
        Attention(12, 3, value_convolution=3, relative="fourier"),
        torch.randn(2, 16, 12),
    )
    torch.manual_seed(0)
    plain = Attention(12, 3, relative="fourier")
    assert torch.equal(layer(tokens, Grid((3, 5)), None, 1), plain(tokens, Grid((3, 5)), None, 1))


def test_a_layer_adds_it_to_what_its_heads_give_before_the_output():
    torch.manual_seed(0)
    layer, tokens = (
        Attention(12, 3, value_convolution=3, relative=None).double(),
        torch.randn(2, 15, 12, dtype=torch.float64),
    )
    assert layer.value_convolution is not None
    plain = layer(tokens, Grid((3, 5)))
    nn.init.normal_(layer.value_convolution.weight)
    _, _, value = layer.project(tokens)
    added = layer.value_convolution(value, Grid((3, 5)), 0, None).transpose(1, 2).flatten(2)
    assert (
        relative_change(layer(tokens, Grid((3, 5))), plain + added @ layer.output.weight.T) < 1e-12
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value_convolution": 2}, "value_convolution must be None or an odd number.*got 2"),
        ({"value_convolution": 0}, "value_convolution must be None or an odd number.*got 0"),
        ({"value_convolution": -3}, "value_convolution must be None or an odd number.*got -3"),
        ({"value_convolution": 3, "num_axes": 4}, "num_axes must be 1, 2 or 3.*got 4"),
        (
            {"value_convolution": 3, "causal": True},
            "value_convolution must be None with causal=True.*got 3",
        ),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any], message: str):
    options = {"relative": None, **options}
    with pytest.raises(ValueError, match=message):
        Attention(12, 3, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({}, "grid must be a grid of 2 axes.*got None", id="no grid"),
        pytest.param(
            {"grid": Grid(15)}, "grid must be a grid of 2 axes", id="another number of axes"
        ),
        pytest.param(
            {"grid": Grid((3, 4))},
            "the sequence must have 0 prefix.*got 15 tokens",
            id="another size",
        ),
        pytest.param(
            {"grid": Grid((3, 5)), "num_queries": 3},
            "num_queries must be None.*got a value",
            id="queries",
        ),
        pytest.param(
            {"positions": torch.zeros(15, 2)}, "positions must be None.*got a value", id="positions"
        ),
        pytest.param(
            {"grid": Grid((3, 5)), "context": torch.zeros(2, 4, 12)},
            r"context must be .*got a value",
            id="a context",
        ),
    ],
)
def test_tokens_that_lie_on_no_grid_are_refused(
    arguments: dict[str, Any], message: str, as_users_run_it: None
):
    with pytest.raises(ValueError, match=message):
        Attention(12, 3, value_convolution=3, relative=None)(torch.zeros(2, 15, 12), **arguments)
