import pytest
import torch
from torch import nn

from teka.audit import Movement, axis_shifts, locate_layers
from teka.audit.layers.fixes import FIXES
from teka.audit.layers.layouts import find_position_axes
from teka.audit.layers.localize import BREAKS

STRIDED = (
    nn.Conv2d(2, 4, 3, 2, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(4, 4, 3, padding=1),
)


def locate(*layers, movement="circular", **options):
    torch.manual_seed(0)
    images = torch.rand(3, 2, 16, 24, dtype=torch.float64)
    model = nn.Sequential(*layers).double().eval()
    return locate_layers(model, images, axis_shifts(4), Movement(movement), **options)


def test_fixes_have_a_break_a_description_and_a_source():
    for fix in FIXES.values():
        assert fix.kind in BREAKS
        assert fix.effect
        assert fix.source


def test_recommended_fixes_depend_on_the_first_breaks_and_the_mode():
    assert locate(*STRIDED).recommended_fixes == ("circular", "polyphase")
    assert locate(*STRIDED, movement="zero").recommended_fixes == ("blur",)
    assert locate(nn.Conv2d(2, 4, 3, padding=1)).recommended_fixes == ("circular",)
    assert locate(nn.Conv2d(2, 4, 2, 2)).recommended_fixes == ("polyphase",)
    assert locate(nn.Conv2d(2, 4, 1), nn.ReLU()).recommended_fixes == ()


def test_impossible_fixes_are_not_recommended():
    found = locate(nn.Conv2d(2, 4, 5, 2, padding=1))
    assert found.breaks["aliasing"].name == "0"
    assert found.fixable("polyphase") == ()
    assert "its output size (7, 11) times its stride" in found.fixes["polyphase"]["0"]
    assert "polyphase" not in found.recommended_fixes


def test_fix_applies_to_all_suitable_layers_with_findings():
    found = locate(*STRIDED)
    assert found.fixable("blur") == found.fixable("polyphase") == ("0", "2")
    assert found.fixable("circular") == ("0", "3")
    assert found.fixable("positions") == ()
    assert locate(*STRIDED, layers=["2"]).fixable("blur") == ("2",)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.MaxPool2d(2, return_indices=True), "it also returns indices"),
        (nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), "its mean leaves out the padding"),
        (nn.LazyConv2d(4, 3, 2, padding=1), ""),
        (
            nn.Conv2d(2, 4, 3, 3, padding=1),
            "its output size (6, 8) times its stride (3, 3) is not its input size (16, 24)",
        ),
    ],
    ids=str,
)
def test_impossible_fixes_of_strided_layers_have_a_reason(layer, reason):
    if isinstance(layer, nn.LazyConv2d):
        layer(torch.rand(1, 2, 16, 24))
    assert locate(layer).fixes["polyphase"]["0"] == reason


def test_padding_wider_than_the_map_cannot_become_circular():
    found = locate(
        nn.AvgPool2d(8), nn.Conv2d(2, 2, 7, padding=3), nn.ConstantPad2d((-1, 0, 0, 0), 0.0)
    )
    assert set(found.fixes["circular"].values()) == {"it pads by more than its map", "it crops"}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 7, 8), ((1,), 1)),
        ((1, 6, 8), ((1,), 0)),
        ((7, 8), ((0,), 1)),
        ((1, 8, 2, 3), ((2, 3), 0)),
        ((8, 2, 3), ((1, 2), 0)),
        ((1, 2, 3, 8), ((1, 2), 0)),
        ((1, 5, 8), None),
        ((8,), None),
    ],
)
def test_axes_of_positions_follow_from_the_grid(shape, expected):
    assert find_position_axes(shape, [((2, 3), 1)]) == expected
