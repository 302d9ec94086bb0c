import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from teka.audit.measure.lie_derivative import (
    DERIVATIVES,
    LieDerivative,
    difference_quotient,
    lie_derivative,
)
from teka.audit.model_call import ModelError
from teka.codec import decode, encode
from tests.raising import raises_for


def wave(side, frequency, phases=(0.3,), axis=1, other=3):
    """Waves cos(ωj + φ) along one axis, constant along the other: (N, 1, H, W) in float64."""
    cells = 2 * math.pi * frequency / side * torch.arange(side, dtype=torch.float64)
    lines = torch.stack([torch.cos(cells + phase) for phase in phases])
    images = lines[:, None, None, :].expand(-1, 1, other, -1).contiguous()
    return images if axis == 1 else images.transpose(2, 3).contiguous()


def noise(batch=4):
    return torch.randn(
        batch, 2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(8)
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_a_function_that_reads_one_cell_changes_as_the_wave_does(axis):
    # f(x) = x_0 = cos φ, and the wave moved by t has cos(φ − ωt) there: the derivative is ω sin φ.
    phases, omega = (0.3, 1.1, -0.7), 2 * math.pi * 2 / 7
    images = wave(7, 2, phases, axis)
    measured = lie_derivative(lambda batch: batch[:, :, 0, 0], images, axis=axis)
    assert measured.by_image == pytest.approx(
        [omega * abs(math.tan(phase)) for phase in phases], rel=1e-10
    )
    assert measured.mean == pytest.approx(sum(measured.by_image) / 3)
    assert (measured.axis, measured.output) == (axis, "invariant")
    assert (measured.method, measured.reason) == ("forward-mode jvp", None)
    still = lie_derivative(lambda batch: batch[:, :, 0, 0], images, axis=1 - axis)
    assert max(still.by_image) < 1e-13


def test_linear_invariant_functions_have_none():
    assert max(lie_derivative(lambda batch: batch.mean((2, 3)), noise(), axis=1).by_image) < 1e-13
    assert max(lie_derivative(lambda batch: batch, noise(), axis=0).by_image) < 1e-13


def test_circular_convolution_is_equivariant_to_the_smallest_moves_too():
    torch.manual_seed(1)
    convolution = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", dtype=torch.float64).eval()
    for axis in (0, 1):
        measured = lie_derivative(convolution, noise(), axis=axis)
        assert measured.output == "dense"
        assert max(measured.by_image) < 1e-12


def test_what_is_added_at_fixed_places_is_felt_in_a_dense_map():
    # f(x) = x + p: T_{−t} f(T_t x) = x + T_{−t} p, whose derivative has the norm ω ‖p‖ of a wave p.
    embedding = wave(7, 3)
    images = wave(7, 1, (0.2, 0.9))
    measured = lie_derivative(lambda batch: batch + embedding, images, axis=1)
    norms = (images + embedding).flatten(1).norm(dim=1)
    assert measured.by_image == pytest.approx(
        (2 * math.pi * 3 / 7 * embedding.norm() / norms).tolist(), rel=1e-10
    )


def test_a_stride_is_felt_by_waves_that_its_map_does_not_hold():
    for frequency, expected in [(1, 0.0), (2, 0.0), (5, math.pi), (4, math.pi)]:
        # Every second cell of a wave of k periods over 12 is one of k periods over 6; beyond 3 it is taken for one of
        # k − 6. Moved back by t / 2 of its cells it turns by 2π(k − 6)t/12, not by 2πkt/12: 6 periods over 12 are
        # missing.
        measured = lie_derivative(lambda batch: batch[..., ::2], wave(12, frequency), axis=1)
        assert measured.output == "dense", frequency
        assert measured.mean == pytest.approx(expected, abs=1e-12), frequency


def test_a_map_of_one_cell_should_stay():
    measured = lie_derivative(lambda batch: batch[:, :, :1, :1], wave(7, 2), axis=1)
    assert measured.output == "invariant"
    assert measured.mean > 0.1


def test_batches_give_the_same_numbers():
    def function(batch):
        return (batch**2)[:, :, 1, 2]

    whole, parts = (lie_derivative(function, noise(5), axis=-1, batch_size=size) for size in (5, 2))
    assert parts.by_image == pytest.approx(whole.by_image, rel=1e-12)
    assert parts.axis == 1


def test_fused_attention_has_a_forward_derivative():
    def attend(batch):
        tokens = batch.flatten(2).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)[:, 0]

    assert lie_derivative(attend, noise(), axis=1).method == "forward-mode jvp"


def test_without_a_forward_derivative_there_are_two_backward_passes():
    # In evaluation and without gradients, torch fuses this layer to one operation that has no forward derivative.
    torch.manual_seed(9)
    layer = nn.TransformerEncoderLayer(2, 2, 8, batch_first=True, dtype=torch.float64).eval()

    def encode(batch):
        return layer(batch.flatten(2).transpose(1, 2))[:, 0]

    measured = lie_derivative(encode, noise(), axis=1)
    assert measured.method == "double backward"
    assert str(measured.reason).startswith("forward-mode jvp: NotImplementedError")
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        same = lie_derivative(encode, noise(), axis=1)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert same.method == "forward-mode jvp"
    assert measured.by_image == pytest.approx(same.by_image, rel=1e-9)


