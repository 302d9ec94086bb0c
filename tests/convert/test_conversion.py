"""Conversion of convolutions to attention and back."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from teka import Grid
from teka.convert import (
    attention_from_convolution,
    conversion_error_bound,
    convolution_from_attention,
    head_offsets,
    precision_for_tolerance,
)
from teka.convert.conversion import BorderedAttention
from teka.convert.convolutions import compute_kernel_radius
from teka.nn import Attention, LearnedRelativeKernel
from teka.nn.relative import RelativeModule, inverse_softplus
from tests.convert.convolutions import SHAPES, draw_convolution, draw_images, largest_difference

# Relative to the largest output. The measured errors are up to 3.6e-7 and 7e-16.
ROUNDING = {torch.float32: 2e-6, torch.float64: 5e-15}


@torch.no_grad()
def apply_to_images(layer: BorderedAttention, images: Tensor, **options: Any) -> Tensor:
    grid = Grid(tuple(images.shape[2:]), periodic=layer.border is None, **options)
    return layer.output_grid(grid).unflatten(layer(grid.flatten(images), grid))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("num_axes", "kernel_size"), [(1, 1), (1, 7), (2, 1), (2, 3), (2, 7), (3, 1), (3, 3), (3, 5)]
)
def test_outputs_differ_from_the_convolution_by_at_most_the_bound(
    num_axes: int, kernel_size: int, dtype: torch.dtype
):
    convolution, images = (
        draw_convolution(num_axes, kernel_size, dtype=dtype),
        draw_images(num_axes, dtype=dtype),
    )
    with torch.no_grad():
        expected = convolution(images)
    hard = attention_from_convolution(convolution)
    assert isinstance(hard.attention, Attention)
    assert hard.attention.heads == kernel_size**num_axes
    difference = largest_difference(apply_to_images(hard, images), expected)
    largest = float(images.abs().max())
    assert difference <= ROUNDING[dtype] * float(expected.abs().max())
    assert difference <= conversion_error_bound(
        convolution, precision=math.inf, largest_input=largest
    )
    soft = attention_from_convolution(
        convolution, precision=precision_for_tolerance(0.01, num_axes)
    )
    gain = float(convolution.weight.detach().abs().flatten(1).sum(1).max())
    assert (
        1e-5
        < largest_difference(apply_to_images(soft, images), expected) / (gain * largest)
        <= 0.01
    )


@pytest.mark.parametrize("backend", ["dense", "toeplitz", "fft"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_hard_heads_are_exact_for_integers(dtype: torch.dtype, backend: str):
    convolution = draw_convolution(2, 5, dtype=dtype)
    nn.init.normal_(convolution.weight, std=9).data.round_()
    nn.init.normal_(convolution.bias, std=9).data.round_()
    images = (20 * draw_images(2, dtype=dtype)).round()
    layer = attention_from_convolution(convolution)
    layer.attention.backend = backend
    found = apply_to_images(layer, images)
    with torch.no_grad():
        expected = convolution(images)
    assert torch.equal(found.round() if backend == "fft" else found, expected)
    assert largest_difference(found, expected) < 1e-3


@pytest.mark.parametrize(
    ("num_axes", "options"),
    [
        (1, {"kernel_size": 5, "dilation": 2}),
        (2, {"kernel_size": (3, 5), "dilation": (3, 1)}),
        (2, {"kernel_size": (1, 7), "bias": False}),
        (2, {"kernel_size": 3, "padding": 1}),
        (3, {"kernel_size": (3, 1, 5), "padding": (2, 0, 4), "dilation": 2}),
        (2, {"kernel_size": 3, "channels": (1, 6)}),
        (2, {"kernel_size": 3, "channels": (5, 1)}),
    ],
    ids=str,
)
def test_odd_kernel_sizes_dilations_and_channels_are_converted(
    num_axes: int, options: dict[str, Any]
):
    convolution = draw_convolution(num_axes, **options)
    images = draw_images(num_axes, convolution.in_channels)
    with torch.no_grad():
        expected = convolution(images)
    found = apply_to_images(attention_from_convolution(convolution), images)
    assert largest_difference(found, expected) <= ROUNDING[torch.float64] * float(
        expected.abs().max()
    )


@pytest.mark.parametrize(
    ("num_axes", "options"),
    [
        (1, {"kernel_size": 3, "stride": 2}),
        (2, {"kernel_size": (3, 5), "stride": (3, 2), "dilation": (2, 1)}),
        (3, {"kernel_size": 3, "stride": (2, 1, 2)}),
        (2, {"kernel_size": 3, "padding_mode": "circular"}),
        (1, {"kernel_size": 5, "padding_mode": "circular", "dilation": 2}),
        (3, {"kernel_size": 3, "padding_mode": "circular", "stride": (2, 5, 1)}),
        (2, {"kernel_size": 3, "channels": (6, 4), "groups": 2}),
        (2, {"kernel_size": 5, "channels": (3, 6), "groups": 3, "stride": 2}),
    ],
    ids=str,
)
def test_stride_circular_padding_and_groups_are_converted_back(
    num_axes: int, options: dict[str, Any]
):
    values_by_name = values_along_axes(num_axes)
    sides = zip(
        values_by_name(options, "kernel_size"), values_by_name(options, "dilation"), strict=True
    )
    padding = [side // 2 * step for side, step in sides]
    convolution = draw_convolution(num_axes, **{**options, "padding": padding})
    images = draw_images(num_axes, convolution.in_channels)
    with torch.no_grad():
        expected = convolution(images)
    layer = attention_from_convolution(convolution)
    found = apply_to_images(layer, images)
    assert found.shape == expected.shape
    assert largest_difference(found, expected) <= ROUNDING[torch.float64] * float(
        expected.abs().max()
    )
    back = convolution_from_attention(layer, Grid(SHAPES[num_axes], periodic=layer.border is None))
    assert (back.stride, back.padding_mode) == (convolution.stride, convolution.padding_mode)
    with torch.no_grad():
        assert largest_difference(back(images), expected) <= 1e-13


def values_along_axes(num_axes: int) -> Callable[[dict[str, Any], str], tuple[int, ...]]:
    """Return a function that returns the values of an option along the axes, 1 by default."""

    def values_by_name(options: dict[str, Any], name: str) -> tuple[int, ...]:
        value = options.get(name, 1)
        return value if isinstance(value, tuple) else (value,) * num_axes

    return values_by_name


def test_periodic_side_not_divisible_by_the_stride_is_an_error():
    convolution = draw_convolution(1, 3, stride=2, padding=1, padding_mode="circular")
    layer, grid = attention_from_convolution(convolution), Grid(11, periodic=True)
    with pytest.raises(ValueError, match=r"grid.shape must be multiples of the stride \(2,\)"):
        layer(torch.zeros(2, 11, 3).double(), grid)
    with pytest.raises(ValueError, match="a grid of 1 axes that is periodic"):
        layer(torch.zeros(2, 12, 3).double(), Grid(12))


def test_outputs_do_not_depend_on_spacing_and_origin():
    convolution, images = draw_convolution(2, 3), draw_images(2)
    layer = attention_from_convolution(convolution, precision=3.0)
    moved = apply_to_images(layer, images, spacing=(0.7, 3.1), origin=(1e6, -4.0))
    assert torch.equal(moved, apply_to_images(layer, images))
    bound = conversion_error_bound(
        convolution, precision=3.0, largest_input=float(images.abs().max())
    )
    with torch.no_grad():
        assert largest_difference(moved, convolution(images)) <= bound


def test_heads_of_size_d_convert_convolutions_with_d_nonzero_outputs():
    # The paper's min(D_h, D_out): heads of size 4 compute 4 of 8 output channels, but not 5.
    convolution, images = draw_convolution(2, 3, (6, 8)), draw_images(2, 6)
    with torch.no_grad():
        convolution.weight[4:] = 0
    layer = attention_from_convolution(convolution, dim_head=4)
    with torch.no_grad():
        assert largest_difference(apply_to_images(layer, images), convolution(images)) <= 1e-14
        convolution.weight[4:5] = 1
    with pytest.raises(
        ValueError, match=r"dim_head must be at least 5, the rank.*got 4.*low_rank_convolution"
    ):
        attention_from_convolution(convolution, dim_head=4)


def test_converted_layer_has_its_own_trainable_parameters():
    convolution, other, images = draw_convolution(2, 3), draw_convolution(2, 3), draw_images(2)
    nn.init.normal_(other.weight, std=0.2)
    grid = Grid(SHAPES[2])
    layer = attention_from_convolution(convolution, precision=2.0).train()
    optimizer, losses = torch.optim.Adam(layer.parameters(), 0.05), []
    before = convolution.weight.detach().clone()
    for _ in range(15):
        loss = (
            (grid.unflatten(layer(grid.flatten(images), grid)) - other(images).detach())
            .square()
            .mean()
        )
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(
        parameter.grad is not None and parameter.grad.any() for parameter in layer.parameters()
    )
    assert losses[-1] < 0.5 * losses[0]
    assert torch.equal(convolution.weight, before)


def test_centers_of_hard_heads_have_no_gradient():
    layer, grid = attention_from_convolution(draw_convolution(2, 3)), Grid(SHAPES[2])
    layer(grid.flatten(draw_images(2)), grid).square().sum().backward()
    gradients = {
        name: float(parameter.grad.abs().max())
        for name, parameter in layer.named_parameters()
        if parameter.grad is not None
    }
    assert gradients.pop("attention.relative.center") == 0
    assert gradients.pop("attention.relative.raw_precision") == 0
    assert sorted(gradients) == [
        f"attention.{name}" for name in ("output.bias", "output.weight", "value.weight")
    ]
    assert all(gradients.values())


def test_converted_layer_keeps_dtype_and_training_mode():
    convolution = draw_convolution(1, 3, dtype=torch.bfloat16)
    layer = attention_from_convolution(convolution)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.bfloat16}
    assert not any(part.training for part in layer.modules())
    images = draw_images(1, dtype=torch.bfloat16)
    assert apply_to_images(layer, images).dtype == torch.bfloat16
    with torch.no_grad():
        assert largest_difference(apply_to_images(layer, images), convolution(images)) <= 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": 0.0}, "precision must be a positive number.*got 0.0"),
        ({"precision": math.nan}, r"precision must be .*got nan"),
        ({"dim_head": 0}, "dim_head must be at least 1.*got 0"),
        ({"dim_head": 4}, "dim_head must be a whole number up to 3, got 4"),
    ],
)
def test_options_out_of_range_are_an_error(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        attention_from_convolution(draw_convolution(2, 3), **options)


def test_a_precision_too_large_for_a_float_is_an_error(unchecked_annotations):
    with pytest.raises(ValueError, match="precision"):
        attention_from_convolution(nn.Conv1d(2, 2, 3, padding=1), precision=10**400)


def build(**options: Any) -> Attention:
    torch.manual_seed(0)
    options = {
        "kernel": "constant",
        "relative": "quadratic",
        "context_dim": 4,
        "num_axes": 2,
        **options,
    }
    return Attention(6, 3, **options).double()


def draw(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_bordered_attention_equals_attention_on_the_larger_grid():
    layer, images = build(dim_head=5), draw(2, 4, 5, 7)
    grid, larger = Grid((5, 7), origin=3.0), Grid((9, 9))
    found = BorderedAttention(layer, (1, 1), (2, 1))(grid.flatten(images), grid)
    context = larger.flatten(pad(images, (1, 1, 2, 2)))
    everywhere = layer(draw(2, 81, 6), larger, context=context, context_grid=larger)
    inner = larger.unflatten(everywhere)[:, :, 2:-2, 1:-1]
    assert torch.allclose(grid.unflatten(found), inner, atol=1e-13)


def test_bordered_attention_without_border_equals_the_layer():
    layer, tokens = build(context_dim=6), draw(2, 35, 6)
    found = BorderedAttention(layer, (1, 1), (0, 0))(tokens, Grid((5, 7)))
    assert torch.allclose(found, layer(tokens, Grid((5, 7))), atol=1e-14)


def test_bordered_attention_adds_no_state_and_prints_its_border():
    module = BorderedAttention(build(), (1, 1), (2, 1))
    assert set(module.state_dict()) == {f"attention.{name}" for name in build().state_dict()}
    assert "stride=(1, 1), border=(2, 1)" in repr(module)


@pytest.mark.parametrize(
    ("layer", "stride", "border", "message"),
    [
        (build(kernel="softmax"), (1, 1), (1, 1), "attention must be attention by position alone"),
        (build(), (1, 1), (1, -1), r"border\[1\] must be .*got -1"),
        (build(), (1, 1), (1, 0.5), r"border\[1\] must be .*got 0.5"),
        (build(), (0, 1), (1, 1), r"stride\[0\] must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_of_bordered_attention_are_an_error(
    layer: Attention,
    stride: tuple[int, ...],
    border: tuple[int, ...],
    message: str,
    unchecked_annotations: None,
):
    with pytest.raises(ValueError, match=message):
        BorderedAttention(layer, stride, border)


@pytest.mark.parametrize(
    ("tokens", "grid", "message"),
    [
        (
            torch.ones(2, 35, 5).double(),
            Grid((5, 7)),
            r"tokens must have shape \(batch, tokens, 4\).*got \(2, 35, 5\)",
        ),
        (
            torch.ones(2, 34, 4).double(),
            Grid((5, 7)),
            r"tokens must have shape \(batch, 35.*got \(2, 34, 4\)",
        ),
        (torch.ones(2, 35, 4).double(), Grid((5, 7), periodic=True), "a grid of 2 axes with edges"),
        (torch.ones(2, 35, 4).double(), Grid((5, 7, 1)), "a grid of 2 axes with edges"),
        (torch.ones(2, 35, 4).double(), None, "grid must be a grid of 2 axes with edges.*got None"),
    ],
)
def test_wrong_tokens_and_grids_are_an_error(
    tokens: torch.Tensor, grid: Grid, message: str, unchecked_annotations: None
):
    with pytest.raises(ValueError, match=message):
        BorderedAttention(build(), (1, 1), (2, 1))(tokens, grid)


def build_by_position(relative: str | RelativeModule, heads: int = 2, **options: Any) -> Attention:
    options = {"kernel": "constant", "relative": relative, "num_axes": 2, **options}
    return Attention(6, heads, **options)


def make_quadratic(centers: list[list[float]], precision: float) -> LearnedRelativeKernel:
    module = LearnedRelativeKernel("quadratic", num_axes=len(centers[0]), heads=len(centers))
    with torch.no_grad():
        module.center.copy_(torch.tensor(centers))
        module.raw_precision.copy_(inverse_softplus(torch.full((len(centers),), precision)))
    return module


def test_share_of_head_offsets_is_the_smallest_share_of_a_query():
    relative, grid = make_quadratic([[1.2, -2.1], [0.0, 0.4]], 3.0), Grid((7, 9))
    found = head_offsets(build_by_position(relative), grid)
    assert [head.offset for head in found] == [(1, -2), (0, 0)]
    log_weights = relative().log_weight_at(-(grid.positions()[None] - grid.positions()[:, None]))
    weights = (
        torch.softmax(log_weights, dim=-1)
        .detach()
        .unflatten(1, grid.shape)
        .unflatten(3, grid.shape)
    )
    inner = weights[0, 2, 5, 3, 3], weights[1, 3, 4, 3, 4]
    for head, weight in zip(found, inner, strict=True):
        assert head.share == pytest.approx(float(weight), abs=1e-6)
    assert float(weights[0, 0, 2, 1, 0]) >= found[0].share


def test_hard_heads_have_the_offsets_of_the_window():
    layer = attention_from_convolution(draw_convolution(2, 3))
    heads = head_offsets(layer.attention, Grid((5, 6)))
    assert [head.offset for head in heads] == [
        (down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)
    ]
    assert all(head.share == 1.0 for head in heads)


def test_head_offsets_are_in_cells_of_the_grid():
    layer = build_by_position(make_quadratic([[0.5, -4.0], [0.0, 2.0]], 90.0))
    heads = head_offsets(layer, Grid((5, 6), (0.5, 2.0)))
    assert [head.offset for head in heads] == [(1, -2), (0, 1)]


def test_head_offsets_of_other_relative_kernels():
    table = LearnedRelativeKernel("table", num_axes=2, heads=2, max_offset=3)
    with torch.no_grad():
        table.tables.zero_()
        # Entry 3 + Δ with Δ = query − key: a key 2 cells below the query and 1 to its left.
        table.tables[0, 0, 3 - 2] = table.tables[0, 1, 3 + 1] = 50
    first, second = head_offsets(build_by_position(table), Grid((5, 6)))
    assert first.offset == (2, -1)
    assert first.share == pytest.approx(1.0)
    assert second.share < 0.02
    for name in ("generalized_quadratic", "rotation", "fourier"):
        assert all(
            0 < head.share < 1 for head in head_offsets(build_by_position(name), Grid((5, 6)))
        )


@pytest.mark.parametrize(
    ("layer", "grid", "message"),
    [
        (
            build_by_position("quadratic", kernel="softmax"),
            Grid((5, 6)),
            "must be attention by pos.*got a layer that depends on the content",
        ),
        (
            build_by_position("clipped", position_heads=0),
            Grid((5, 6)),
            "got a layer that depends on the content",
        ),
        (
            build_by_position("quadratic", position_heads=1),
            Grid((5, 6)),
            "attention.position_heads must be 0.*got 1",
        ),
        (
            Attention(6, 2, kernel="constant", relative=None),
            Grid((5, 6)),
            r"attention.relative must be .*got None",
        ),
        (
            build_by_position("quadratic"),
            Grid(5),
            "number of axes of grid or positions must be 2.*got 1",
        ),
    ],
)
def test_a_layer_without_an_offset_for_each_head_is_an_error(
    layer: Attention, grid: Grid, message: str
):
    with pytest.raises(ValueError, match=message):
        head_offsets(layer, grid)


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
def test_convolution_is_converted_to_attention_and_back(
    num_axes: int, options: dict[str, Any], dtype: torch.dtype
):
    convolution = draw_convolution(num_axes, dtype=dtype, **options)
    back = convolution_from_attention(
        attention_from_convolution(convolution), Grid((9,) * num_axes)
    )
    assert type(back) is type(convolution)
    steps = [slice(None, None, step) for step in convolution.dilation]
    assert back.padding == compute_kernel_radius(convolution)
    assert torch.equal(back.weight[(..., *steps)], convolution.weight)
    assert back.weight.count_nonzero() == convolution.weight.count_nonzero()
    assert back.bias is not None
    assert torch.equal(
        back.bias, torch.zeros(4, dtype=dtype) if convolution.bias is None else convolution.bias
    )
    assert (back.training, back.weight.dtype) == (False, dtype)


def test_low_rank_convolution_is_converted_to_attention_and_back():
    convolution = draw_convolution(2, 3, (6, 8))
    with torch.no_grad():
        convolution.weight[2:] = 0
    back = convolution_from_attention(
        attention_from_convolution(convolution, dim_head=2), Grid((5, 5))
    )
    assert largest_difference(back.weight, convolution.weight) < 1e-15


@torch.no_grad()
@pytest.mark.parametrize("values", ["projected", "tokens"])
def test_heads_with_equal_offsets_are_added(values: str):
    # Heads 0 and 2 have the same offset, no center is on a cell, and all values have a bias.
    torch.manual_seed(0)
    centers = [[0.2, 2.1], [-1.9, 0.0], [0.1, 1.9], [2.0, -2.2]]
    layer = (
        build_by_position(
            make_quadratic(centers, 30.0), heads=4, dim_head=5, context_dim=3, values=values
        )
        .double()
        .eval()
    )
    grid, images = Grid(SHAPES[2]), draw_images(2)
    convolution = convolution_from_attention(layer, grid)
    assert (convolution.kernel_size, convolution.dilation) == ((5, 5), (1, 1))
    found = grid.unflatten(BorderedAttention(layer, (1, 1), (2, 2))(grid.flatten(images), grid))
    share = min(head.share for head in head_offsets(layer, grid))
    by_head = layer.get_parameter("output.weight").unflatten(1, (4, -1)).transpose(0, 1)
    if values == "projected":
        by_head = by_head @ layer.get_parameter("value.weight").unflatten(0, (4, 5))
    bound = 2 * (1 - share) * float(by_head.abs().sum((0, 2)).max() * images.abs().max()) + 1e-13
    assert 0 < 1 - share < 1e-5
    assert largest_difference(found, convolution(images)) <= bound
    # Attention without a border gives equal outputs at two or more cells from the edges.
    plain = grid.unflatten(
        layer(torch.zeros(2, 35, 6).double(), grid, context=grid.flatten(images), context_grid=grid)
    )
    inner = (..., slice(2, -2), slice(2, -2))
    assert largest_difference(plain[inner], convolution(images)[inner]) <= bound
    assert largest_difference(plain, convolution(images)) > 0.1


def test_soft_heads_are_converted_with_a_smaller_least_share():
    convolution = draw_convolution(1, 3)
    precision = precision_for_tolerance(0.2, 1)
    layer = attention_from_convolution(convolution, precision=precision)
    with pytest.raises(ValueError, match=r"weight of head 0 must be at least 0.99, got 0\.9\d*"):
        convolution_from_attention(layer, Grid(9))
    back = convolution_from_attention(layer, Grid(9), least_share=0.9)
    assert torch.equal(back.weight, convolution.weight)


def test_head_without_offset_becomes_a_window_of_one_cell():
    layer = build_by_position(make_quadratic([[0.0, 0.0]], 30.0), heads=1)
    back = convolution_from_attention(layer, Grid((5, 6)))
    assert (back.kernel_size, back.dilation, back.padding) == ((1, 1), (1, 1), (0, 0))


def test_a_round_trip_on_a_grid_of_another_spacing():
    convolution = draw_convolution(2, 3)
    layer = attention_from_convolution(convolution)
    back = convolution_from_attention(layer, Grid((5, 6), (0.3, 2.0)))
    assert torch.equal(back.weight, convolution.weight)


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        (
            build_by_position(make_quadratic([[0.0, 1.0], [0.5, 0.0]], 90.0)),
            {},
            r"weight of head 1 must be at least 0.99, got 0.5.*It is at the offset \((0|1), 0\)",
        ),
        (
            build_by_position(make_quadratic([[0.0, 1.0], [0.0, 40.0]], 90.0)),
            {},
            r"the offset of head 1 must be an offset between two cells .* \(5, 6\), got \(0, 6\)",
        ),
        (
            build_by_position("quadratic", kernel="squared_relu"),
            {},
            "attention by position alone, kernel='constant'",
        ),
        (
            build_by_position("quadratic", causal=True),
            {},
            "attention.causal must be None or False.*got True",
        ),
        (build_by_position("quadratic", gate=True), {}, r"attention.gate must be .*got True"),
        (
            build_by_position("quadratic", value_convolution=3),
            {},
            r"attention.value_convolution must be .*got True",
        ),
        (
            build_by_position("quadratic"),
            {"least_share": 0.5},
            "least_share must be above 0.5.*got 0.5",
        ),
        (
            build_by_position("quadratic"),
            {"grid": None},
            "grid must be a teka.Grid of one to three axes.*got None",
        ),
        (
            build_by_position("quadratic"),
            {"grid": Grid((2, 2, 2, 2))},
            "a teka.Grid of one to three axes",
        ),
    ],
)
def test_attention_that_is_not_a_convolution_is_an_error(
    layer: Attention, options: dict[str, Any], message: str, unchecked_annotations: None
):
    with pytest.raises(ValueError, match=message):
        convolution_from_attention(layer, **{"grid": Grid((5, 6)), **options})
