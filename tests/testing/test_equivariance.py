import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from teka.audit import axis_shifts, square_shifts
from teka.codec import encode
from teka.testing import assert_equivariant, equivariance_error
from tests.raising import raises_for

SIZES = [(11,), (5, 7), (3, 5, 2)]
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TOLERANCE = 1e-10


def noise(*sizes, channels=2, batch=3):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(batch, channels, *sizes, dtype=torch.float64, generator=generator)


def make_network(num_axes, padding_mode="circular", stride=1):
    """Return two convolutions with a GELU in between, whose outputs depend on 2 cells to each side."""
    torch.manual_seed(3)
    layer = CONVOLUTIONS[num_axes]
    first = layer(2, 4, 3, padding=1, stride=stride, padding_mode=padding_mode, dtype=torch.float64)
    second = layer(4, 3, 3, padding=1, padding_mode=padding_mode, dtype=torch.float64)
    return nn.Sequential(first, nn.GELU(), second).eval()


def test_circular_convolution_is_equivariant():
    for sizes in SIZES:
        error = assert_equivariant(
            make_network(len(sizes)), noise(*sizes), axis_shifts(2, len(sizes)), tolerance=TOLERANCE
        )
        assert error.output == "dense", sizes
        assert error.noise_floor == 0.0, sizes


@pytest.mark.parametrize("sizes", SIZES)
def test_mean_of_circular_convolutions_is_invariant(sizes):
    network = make_network(len(sizes))
    error = assert_equivariant(
        lambda images: network(images).flatten(2).mean(2),
        noise(*sizes),
        axis_shifts(2, len(sizes)),
        tolerance=TOLERANCE,
    )
    assert error.output == "invariant"


@pytest.mark.parametrize("sizes", SIZES)
def test_absolute_position_embedding_is_not_equivariant(sizes):
    network = make_network(len(sizes))
    embedding = noise(*sizes, batch=1)
    with pytest.raises(AssertionError, match="not translation equivariant"):
        assert_equivariant(
            lambda images: network(images + embedding), noise(*sizes), [1], tolerance=0.05
        )


def test_strided_network_is_neither_equivariant_nor_invariant():
    network = make_network(2, stride=2)
    for function in (
        lambda images: nn.functional.interpolate(network(images), scale_factor=2),
        lambda images: network(images).mean((2, 3)),
    ):
        error = equivariance_error(function, noise(6, 10), [1, (1, 0), 2])
        assert error.by_shift[0, 1] > 0.01
        assert error.by_shift[1, 0] > 0.01
        assert error.by_shift[0, 2] <= TOLERANCE


@given(st.tuples(st.integers(-5, 5), st.integers(-7, 7)), st.floats(0.1, 10.0))
def test_error_of_an_added_ramp_equals_its_closed_form(shift, slope):
    # f(x) = x + a·column. f(T_s x) − T_s f(x) is a s for columns from inside and a (s − W) for wrapped columns,
    # with s the step to the right modulo W = 7. The squares of each row sum to a² s (W − s) W.
    inputs = noise(5, 7, batch=1, channels=1)
    columns = slope * torch.arange(7, dtype=torch.float64)
    error = equivariance_error(lambda images: images + columns, inputs, [shift])
    step = shift[1] % 7
    expected = (
        slope
        * math.sqrt(5 * step * (7 - step) * 7)
        / torch.linalg.vector_norm(inputs + columns).item()
    )
    assert error.maximum == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_invariance_error_equals_hand_computed_values():
    # f(x) is the first of the cells 1 … 11. After a shift by s it reads the cell s to the left.
    inputs = torch.arange(1.0, 12.0, dtype=torch.float64).reshape(1, 1, 11)
    error = equivariance_error(lambda line: line[:, :, 0], inputs, [0, 1, -3])
    assert error.by_shift == {(0,): 0.0, (1,): 10.0, (-3,): 3.0}
    assert (error.maximum, error.worst_shift) == (10.0, (1,))
    assert error.mean == pytest.approx(13 / 3)


def test_error_distinguishes_vertical_from_horizontal_shifts():
    # The weights differ between columns, so the function is equivariant to vertical shifts only.
    columns = torch.arange(1.0, 8.0, dtype=torch.float64)
    error = equivariance_error(lambda images: images * columns, noise(5, 7), [(2, 0), (0, 2)])
    assert error.by_shift[2, 0] == 0.0
    assert error.by_shift[0, 2] > 0.1


def test_zero_padding_on_a_canvas_passes_with_a_border():
    # The background is 0 like the padding of the first layer, so only the second layer changes one edge cell.
    function = make_network(2, padding_mode="zeros")
    arguments = {"mode": "canvas", "canvas_size": (13, 17), "shifts": square_shifts(3)}
    assert_equivariant(function, noise(5, 7), border=1, tolerance=TOLERANCE, **arguments)
    assert equivariance_error(function, noise(5, 7), border=0, **arguments).maximum > 1e-3


def test_pointwise_function_passes_in_every_mode():
    for mode in ["circular", "lossless", "zero"]:
        inputs = torch.zeros(2, 1, 11, 13, dtype=torch.float64)
        inputs[:, :, 4:7, 3:8] = noise(3, 5, channels=1, batch=2)
        error = equivariance_error(lambda images: images + 1.0, inputs, square_shifts(3), mode=mode)
        assert (error.maximum, error.mode) == (0.0, mode), mode


def test_cells_that_entered_at_an_edge_are_not_compared():
    error = equivariance_error(lambda images: images, noise(5, 7), square_shifts(2), mode="zero")
    assert error.maximum == 0.0
    with pytest.raises(ValueError, match=r"cells of \(5, 7\) to compare at shift \(0, 7\)"):
        equivariance_error(lambda images: images, noise(5, 7), [7], mode="zero")