def by_numpy(batch):
    return torch.from_numpy(batch.numpy()[:, :, 1, 2] ** 2)


def in_inference(batch):
    with torch.inference_mode():
        return batch[:, :, 1, 2] ** 2


def test_where_the_derivative_is_cut_a_central_difference_stands_in():
    for function in [lambda batch: batch.detach()[:, :, 1, 2] ** 2, by_numpy, in_inference]:
        measured = lie_derivative(function, noise(), axis=1)
        assert measured.method == "central difference", function
        assert "forward-mode jvp: " in str(measured.reason), function
        assert "double backward: " in str(measured.reason), function
        exact = lie_derivative(lambda batch: batch[:, :, 1, 2] ** 2, noise(), axis=1)
        assert measured.by_image == pytest.approx(exact.by_image, rel=1e-9), function


def test_a_constant_has_none_by_any_way():
    measured = lie_derivative(lambda batch: torch.ones(len(batch), 2), noise(), axis=0)
    assert measured.by_image == (0.0,) * 4
    assert (measured.method, measured.reason) == ("forward-mode jvp", None)


def test_logits_are_taken_out_of_the_object_that_holds_them():
    wrapped = lie_derivative(
        lambda batch: SimpleNamespace(logits=batch[:, :, 0, 0]), noise(), axis=1
    )
    assert wrapped == lie_derivative(lambda batch: batch[:, :, 0, 0], noise(), axis=1)


def test_it_may_be_asked_for_within_inference_mode():
    with torch.inference_mode():
        measured = lie_derivative(lambda batch: batch[:, :, 0, 0], noise(), axis=1)
    assert measured.method == "forward-mode jvp"


def test_an_output_of_zero_that_changes_is_refused():
    images = noise()
    images[1] = 0.0
    images[1, :, 2, 2] = 1.0
    with pytest.raises(ValueError, match="norm zero for an image"):
        lie_derivative(lambda batch: batch[:, :, 2, 1], images, axis=1)


def test_bad_input_is_refused():
    for images, options, message in [
        (noise(0), {"axis": 0}, r"images must have .*got \(0,"),
        (noise().to(torch.int64), {"axis": 0}, "a floating-point dtype"),
        (noise(), {"axis": 2}, r"axis must be .*got 2"),
        (noise(), {"axis": 0, "batch_size": 0}, r"batch_size must be .*got 0"),
    ]:
        with raises_for(options, ValueError, match=message):
            lie_derivative(lambda batch: batch.mean((2, 3)), images, **options)


def test_a_model_that_fails_or_trains_is_named_as_such():
    def failing(batch):
        raise RuntimeError("sizes do not match")

    with pytest.raises(
        ModelError, match="RuntimeError on the first of the images: sizes do not match"
    ):
        lie_derivative(failing, noise(), axis=0)
    with pytest.raises(ValueError, match="training mode"):
        lie_derivative(nn.Dropout(), noise(), axis=0)


def test_the_numbers_survive_json():
    measured = lie_derivative(lambda batch: batch[:, :, 0, 0], noise(), axis=1)
    assert decode(LieDerivative, json.loads(json.dumps(encode(measured)))) == measured


def point_and_direction():
    generator = torch.Generator().manual_seed(6)
    return tuple(torch.randn(3, 5, dtype=torch.float64, generator=generator) for _ in range(2))


def test_every_way_gives_the_derivative_of_a_polynomial():
    for derivative in DERIVATIVES.values():
        # The central difference of x² is exact: ((x + hv)² − (x − hv)²) / 2h = 2xv.
        point, direction = point_and_direction()
        value, change = derivative(lambda inputs: inputs**2, point, direction)
        assert_close(value, point**2)
        assert_close(change, 2 * point * direction)


@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
def test_every_way_gives_the_derivative_of_a_matrix_product(derivative):
    point, direction = point_and_direction()
    weights = torch.arange(10.0, dtype=torch.float64).reshape(5, 2)
    assert_close(
        derivative(lambda inputs: inputs @ weights, point, direction)[1], direction @ weights
    )


def test_the_central_difference_is_off_by_the_third_derivative():
    # Of x³ it is 3x²v + h²v³, with h = 1/32.
    point, direction = point_and_direction()
    change = difference_quotient(lambda inputs: inputs**3, point, direction)[1]
    assert_close(change, 3 * point**2 * direction + direction**3 / 1024)


def test_the_central_difference_bears_a_function_that_writes_into_its_input_and_reuses_its_output():
    point, direction = point_and_direction()
    buffer = torch.empty_like(point)

    def careless(inputs):
        return buffer.copy_(inputs.mul_(3.0))

    value, change = difference_quotient(careless, point.clone(), direction)
    assert_close(value, 3 * point)
    assert_close(change, 3 * direction)
