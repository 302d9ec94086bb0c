import pytest
import torch
from torch import nn

from teka.flops import flop_counter
from teka.models import AlexNet


def test_it_has_the_parameters_of_the_form_that_horn_et_al_trained():
    model = AlexNet(32, 3, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 2_472_266


@pytest.mark.parametrize(
    ("size", "places"),
    [
        pytest.param((32, 32), ((8, 8), (4, 4), (2, 2), (2, 2), (2, 2), (1, 1)), id="one place is left of 32 × 32"),
        pytest.param((29, 64), ((8, 16), (4, 8), (2, 4), (2, 4), (2, 4), (1, 2)), id="two are left of 29 × 64"),
    ],
)
def test_flops_are_those_of_five_convolutions_and_a_linear_map(size, places):
    channels, kernels = (2, 64, 192, 384, 256, 256), (11, 5, 3, 3, 3)
    expected = 0
    for before, after, kernel, (height, width) in zip(channels, channels[1:], kernels, places, strict=False):
        expected += 2 * before * after * kernel**2 * height * width
    expected += 2 * 256 * places[5][0] * places[5][1] * 7
    model = AlexNet(size, 2, 7).eval()
    with flop_counter() as counter:
        model(torch.zeros(1, 2, *size))
    assert counter.get_total_flops() == expected


def test_dropout_follows_the_relus_of_the_first_third_and_fifth_convolution():
    kinds = [type(module).__name__ for module in AlexNet(32, 3, 10).features]
    convolution, after = 0, []
    for kind, following in zip(kinds, kinds[2:], strict=False):
        convolution += kind == "Conv2d"
        if kind == "Conv2d" and following == "Dropout":
            after.append(convolution)
    assert after == [1, 3, 5]
    assert {module.p for module in AlexNet(32, 3, 10, dropout=0.25).modules() if isinstance(module, nn.Dropout)} == {
        0.25
    }


def test_without_dropout_training_gives_the_logits_of_evaluation():
    torch.manual_seed(0)
    model, images = AlexNet(32, 1, 4, dropout=0.0), torch.randn(2, 1, 32, 32)
    assert torch.equal(model.train()(images), model.eval()(images))
