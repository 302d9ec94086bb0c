import math

import pytest
import torch
from tests.contracts.cases import relative_change
from torch import nn

from teka.experiments.reproduce.papers import paper_models
from teka.flops import flop_counter
from teka.models import ResNet18
from teka.models.convolutional import ResidualBlock


def test_it_has_the_parameters_of_the_form_for_large_images():
    assert sum(parameter.numel() for parameter in ResNet18(32, 3, 10).parameters()) == 11_181_642


def test_the_form_for_small_images_has_the_parameters_and_operations_of_cordonnier_et_al():
    model = ResNet18(32, 3, 10, resnet_stem="3x3").eval()
    with torch.no_grad(), flop_counter() as counter:
        assert model.stem(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 32, 32)
        model(torch.zeros(1, 3, 32, 32))
    paper = paper_models()["ResNet18"]
    assert f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f}M" == paper.parameters
    assert f"{counter.get_total_flops() / 1e9:.1f}B" == paper.flops


def test_an_unknown_stem_is_an_error():
    with pytest.raises(ValueError, match="resnet_stem is '5x5', expected one of"):
        ResNet18(32, 3, 10, resnet_stem="5x5")


@pytest.mark.parametrize(
    ("size", "places"),
    [
        pytest.param((32, 32), (256, 64, 16, 4, 1), id="of 32 × 32 the last stage has one place"),
        pytest.param((14, 30), (7 * 15, 4 * 8, 2 * 4, 1 * 2, 1 * 1), id="odd sides are rounded up"),
    ],
)
def test_flops_are_those_of_twenty_convolutions_and_a_linear_map(size, places):
    expected, before = 2 * 2 * 3 * 49 * places[0], 3
    for stage, after in enumerate((3, 6, 12, 24)):
        here = places[stage + 1]
        expected += 2 * 9 * here * (before * after + 3 * after * after)
        expected += 2 * here * before * after if stage else 0
        before = after
    expected += 2 * 24 * 5
    with flop_counter() as counter:
        ResNet18(size, 2, 5, width=3).eval()(torch.zeros(1, 2, *size))
    assert counter.get_total_flops() == expected


@pytest.mark.parametrize(
    ("channels", "stride"),
    [
        pytest.param((3, 3), 1, id="the shortcut is the identity"),
        pytest.param((3, 5), 2, id="the shortcut is a convolution"),
    ],
)
def test_a_block_adds_its_shortcut_before_the_last_relu(channels: tuple[int, int], stride: int):
    torch.manual_seed(0)
    block, maps = ResidualBlock(*channels, stride).double().eval(), torch.randn(2, channels[0], 7, 6).double()
    weights = [module.weight for module in block.residual if isinstance(module, nn.Conv2d)]
    scale = 1 / math.sqrt(1 + 1e-5)  # a batch normalisation that has seen nothing
    hidden = (nn.functional.conv2d(maps, weights[0], stride=stride, padding=1) * scale).relu()
    residual = nn.functional.conv2d(hidden, weights[1], padding=1) * scale
    shortcut = maps
    if stride != 1:
        weight = block.get_parameter("shortcut.0.weight")
        shortcut = nn.functional.conv2d(maps, weight, stride=stride) * scale
    assert relative_change(block(maps), (shortcut + residual).relu()) < 1e-12


def test_initialisation_is_of_he_and_nothing_is_dropped():
    torch.manual_seed(0)
    model = ResNet18(32, 3, 10, width=16)
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels > 3:
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert float(module.weight.detach().std()) == pytest.approx(math.sqrt(2 / fan_out), rel=0.1)
        assert not isinstance(module, nn.Dropout)
