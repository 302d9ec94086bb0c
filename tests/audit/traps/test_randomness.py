import pytest
from torch import nn

from teka.audit.traps import non_determinism, random_features
from teka.nn import Attention


def test_a_difference_between_two_equal_calls_invalidates():
    (trap,) = non_determinism(0.02)
    assert trap.severity == "invalidates"
    assert "differ by 0.02" in trap.message


@pytest.mark.parametrize("repeat", [0.0, 1e-7])
def test_rounding_is_no_randomness(repeat: float):
    assert non_determinism(repeat) == ()


def test_positions_inside_random_features_are_named():
    layer = Attention(16, heads=2, kernel="positive", relative="rotation_joint")
    (trap,) = random_features(nn.ModuleDict({"first": layer}))
    assert trap.severity == "limits"
    assert "'first'" in trap.message


def test_exact_positions_with_random_features_are_no_trap():
    assert random_features(Attention(16, heads=2, kernel="positive", relative="rotary")) == ()
