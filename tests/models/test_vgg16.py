import math

import pytest
import torch
from torch import nn

from teka.flops import flop_counter
from teka.models import VGG16


def test_it_has_the_parameters_of_configuration_d():
    with torch.device("meta"):
        model = VGG16(32, 3, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_301_514


def test_flops_are_those_of_thirteen_convolutions_and_three_linear_maps():
    height, width, before, expected = 32, 64, 2, 0
    for group in ((3, 3), (6, 6), (12, 12, 12), (24, 24, 24), (24, 24, 24)):
        for after in group:
            expected += 2 * before * after * 9 * height * width
            before = after
        height, width = height // 2, width // 2
    expected += 2 * (24 * 49 * 11 + 11 * 11 + 11 * 5)
    with flop_counter() as counter:
        VGG16((32, 64), 2, 5, width=3, hidden=11).eval()(torch.zeros(1, 2, 32, 64))
    assert counter.get_total_flops() == expected


def test_what_a_small_image_leaves_is_repeated_49_times():
    torch.manual_seed(0)
    model, images = VGG16(32, 3, 5, width=2, hidden=7).eval(), torch.randn(2, 3, 32, 32)
    assert model.features(images).shape == (2, 16, 1, 1)
    repeated = model.features(images).expand(-1, -1, 7, 7)
    assert torch.equal(model(images), model.head(repeated.flatten(1)))


def test_initialisation_is_of_he_for_convolutions_and_of_a_hundredth_for_linear_maps():
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


def test_dropout_of_a_half_follows_both_hidden_linear_layers():
    with torch.device("meta"):
        kinds = [(type(module).__name__, getattr(module, "p", None)) for module in VGG16(32, 3, 10).head]
    linear, relu, dropout = ("Linear", None), ("ReLU", None), ("Dropout", 0.5)
    assert kinds == [linear, relu, dropout, linear, relu, dropout, linear]
