from typing import Any

import pytest
import torch
from tests.convert.convolutions import SHAPES, draw_convolution, draw_images, largest_difference
from tests.convert.test_head_offset import build, quadratic

from teka import Grid
from teka.convert import (
    ZeroBordered,
    attention_from_convolution,
    convolution_from_attention,
    head_offsets,
    precision_for_tolerance,
)
from teka.nn import Attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("num_axes", "options"),
    [
        (1, {"kernel_size": 7}),
        (2, {"kernel_size": (5, 3), "dilation": (1, 2)}),
        (3, {"kernel_size": 3, "bias": False}),
    ],
    ids=str,
)
def test_a_convolution_comes_back_from_the_attention_it_was_made(
    num_axes: int, options: dict[str, Any], dtype: torch.dtype
):
    convolution = draw_convolution(num_axes, dtype=dtype, **options)
    back = convolution_from_attention(attention_from_convolution(convolution), Grid((9,) * num_axes))
    assert type(back) is type(convolution)
    assert (back.kernel_size, back.dilation) == (convolution.kernel_size, convolution.dilation)
    assert torch.equal(back.weight, convolution.weight)
    assert back.bias is not None
    assert torch.equal(back.bias, torch.zeros(4, dtype=dtype) if convolution.bias is None else convolution.bias)
    assert (back.training, back.weight.dtype) == (False, dtype)


def test_a_convolution_of_low_rank_comes_back_to_rounding():
    convolution = draw_convolution(2, 3, (6, 8))
    with torch.no_grad():
        convolution.weight[2:] = 0
    back = convolution_from_attention(attention_from_convolution(convolution, dim_head=2), Grid((5, 5)))
    assert largest_difference(back.weight, convolution.weight) < 1e-15


@torch.no_grad()
@pytest.mark.parametrize("values", ["projected", "tokens"])
def test_attention_is_the_convolution_it_gives_and_its_heads_are_added_up(values: str):
    # Heads 0 and 2 look at the same place, no centre lies on a cell, and all values have a bias.
    torch.manual_seed(0)
    centers = [[0.2, 2.1], [-1.9, 0.0], [0.1, 1.9], [2.0, -2.2]]
    layer = build(quadratic(centers, 30.0), heads=4, dim_head=5, context_dim=3, values=values).double().eval()
    grid, images = Grid(SHAPES[2]), draw_images(2)
    convolution = convolution_from_attention(layer, grid)
    assert (convolution.kernel_size, convolution.dilation) == ((3, 3), (2, 2))
    found = grid.unflatten(ZeroBordered(layer, (2, 2), (1.0, 1.0))(grid.flatten(images), grid))
    share = min(one.share for one in head_offsets(layer, grid))
    by_head = layer.get_parameter("output.weight").unflatten(1, (4, -1)).transpose(0, 1)
    if values == "projected":
        by_head = by_head @ layer.get_parameter("value.weight").unflatten(0, (4, 5))
    bound = 2 * (1 - share) * float(by_head.abs().sum((0, 2)).max() * images.abs().max()) + 1e-13
    assert 0 < 1 - share < 1e-5
    assert largest_difference(found, convolution(images)) <= bound
    # Plain attention is the same where it sees every place: two cells from the edges.
    plain = grid.unflatten(layer(torch.zeros(2, 35, 6).double(), grid, context=grid.flatten(images), context_grid=grid))
    inner = (..., slice(2, -2), slice(2, -2))
    assert largest_difference(plain[inner], convolution(images)[inner]) <= bound
    assert largest_difference(plain, convolution(images)) > 0.1


def test_attention_that_is_soft_comes_back_where_that_is_asked_for():
    convolution = draw_convolution(1, 3)
    precision = precision_for_tolerance(0.2, (1.0,))
    layer = attention_from_convolution(convolution, precision=precision)
    with pytest.raises(ValueError, match=r"the share of head 0 is 0\.9\d*, expected at least 0.99 at one offset"):
        convolution_from_attention(layer, Grid(9))
    back = convolution_from_attention(layer, Grid(9), least_share=0.9)
    assert torch.equal(back.weight, convolution.weight)


def test_a_single_head_on_its_own_cell_is_a_window_of_one():
    layer = build(quadratic([[0.0, 0.0]], 30.0), heads=1)
    back = convolution_from_attention(layer, Grid((5, 6)))
    assert (back.kernel_size, back.dilation, back.padding) == ((1, 1), (1, 1), (0, 0))


def test_back_on_a_grid_of_another_spacing_the_cells_are_counted():
    convolution = draw_convolution(2, 3)
    layer = attention_from_convolution(convolution, spacing=(0.3, 2.0))
    assert torch.equal(convolution_from_attention(layer, Grid((5, 6), (0.3, 2.0))).weight, convolution.weight)
    with pytest.raises(ValueError, match=r"the share of head 0 is 0.\d+, expected at least 0.99"):
        convolution_from_attention(
            attention_from_convolution(convolution, precision=2.0), Grid((5, 6), (0.3, 2.0)), least_share=0.99
        )


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        (
            build(quadratic([[0.0, 1.0], [0.5, 0.0]], 90.0)),
            {},
            r"the share of head 1 is 0.5, expected at least 0.99 at one offset; its largest is at \((0|1), 0\)",
        ),
        (
            build(quadratic([[0.0, 1.0], [0.0, 40.0]], 90.0)),
            {},
            r"the offset of head 1 is \(0, 6\), expected one between two cells of \(5, 6\)",
        ),
        (build("quadratic", kernel="squared_relu"), {}, "expected attention by position alone, kernel='constant'"),
        (build("quadratic", causal=True), {}, "attention.causal is True, expected a layer without it"),
        (build("quadratic", gate=True), {}, "attention.gate is True"),
        (build("quadratic", value_convolution=3), {}, "attention.value_convolution is True"),
        (build("quadratic"), {"least_share": 0.5}, "least_share is 0.5, expected above 0.5"),
        (build("quadratic"), {"grid": Grid((2, 2, 2, 2))}, "expected one to three axes"),
    ],
)
def test_what_is_no_convolution_is_refused_with_the_head_and_how_hard_it_is(
    layer: Attention, options: dict[str, Any], message: str
):
    with pytest.raises(ValueError, match=message):
        convolution_from_attention(layer, **{"grid": Grid((5, 6)), **options})
