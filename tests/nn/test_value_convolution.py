import itertools
import math
from typing import Any

import pytest
import torch
from tests.contracts.cases import relative_change
from torch import Tensor, nn

from teka import Grid
from teka.nn import Attention
from teka.nn.additions import ValueConvolution

GRIDS = [
    pytest.param(Grid(7), id="a line"),
    pytest.param(Grid(5, periodic=True), id="a ring"),
    pytest.param(Grid((3, 5)), id="a plane"),
    pytest.param(Grid((3, 5), periodic=(True, False)), id="a cylinder"),
    pytest.param(Grid((2, 3, 4), periodic=(False, True, True)), id="a volume, periodic along two axes"),
    pytest.param(Grid((1, 2), periodic=True), id="a torus smaller than the cube"),
]


def by_definition(value: Tensor, weight: Tensor, grid: Grid, side: int) -> Tensor:
    """Sum over the cells of the cube around each cell, one at a time."""
    _, heads, _, dim = value.shape
    output = torch.zeros_like(value)
    place = {cell: index for index, cell in enumerate(itertools.product(*map(range, grid.shape)))}
    weight = weight.reshape(heads, dim, *weight.shape[2:])
    for cell, offset in itertools.product(place, itertools.product(range(side), repeat=grid.num_axes)):
        there = [one + step - side // 2 for one, step in zip(cell, offset, strict=True)]
        there = [
            one % size if wraps else one for one, size, wraps in zip(there, grid.shape, grid.periodic, strict=True)
        ]
        source = place.get(tuple(there))
        if source is not None:
            output[:, :, place[cell]] += weight[(slice(None), slice(None), *offset)] * value[:, :, source]
    return output


@pytest.mark.parametrize("side", [1, 3, 5])
@pytest.mark.parametrize("grid", GRIDS)
def test_it_is_the_sum_over_the_cells_around(grid: Grid, side: int):
    module = ValueConvolution(2, 3, side, grid.num_axes).double()
    nn.init.normal_(module.weight)
    value = torch.randn(2, 2, 2 + grid.num_tokens, 3, dtype=torch.float64)
    output = module(value, grid, 2, None)
    assert (output[:, :, :2] == 0).all()
    assert torch.allclose(output[:, :, 2:], by_definition(value[:, :, 2:], module.weight, grid, side), atol=1e-12)


def test_dropped_values_are_0_whatever_they_are():
    module, grid = ValueConvolution(2, 3, 3, 2).double(), Grid((3, 5))
    nn.init.normal_(module.weight)
    value, keep = torch.randn(2, 2, 15, 3, dtype=torch.float64), torch.arange(30).reshape(2, 15) % 4 > 0
    zeros, nans = (value.masked_fill(~keep[:, None, :, None], fill) for fill in (0.0, math.nan))
    assert torch.equal(module(nans, grid, 0, keep), module(zeros, grid, 0, None))


def test_at_first_the_layer_is_the_plain_one():
    torch.manual_seed(0)
    layer, tokens = Attention(12, 3, value_convolution=3, relative="fourier"), torch.randn(2, 16, 12)
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
    assert relative_change(layer(tokens, Grid((3, 5))), plain + added @ layer.output.weight.T) < 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value_convolution": 2}, "value_convolution is 2, expected None or an odd number"),
        ({"value_convolution": 0}, "value_convolution is 0, expected None or an odd number"),
        ({"value_convolution": -3}, "value_convolution is -3, expected None or an odd number"),
        ({"value_convolution": 3, "num_axes": 4}, "num_axes is 4, expected 1, 2 or 3"),
        ({"value_convolution": 3, "causal": True}, "value_convolution is 3, expected None with causal=True"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Attention(12, 3, **{"relative": None, **options})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({}, "grid is None, expected a grid of 2 axes", id="no grid"),
        pytest.param({"grid": Grid(15)}, "grid is .*, expected a grid of 2 axes", id="another number of axes"),
        pytest.param({"grid": Grid((3, 4))}, "the sequence has 15 tokens, expected 0 prefix", id="another size"),
        pytest.param({"grid": Grid((3, 5)), "num_queries": 3}, "num_queries is 'given', expected None", id="queries"),
        pytest.param({"positions": torch.zeros(15, 2)}, "positions is 'given', expected None", id="positions"),
        pytest.param({"grid": Grid((3, 5)), "context": torch.zeros(2, 4, 12)}, "context is 'given'", id="a context"),
    ],
)
def test_tokens_that_lie_on_no_grid_are_refused(arguments: dict[str, Any], message: str, as_users_run_it: None):
    with pytest.raises(ValueError, match=message):
        Attention(12, 3, value_convolution=3, relative=None)(torch.zeros(2, 15, 12), **arguments)


def test_a_mask_of_another_shape_is_refused(as_users_run_it: None):
    module = ValueConvolution(2, 3, 3, 2)
    with pytest.raises(ValueError, match=r"key_mask has shape \(2, 14\), expected \(2, 15\)"):
        module(torch.zeros(2, 2, 15, 3), Grid((3, 5)), 0, torch.ones(2, 14, dtype=torch.bool))
