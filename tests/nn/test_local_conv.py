"""Depthwise convolutions of the values."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from teka import Grid
from teka.nn import Attention
from teka.nn.local_conv import ValueConvolution
from tests.contracts.cases import relative_error

GRIDS = [
    pytest.param(Grid(7), id="line"),
    pytest.param(Grid(5, periodic=True), id="periodic line"),
    pytest.param(Grid((3, 5)), id="plane"),
    pytest.param(Grid((3, 5), periodic=(True, False)), id="plane, periodic along one axis"),
    pytest.param(
        Grid((2, 3, 4), periodic=(False, True, True)), id="volume, periodic along two axes"
    ),
    pytest.param(Grid((1, 2), periodic=True), id="periodic plane smaller than the kernel"),
]


def convolve_by_definition(value: Tensor, weight: Tensor, grid: Grid, side: int) -> Tensor:
    """Return the convolved values, computed one cell and offset at a time."""
    _, heads, _, dim = value.shape
    output = torch.zeros_like(value)
    indices = {cell: index for index, cell in enumerate(itertools.product(*map(range, grid.shape)))}
    weight = weight.reshape(heads, dim, *weight.shape[2:])
    offsets = list(itertools.product(range(side), repeat=grid.num_axes))
    for cell, offset in itertools.product(indices, offsets):
        neighbor = []
        for axis, size in enumerate(grid.shape):
            coordinate = cell[axis] + offset[axis] - side // 2
            neighbor.append(coordinate % size if grid.periodic[axis] else coordinate)
        source = indices.get(tuple(neighbor))
        if source is not None:
            output[:, :, indices[cell]] += weight[(..., *offset)] * value[:, :, source]
    return output


@pytest.mark.parametrize("grid", GRIDS)
def test_the_output_is_the_sum_over_neighboring_cells(grid: Grid):
    for side in (1, 3, 5):
        module = ValueConvolution(2, 3, side, grid.num_axes).double()
        nn.init.normal_(module.weight)
        value = torch.randn(2, 2, 2 + grid.num_tokens, 3, dtype=torch.float64)
        output = module(value, grid, 2, None)
        assert (output[:, :, :2] == 0).all()
        expected = convolve_by_definition(value[:, :, 2:], module.weight, grid, side)
        assert torch.allclose(output[:, :, 2:], expected, atol=1e-12), side


def test_masked_values_are_0():
    module, grid = ValueConvolution(2, 3, 3, 2).double(), Grid((3, 5))
    nn.init.normal_(module.weight)
    value = torch.randn(2, 2, 15, 3, dtype=torch.float64)
    keep = torch.arange(30).reshape(2, 15) % 4 > 0
    zeros, nans = (value.masked_fill(~keep[:, None, :, None], fill) for fill in (0.0, math.nan))
    assert torch.equal(module(nans, grid, 0, keep), module(zeros, grid, 0, None))


def test_a_new_convolution_has_no_effect():
    torch.manual_seed(0)
    layer = Attention(12, 3, value_convolution=3, relative="fourier")
    tokens = torch.randn(2, 16, 12)
    torch.manual_seed(0)
    plain = Attention(12, 3, relative="fourier")
    assert torch.equal(layer(tokens, Grid((3, 5)), None, 1), plain(tokens, Grid((3, 5)), None, 1))


def test_a_layer_adds_the_convolution_to_the_output_of_its_heads():
    torch.manual_seed(0)
    layer = Attention(12, 3, value_convolution=3, relative=None).double()
    tokens = torch.randn(2, 15, 12, dtype=torch.float64)
    assert layer.value_convolution is not None
    plain = layer(tokens, Grid((3, 5)))
    nn.init.normal_(layer.value_convolution.weight)
    _, _, value = layer.project(tokens)
    added = layer.value_convolution(value, Grid((3, 5)), 0, None).transpose(1, 2).flatten(2)
    assert (
        relative_error(layer(tokens, Grid((3, 5))), plain + added @ layer.output.weight.T) < 1e-12
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
def test_bad_options_are_errors(options: dict[str, Any], message: str):
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
def test_tokens_without_a_grid_are_errors(
    arguments: dict[str, Any], message: str, unchecked_annotations: None
):
    with pytest.raises(ValueError, match=message):
        Attention(12, 3, value_convolution=3, relative=None)(torch.zeros(2, 15, 12), **arguments)
