import json

import pytest
import torch
from torch import nn

from teka.audit.measure.noise import NoiseFloor, noise_floor
from teka.audit.model_call import ModelError
from teka.codec import decode, encode
from tests.raising import raises_for


def random_images(dtype=torch.float32):
    return torch.randn(7, 2, 5, 3, dtype=dtype, generator=torch.Generator().manual_seed(2))


def make_network(dtype=torch.float32):
    torch.manual_seed(4)
    layers = nn.Conv2d(2, 5, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(75, 3)
    return nn.Sequential(*layers).to(dtype).eval()


def test_precision_is_the_difference_from_float64():
    with torch.no_grad():
        single, double = (
            make_network()(random_images()).double(),
            make_network().double()(random_images().double()),
        )
    floor = noise_floor(make_network(), random_images())
    assert floor.repeat == 0.0
    assert floor.precision is not None
    assert floor.precision == pytest.approx(
        float((single - double).norm() / double.norm()), rel=1e-12
    )
    assert floor.precision < 1e-6
    assert floor.reason is None


def test_precision_of_a_float64_network_is_the_difference_from_float32():
    # All weights and images are exact in float32, so both directions compare the same two networks.
    floor = noise_floor(make_network(torch.float64), random_images().double())
    assert floor.precision == pytest.approx(
        noise_floor(make_network(), random_images()).precision, rel=1e-12
    )


def test_noise_floor_keeps_the_dtype_of_the_network():
    module = make_network()
    noise_floor(module, random_images())
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


def test_repeat_is_the_difference_of_two_calls():
    calls = []

    def unstable(batch):
        calls.append(1)
        return batch.flatten(1) * (1.25 if len(calls) % 2 == 0 else 1.0)

    assert noise_floor(unstable, random_images()).repeat == pytest.approx(0.25)


def test_precision_does_not_depend_on_the_batch_size():
    class Scaled(nn.Module):
        """Module whose rounding does not depend on the batch."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1 / 3))

        def forward(self, batch):
            return batch.flatten(1) * self.weight / 7

    whole, parts = (
        noise_floor(Scaled().eval(), random_images(), batch_size=size) for size in (7, 3)
    )
    assert whole.precision is not None
    assert whole.precision > 1e-9
    assert parts.precision == pytest.approx(whole.precision, rel=1e-6)


def test_function_that_is_no_module_has_a_reason_and_no_precision():
    for function in [lambda batch: batch.mean((2, 3)), nn.Identity().eval().forward]:
        floor = noise_floor(function, random_images())
        assert (floor.repeat, floor.precision) == (0.0, None), function
        assert "not a module that can be cast" in str(floor.reason), function


def test_module_that_cannot_be_cast_has_a_reason_and_no_precision():
    class Fixed(nn.Module):
        def forward(self, batch):
            return batch.flatten(1) @ torch.ones(30, 2)

    floor = noise_floor(Fixed().eval(), random_images())
    assert (floor.repeat, floor.precision) == (0.0, None)
    assert "the copy in torch.float64 fails" in str(floor.reason)


def test_zero_outputs_have_no_noise():
    assert noise_floor(lambda batch: torch.zeros(len(batch), 2), random_images()).repeat == 0.0


def test_invalid_functions_are_errors():
    for function, message in [
        (lambda batch: batch.flatten(1) / 0, "NaN or infinity"),
        (
            lambda batch: "a cat",
            "output of the model on the images, for the noise floor is of type str",
        ),
    ]:
        with raises_for(message, ValueError, match=message):
            noise_floor(function, random_images())


def test_error_of_the_model_names_the_noise_floor():
    def failing(batch):
        raise KeyError("no weights")

    with pytest.raises(ModelError, match="KeyError on the images, for the noise floor"):
        noise_floor(failing, random_images())


def test_noise_floor_survives_json():
    for floor in (noise_floor(make_network(), random_images()), NoiseFloor(0.5, None, "no module")):
        assert decode(NoiseFloor, json.loads(json.dumps(encode(floor)))) == floor
