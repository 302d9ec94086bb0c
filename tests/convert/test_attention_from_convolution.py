import math
from typing import Any

import pytest
import torch
from tests.convert.convolutions import CLASSES, SHAPES, draw_convolution, draw_images, largest_difference
from torch import Tensor, nn

from teka import Grid
from teka.convert import ZeroBordered, attention_from_convolution, conversion_error_bound
from teka.nn import Attention

# Of the largest output. Measured: up to 3.6e-7 and 7e-16.
ROUNDING = {torch.float32: 2e-6, torch.float64: 5e-15}


@torch.no_grad()
def apply(layer: ZeroBordered, images: Tensor, spacing: float | tuple[float, ...] = 1.0, **options: Any) -> Tensor:
    grid = Grid(tuple(images.shape[2:]), spacing, **options)
    return grid.unflatten(layer(grid.flatten(images), grid))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kernel_size", [1, 3, 5, 7])
@pytest.mark.parametrize("num_axes", [1, 2, 3])
def test_hard_heads_are_the_convolution_to_rounding_and_a_tolerance_is_kept(
    num_axes: int, kernel_size: int, dtype: torch.dtype
):
    convolution, images = draw_convolution(num_axes, kernel_size, dtype=dtype), draw_images(num_axes, dtype=dtype)
    with torch.no_grad():
        truth = convolution(images)
    hard = attention_from_convolution(convolution)
    assert isinstance(hard.attention, Attention)
    assert hard.attention.heads == kernel_size**num_axes
    difference = largest_difference(apply(hard, images), truth)
    largest = float(images.abs().max())
    assert difference <= ROUNDING[dtype] * float(truth.abs().max())
    assert difference <= conversion_error_bound(convolution, precision=math.inf, largest_input=largest)
    soft = attention_from_convolution(convolution, tolerance=0.01)
    gain = float(convolution.weight.detach().abs().flatten(1).sum(1).max())
    assert 1e-5 < largest_difference(apply(soft, images), truth) / (gain * largest) <= 0.01