def test_error_on_a_canvas_survives_json():
    error = equivariance_error(
        lambda images: images, noise(5, 7), [2], mode="canvas", canvas_size=11
    )
    assert error.mode == "canvas"
    assert json.loads(json.dumps(encode(error))) == {
        "mode": "canvas",
        "output": "dense",
        "border": 0,
        "shifts": [[0, 2]],
        "errors": [0.0],
        "noise_floor": 0.0,
    }


def test_noise_floor_is_the_difference_of_two_calls():
    calls = []

    def drifting(images):
        calls.append(None)
        return images + 0.5 * len(calls)

    inputs = torch.ones(1, 1, 7, dtype=torch.float64)
    assert equivariance_error(drifting, inputs, [1]).noise_floor == pytest.approx(0.5 / 1.5)


def test_map_can_be_tested_for_invariance():
    inputs = noise(5, 7)
    error = equivariance_error(lambda images: images, inputs, [1], output="invariant")
    expected = torch.linalg.vector_norm(inputs.roll(1, -1) - inputs) / torch.linalg.vector_norm(
        inputs
    )
    assert error.maximum == pytest.approx(expected.item(), rel=1e-12)


def test_function_may_change_its_input_and_reuse_its_output():
    inputs = noise(5, 7)
    original = inputs.clone()
    buffer = torch.empty_like(inputs)

    def in_place_function(images):
        images.mul_(2.0)
        return buffer.copy_(images + torch.arange(7))

    error = equivariance_error(in_place_function, inputs, [0, 2])
    clean = equivariance_error(lambda images: 2.0 * images + torch.arange(7), inputs, [0, 2])
    assert torch.equal(inputs, original)
    assert error == clean
    assert error.maximum > 0.1


def test_function_is_called_without_autograd():
    recorded = []

    def function(images):
        recorded.append(torch.is_grad_enabled())
        return images

    equivariance_error(function, noise(7).requires_grad_(), [1])
    assert recorded == [False] * 3


def test_float16_outputs_are_compared_without_overflow():
    # The output is a fixed pattern of ± 60,000, close to the largest float16 value.
    pattern = 6e4 * torch.tensor([1.0, -1.0] * 5)
    error = equivariance_error(lambda images: pattern.half().expand_as(images), noise(10), [1, 2])
    assert error.by_shift == {(1,): 2.0, (2,): 0.0}


def test_failure_names_worst_shift_error_tolerance_and_noise_floor():
    inputs = torch.arange(1.0, 12.0, dtype=torch.float64).reshape(1, 1, 11)
    with pytest.raises(AssertionError) as caught:
        assert_equivariant(lambda line: line[:, :, 0], inputs, [-3, 1, 0], tolerance=2.5)
    for part in (
        "error 10 at shift (1,)",
        "tolerance 2.5",
        "noise floor 0",
        "'circular'",
        "'invariant'",
    ):
        assert part in str(caught.value)
    assert_equivariant(lambda line: line[:, :, 0], inputs, [-3, 1, 0], tolerance=10.0)


def growing_output():
    sizes = iter((7, 7, 6))
    return lambda images: images[:, :, 0, : next(sizes)]


def test_incomparable_outputs_are_errors():
    for function, message in [
        (lambda images: images * 0, "got only zeros"),
        (lambda images: images / 0, "NaN or infinity"),
        (lambda images: images * torch.nan, "NaN or infinity"),
        (lambda images: (images, images), "must be a tensor.*got 'tuple'"),
        (lambda images: images.argmax(-1), "torch.int64"),
        (lambda images: images.mean(), r"shape \(3, …\).*got \(\)"),
        (lambda images: images[:2], r"shape \(3, …\).*got \(2, 2, 5, 7\)"),
        (growing_output(), r"shape \(3, 2, 7\).*got \(3, 2, 6\)"),
        (nn.Dropout(), r"Call \.eval\(\)"),
    ]:
        with raises_for(message, ValueError, match=message):
            equivariance_error(function, noise(5, 7), [1])


def test_invalid_arguments_are_errors(unchecked_annotations):
    for arguments, message in [
        ({"shifts": []}, "at least one shift"),
        ({"shifts": [8]}, "shifts must be"),
        ({"shifts": [(1, 2, 3)]}, "shifts must be"),
        ({"mode": "circulr"}, "Did you mean 'circular'"),
        ({"output": "dens"}, "Did you mean 'dense'"),
        ({"border": -1}, r"border must be .*got -1"),
        ({"border": 3}, r"border must be .*got 3"),
        ({"border": 1, "output": "invariant"}, "border must be 0.*got 1"),
        ({"inputs": torch.ones(5, 7)}, "inputs must have"),
        ({"inputs": torch.ones(0, 2, 5, 7)}, "inputs must have"),
        (
            {"inputs": torch.ones(1, 2, 5, 7).numpy()},
            "inputs must be a tensor.*got an object of type ndarray",
        ),
        ({"mode": "lossless"}, "have a smaller margin"),
        (
            {"function": lambda images: images.mean(-1), "output": "dense"},
            r"if dense, got \(3, 2, 5\)",
        ),
    ]:
        given_arguments = {
            "function": lambda images: images,
            "inputs": noise(5, 7),
            "shifts": [1],
            **arguments,
        }
        with raises_for(message, ValueError, match=message):
            equivariance_error(**given_arguments)


def test_invalid_tolerances_are_errors():
    for tolerance in [-1e-3, math.nan, math.inf]:
        with raises_for(tolerance, ValueError, match="tolerance must be"):
            assert_equivariant(lambda images: images, noise(5, 7), [1], tolerance=tolerance)
