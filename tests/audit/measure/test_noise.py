import json

import pytest
import torch
from torch import nn

from teka.audit.measure.noise import NoiseFloor, noise_floor
from teka.audit.model_call import ModelError
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
        assert "not a module that can be cast" in str(floor.reason), function


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
