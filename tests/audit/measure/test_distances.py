import json

import pytest
import torch
from torch import nn

from teka.audit import square_shifts
from teka.audit.measure.distances import NoiseFloor, SensitivityMap, noise_floor, sensitivity_map
from teka.audit.model_call import ModelError
from teka.audit.movement import Movement
from teka.codec import decode, encode
from tests.raising import raises_for


def images(dtype=torch.float32):
    return torch.randn(7, 2, 5, 3, dtype=dtype, generator=torch.Generator().manual_seed(2))


def network(dtype=torch.float32):
    torch.manual_seed(4)
    layers = nn.Conv2d(2, 5, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(75, 3)
    return nn.Sequential(*layers).to(dtype).eval()


def test_the_precision_is_the_difference_to_the_network_in_double():
    with torch.no_grad():
        single, double = network()(images()).double(), network().double()(images().double())
    floor = noise_floor(network(), images())
    assert floor.repeat == 0.0
    assert floor.precision is not None
    assert floor.precision == pytest.approx(
        float((single - double).norm() / double.norm()), rel=1e-12
    )
    assert floor.precision < 1e-6
    assert floor.reason is None


def test_a_network_in_double_is_compared_with_itself_in_single():
    # The weights and images are float32 numbers, so both directions compare the same two networks.
    floor = noise_floor(network(torch.float64), images().double())
    assert floor.precision == pytest.approx(noise_floor(network(), images()).precision, rel=1e-12)


def test_the_network_itself_keeps_its_dtype():
    module = network()
    noise_floor(module, images())
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


def test_the_difference_of_two_calls_is_measured():
    calls = []

    def unstable(batch):
        calls.append(1)
        return batch.flatten(1) * (1.25 if len(calls) % 2 == 0 else 1.0)

    assert noise_floor(unstable, images()).repeat == pytest.approx(0.25)


def test_batches_are_put_together():
    class Scaled(nn.Module):
        """Rounds every number alike, whatever the batch it is in."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1 / 3))

        def forward(self, batch):
            return batch.flatten(1) * self.weight / 7

    whole, parts = (noise_floor(Scaled().eval(), images(), batch_size=size) for size in (7, 3))
    assert whole.precision is not None
    assert whole.precision > 1e-9
    assert parts.precision == pytest.approx(whole.precision, rel=1e-6)


def test_what_is_no_module_has_no_precision_and_a_reason():
    for function in [lambda batch: batch.mean((2, 3)), nn.Identity().eval().forward]:
        floor = noise_floor(function, images())
        assert (floor.repeat, floor.precision) == (0.0, None), function
        assert "no module that can be cast" in str(floor.reason), function


def test_a_module_that_cannot_be_cast_has_no_precision_and_a_reason():
    class Fixed(nn.Module):
        def forward(self, batch):
            return batch.flatten(1) @ torch.ones(30, 2)

    floor = noise_floor(Fixed().eval(), images())
    assert (floor.repeat, floor.precision) == (0.0, None)
    assert "the copy in torch.float64 fails" in str(floor.reason)


def test_outputs_of_zero_have_no_noise():
    assert noise_floor(lambda batch: torch.zeros(len(batch), 2), images()).repeat == 0.0


def test_bad_functions_are_refused():
    for function, message in [
        (network().train(), "training mode"),
        (lambda batch: batch.flatten(1) / 0, "NaN or infinity"),
        (
            lambda batch: "a cat",
            "output of the model on the images, for the noise floor is of type str",
        ),
    ]:
        with raises_for(message, ValueError, match=message):
            noise_floor(function, images())


def test_a_model_that_raises_is_named_as_such():
    def failing(batch):
        raise KeyError("no weights")

    with pytest.raises(ModelError, match="KeyError on the images, for the noise floor"):
        noise_floor(failing, images())


def test_no_images_are_refused():
    with pytest.raises(ValueError, match="none of them empty"):
        noise_floor(network(), images()[:0])


def test_the_numbers_survive_json():
    for floor in (noise_floor(network(), images()), NoiseFloor(0.5, None, "no module")):
        assert decode(NoiseFloor, json.loads(json.dumps(encode(floor)))) == floor


def noise(batch=7):
    return torch.randn(
        batch, 2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )


def test_a_value_worked_out_by_hand():
    # f reads the last cell. Lines 0 0 0 0, 1 2 3 4 and 5 5 5 8; at a shift by 1 it reads the third cell: distances
    # 0, 1 and 3; unmoved the outputs 0, 4, 8 lie 4, 8 and 4 apart, with the median 4.
    lines = torch.tensor([[0.0, 0, 0, 0], [1, 2, 3, 4], [5, 5, 5, 8]]).reshape(3, 1, 4)
    measured = sensitivity_map(lambda batch: batch[:, :, -1], lines, [0, 1], Movement("circular"))
    assert measured.shifts == ((0,), (1,))
    assert measured.scale == 4.0
    assert measured.values == pytest.approx((0.0, (0 + 1 + 3) / 3 / 4))
    assert measured.num_images == 3


def test_a_mean_does_not_feel_whole_nor_fourier_shifts():
    for mode, shifts in (
        ("circular", square_shifts(2)),
        ("fourier", [(0, 0), (0.5, 0.25), (1.5, -2)]),
    ):
        measured = sensitivity_map(
            lambda batch: batch.mean((2, 3)), noise(), shifts, Movement(mode)
        )
        assert max(measured.values) < 1e-12


def test_the_zero_shift_is_no_distance_and_the_map_is_the_mean_over_images():
    def function(batch):
        return batch[:, :, 0] ** 2

    images, movement = noise(), Movement("zero")
    measured = sensitivity_map(function, images, square_shifts(1), movement)
    values = dict(zip(measured.shifts, measured.values, strict=True))
    assert values[0, 0] == 0.0
    moved = movement.move(images, (1, -1))
    distances = (function(moved) - function(images)).flatten(1).norm(dim=1)
    assert values[1, -1] == pytest.approx(float(distances.mean()) / measured.scale)


def test_batches_give_the_same_map():
    def function(batch):
        return batch[:, :, 2]

    whole, parts = (
        sensitivity_map(function, noise(), square_shifts(1), Movement("reflect"), batch_size=size)
        for size in (7, 3)
    )
    assert parts.values == pytest.approx(whole.values, rel=1e-12)
    assert parts.scale == whole.scale


def test_the_model_sees_what_the_movement_shows():
    seen = set()

    def function(batch):
        seen.add(tuple(batch.shape[2:]))
        return batch.mean((2, 3))

    sensitivity_map(function, noise(), [0], Movement("canvas", canvas_size=9))
    sensitivity_map(function, noise(), [0], Movement("crop", crop_size=(3, 4)))
    assert seen == {(9, 9), (3, 4)}


def test_a_shift_that_loses_content_is_refused_before_the_first_call():
    calls = []
    images = torch.zeros(4, 1, 5, 7)
    images[:3, :, 2, 2:5] = 1.0
    images[3, :, 2, 6] = 1.0
    with pytest.raises(ValueError, match="1 of 1 images lose pixels"):
        sensitivity_map(calls.append, images, [0, 2], Movement("lossless"), batch_size=3)
    assert not calls


def test_outputs_that_are_all_the_same_give_no_scale():
    with pytest.raises(ValueError, match="equal outputs for most pairs"):
        sensitivity_map(
            lambda batch: torch.ones(len(batch), 2), noise(), [0, 1], Movement("circular")
        )


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"images must be at least two.*got 1 images"):
        sensitivity_map(lambda batch: batch.mean((2, 3)), noise(1), [0], Movement("circular"))
    with pytest.raises(ValueError, match=r"batch_size must be .*got 0"):
        sensitivity_map(
            lambda batch: batch.mean((2, 3)), noise(), [0], Movement("circular"), batch_size=0
        )
    with pytest.raises(ValueError, match="training mode"):
        sensitivity_map(nn.Dropout(), noise(), [0], Movement("circular"))


def test_a_model_that_raises_is_named_with_the_shift():
    def failing(batch):
        if batch[0, 0, 0, 0] != noise()[0, 0, 0, 0]:
            raise RuntimeError("moved")
        return batch.mean((2, 3))

    with pytest.raises(ModelError, match=r"RuntimeError on the images at shift \(0, 1\): moved"):
        sensitivity_map(failing, noise(), [0, 1], Movement("circular"))


def test_the_map_survives_json():
    measured = sensitivity_map(
        lambda batch: batch[:, :, 0], noise(), [(0, 0), (0.5, 1)], Movement("bilinear")
    )
    assert decode(SensitivityMap, json.loads(json.dumps(encode(measured)))) == measured