@pytest.mark.parametrize("backend", ["dense", "toeplitz", "fft"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_whole_numbers_come_out_to_the_last_bit_for_the_weights_are_ones_and_zeros(dtype: torch.dtype, backend: str):
    convolution = draw_convolution(2, 5, dtype=dtype)
    nn.init.normal_(convolution.weight, std=9).data.round_()
    nn.init.normal_(convolution.bias, std=9).data.round_()
    images = (20 * draw_images(2, dtype=dtype)).round()
    layer = attention_from_convolution(convolution)
    layer.attention.backend = backend
    found = apply(layer, images)
    with torch.no_grad():
        truth = convolution(images)
    assert torch.equal(found.round() if backend == "fft" else found, truth)
    assert largest_difference(found, truth) < 1e-3


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
def test_windows_of_any_odd_sides_dilation_and_channels_are_converted(num_axes: int, options: dict[str, Any]):
    convolution = draw_convolution(num_axes, **options)
    images = draw_images(num_axes, convolution.in_channels)
    with torch.no_grad():
        truth = convolution(images)
    found = apply(attention_from_convolution(convolution), images)
    assert largest_difference(found, truth) <= ROUNDING[torch.float64] * float(truth.abs().max())


@pytest.mark.parametrize("precision", [3.0, None], ids=["soft", "hard"])
def test_cells_may_lie_at_any_distance_and_from_anywhere(precision: float | None):
    convolution, images = draw_convolution(2, 3, dtype=torch.float32), draw_images(2, dtype=torch.float32)
    spacing = (0.7, 3.1)
    layer = attention_from_convolution(convolution, precision=precision, spacing=spacing)
    found = apply(layer, images, spacing, origin=(1e6, -4.0))
    bound = conversion_error_bound(
        convolution, precision=precision or math.inf, largest_input=float(images.abs().max()), spacing=spacing
    )
    with torch.no_grad():
        assert largest_difference(found, convolution(images)) <= bound


@pytest.mark.parametrize("dim_head", [3, 4, 5, 9])
def test_heads_may_be_larger_than_they_have_to_be(dim_head: int):
    # D_in = 3 and D_out = 4: a head of 3 numbers suffices, for W_h has no rank above that.
    convolution, images = draw_convolution(2, 3), draw_images(2)
    layer = attention_from_convolution(convolution, dim_head=dim_head)
    assert layer.attention.dim_head == dim_head
    with torch.no_grad():
        assert largest_difference(apply(layer, images), convolution(images)) <= 1e-14


def test_heads_of_d_h_numbers_express_every_convolution_of_d_h_output_channels_within_more_outputs():
    # The paper's min(D_h, D_out): 4 of the 8 outputs are any convolution, in heads of 4 numbers; a fifth is too many.
    convolution, images = draw_convolution(2, 3, (6, 8)), draw_images(2, 6)
    with torch.no_grad():
        convolution.weight[4:] = 0
    layer = attention_from_convolution(convolution, dim_head=4)
    with torch.no_grad():
        assert largest_difference(apply(layer, images), convolution(images)) <= 1e-14
        convolution.weight[4:5] = 1
    with pytest.raises(ValueError, match=r"dim_head is 4, expected at least 5, the rank.*low_rank_convolution"):
        attention_from_convolution(convolution, dim_head=4)


def test_it_has_parameters_of_its_own_that_can_be_trained():
    convolution, other, images = draw_convolution(2, 3), draw_convolution(2, 3), draw_images(2)
    nn.init.normal_(other.weight, std=0.2)
    grid = Grid(SHAPES[2])
    layer = attention_from_convolution(convolution, precision=2.0, dim_head=5).train()
    optimizer, losses = torch.optim.Adam(layer.parameters(), 0.05), []
    before = convolution.weight.detach().clone()
    for _ in range(15):
        loss = (grid.unflatten(layer(grid.flatten(images), grid)) - other(images).detach()).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in layer.parameters())
    assert losses[-1] < 0.5 * losses[0]
    assert torch.equal(convolution.weight, before)


def test_no_gradient_reaches_the_centres_of_hard_heads():
    layer, grid = attention_from_convolution(draw_convolution(2, 3)), Grid(SHAPES[2])
    layer(grid.flatten(draw_images(2)), grid).square().sum().backward()
    gradients = {name: float(one.grad.abs().max()) for name, one in layer.named_parameters() if one.grad is not None}
    assert gradients.pop("attention.relative.center") == 0
    assert gradients.pop("attention.relative.raw_precision") == 0
    assert sorted(gradients) == [f"attention.{name}" for name in ("output.bias", "output.weight", "value.weight")]
    assert all(gradients.values())


def test_dtype_and_mode_are_those_of_the_convolution():
    convolution = draw_convolution(1, 3, dtype=torch.bfloat16)
    layer = attention_from_convolution(convolution)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.bfloat16}
    assert not any(part.training for part in layer.modules())
    images = draw_images(1, dtype=torch.bfloat16)
    assert apply(layer, images).dtype == torch.bfloat16
    with torch.no_grad():
        assert largest_difference(apply(layer, images), convolution(images)) <= 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": 1.0, "tolerance": 0.1}, "precision and tolerance is 'both', expected at most one"),
        ({"precision": 0.0}, "precision is 0.0, expected a positive number"),
        ({"precision": math.nan}, "precision is nan"),
        ({"tolerance": 0.0}, "tolerance is 0.0, expected a number above 0 and below 2"),
        ({"dim_head": 0}, "dim_head is 0, expected at least 1"),
        ({"spacing": (1.0, 2.0, 3.0)}, "spacing is"),
        ({"spacing": -1.0}, "spacing is -1.0, expected positive"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        attention_from_convolution(draw_convolution(2, 3), **options)


def test_a_precision_that_the_dtype_cannot_hold_is_refused():
    convolution = CLASSES[1](2, 2, 3, padding=1, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"precision is .*, expected a number that torch.float16 can hold"):
        attention_from_convolution(convolution, spacing=0.01)
