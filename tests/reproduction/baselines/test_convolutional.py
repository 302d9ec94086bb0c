"""AlexNet, VGG-16 and ResNet-18."""

import math

import pytest
import torch
from torch import nn

from reproduction.baselines import VGG16, AlexNet, ResNet18
from reproduction.baselines.convolutional import ResidualBlock
from reproduction.flops import make_flop_counter
from tests.contracts.cases import relative_error
from tests.cordonnier2020 import paper_models


def test_alexnet_has_the_number_of_parameters_of_horn2021():
    with torch.device("meta"):
        model = AlexNet(32, 3, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 2_472_266


@pytest.mark.parametrize(
    ("size", "map_sizes"),
    [
        pytest.param(
            (32, 32),
            ((8, 8), (4, 4), (2, 2), (2, 2), (2, 2), (1, 1)),
            id="32 × 32 ends with one position",
        ),
        pytest.param(
            (29, 64),
            ((8, 16), (4, 8), (2, 4), (2, 4), (2, 4), (1, 2)),
            id="29 × 64 ends with two positions",
        ),
    ],
)
def test_alexnet_flops_equal_the_formula(size, map_sizes):
    channels, kernels = (2, 64, 192, 384, 256, 256), (11, 5, 3, 3, 3)
    expected = 0
    for before, after, kernel, (height, width) in zip(
        channels, channels[1:], kernels, map_sizes, strict=False
    ):
        expected += 2 * before * after * kernel**2 * height * width
    expected += 2 * 256 * map_sizes[5][0] * map_sizes[5][1] * 7
    model = AlexNet(size, 2, 7).eval()
    with make_flop_counter() as counter:
        model(torch.zeros(1, 2, *size))
    assert counter.get_total_flops() == expected


def test_alexnet_has_dropout_after_convolutions_1_3_and_5():
    kinds = [type(module).__name__ for module in AlexNet(32, 3, 10).features]
    convolution, after = 0, []
    for kind, following in zip(kinds, kinds[2:], strict=False):
        convolution += kind == "Conv2d"
        if kind == "Conv2d" and following == "Dropout":
            after.append(convolution)
    assert after == [1, 3, 5]
    assert {
        module.p
        for module in AlexNet(32, 3, 10, dropout=0.25).modules()
        if isinstance(module, nn.Dropout)
    } == {0.25}


def test_alexnet_without_dropout_has_equal_logits_in_training():
    torch.manual_seed(0)
    model, images = AlexNet(32, 1, 4, dropout=0.0), torch.randn(2, 1, 32, 32)
    assert torch.equal(model.train()(images), model.eval()(images))


def test_vgg16_has_the_number_of_parameters_of_configuration_d():
    with torch.device("meta"):
        model = VGG16(32, 3, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_301_514


def test_vgg16_flops_equal_the_formula():
    height, width, before, expected = 32, 64, 2, 0
    for group in ((3, 3), (6, 6), (12, 12, 12), (24, 24, 24), (24, 24, 24)):
        for after in group:
            expected += 2 * before * after * 9 * height * width
            before = after
        height, width = height // 2, width // 2
    expected += 2 * (24 * 49 * 11 + 11 * 11 + 11 * 5)
    with make_flop_counter() as counter:
        VGG16((32, 64), 2, 5, width=3, hidden=11).eval()(torch.zeros(1, 2, 32, 64))
    assert counter.get_total_flops() == expected


def test_vgg16_repeats_the_features_of_small_images():
    torch.manual_seed(0)
    model, images = VGG16(32, 3, 5, width=2, hidden=7).eval(), torch.randn(2, 3, 32, 32)
    assert model.features(images).shape == (2, 16, 1, 1)
    repeated = model.features(images).expand(-1, -1, 7, 7)
    assert torch.equal(model(images), model.head(repeated.flatten(1)))


def test_vgg16_initialization_of_convolutions_and_linear_layers():
    torch.manual_seed(0)
    model = VGG16(32, 3, 10, width=16, hidden=64)
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels > 3:
            assert float(module.weight.detach().std()) == pytest.approx(
                math.sqrt(2 / (9 * module.out_channels)), rel=0.1
            )
        if isinstance(module, nn.Linear):
            assert float(module.weight.detach().std()) == pytest.approx(0.01, rel=0.1)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            assert not module.bias.any()


def test_vgg16_has_dropout_after_both_hidden_linear_layers():
    with torch.device("meta"):
        kinds = [
            (type(module).__name__, getattr(module, "p", None)) for module in VGG16(32, 3, 10).head
        ]
    linear, relu, dropout = ("Linear", None), ("ReLU", None), ("Dropout", 0.5)
    assert kinds == [linear, relu, dropout, linear, relu, dropout, linear]


def test_resnet18_has_the_number_of_parameters_for_large_images():
    with torch.device("meta"):
        model = ResNet18(32, 3, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_181_642


def test_resnet18_with_small_stem_has_the_costs_of_cordonnier2020():
    model = ResNet18(32, 3, 10, resnet_stem="3x3").eval()
    with torch.no_grad(), make_flop_counter() as counter:
        assert model.stem(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 32, 32)
        model(torch.zeros(1, 3, 32, 32))
    paper = paper_models()["ResNet18"]
    assert (
        f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f}M"
        == paper.parameters
    )
    assert f"{counter.get_total_flops() / 1e9:.1f}B" == paper.flops


def test_unknown_resnet_stem_is_an_error():
    with pytest.raises(ValueError, match=r"resnet_stem must be one of.*got '5x5'"):
        ResNet18(32, 3, 10, resnet_stem="5x5")


@pytest.mark.parametrize(
    ("size", "map_sizes"),
    [
        pytest.param((32, 32), (256, 64, 16, 4, 1), id="32 × 32 ends with one position"),
        pytest.param((14, 30), (7 * 15, 4 * 8, 2 * 4, 1 * 2, 1 * 1), id="odd sides are rounded up"),
    ],
)
def test_resnet18_flops_equal_the_formula(size, map_sizes):
    expected, before = 2 * 2 * 3 * 49 * map_sizes[0], 3
    for stage, after in enumerate((3, 6, 12, 24)):
        area = map_sizes[stage + 1]
        expected += 2 * 9 * area * (before * after + 3 * after * after)
        expected += 2 * area * before * after if stage else 0
        before = after
    expected += 2 * 24 * 5
    with make_flop_counter() as counter:
        ResNet18(size, 2, 5, width=3).eval()(torch.zeros(1, 2, *size))
    assert counter.get_total_flops() == expected


@pytest.mark.parametrize(
    ("channels", "stride"),
    [
        pytest.param((3, 3), 1, id="the shortcut is the identity"),
        pytest.param((3, 5), 2, id="the shortcut is a convolution"),
    ],
)
def test_residual_block_adds_its_shortcut_before_the_last_relu(
    channels: tuple[int, int], stride: int
):
    torch.manual_seed(0)
    block, maps = (
        ResidualBlock(*channels, stride).double().eval(),
        torch.randn(2, channels[0], 7, 6).double(),
    )
    weights = [module.weight for module in block.residual if isinstance(module, nn.Conv2d)]
    scale = 1 / math.sqrt(1 + 1e-5)  # an untrained batch normalization
    hidden = (nn.functional.conv2d(maps, weights[0], stride=stride, padding=1) * scale).relu()
    residual = nn.functional.conv2d(hidden, weights[1], padding=1) * scale
    shortcut = maps
    if stride != 1:
        weight = block.get_parameter("shortcut.0.weight")
        shortcut = nn.functional.conv2d(maps, weight, stride=stride) * scale
    assert relative_error(block(maps), (shortcut + residual).relu()) < 1e-12


def test_resnet18_uses_he_initialization_and_no_dropout():
    torch.manual_seed(0)
    model = ResNet18(32, 3, 10, width=16)
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels > 3:
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert float(module.weight.detach().std()) == pytest.approx(
                math.sqrt(2 / fan_out), rel=0.1
            )
        assert not isinstance(module, nn.Dropout)
