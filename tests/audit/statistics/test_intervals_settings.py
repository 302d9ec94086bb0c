import pytest

from teka.audit import Estimate
from teka.audit.statistics.intervals import Curve, ImageBootstrap
from teka.codec import decode, encode


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 95.0])
def test_confidence_outside_zero_and_one_is_an_error(confidence):
    with pytest.raises(ValueError, match=r"^confidence must be"):
        ImageBootstrap(10, confidence=confidence)


def test_few_resamples_for_the_confidence_are_an_error():
    assert ImageBootstrap(10, 0.95, 40).num_resamples == 40
    with pytest.raises(ValueError, match=r"^num_resamples must be .* = 40.*got 39"):
        ImageBootstrap(10, 0.95, 39)
    with pytest.raises(ValueError, match=r"= 200, got 199"):
        ImageBootstrap(10, 0.99, 199)


def test_estimates_and_curves_survive_json():
    for saved in (
        Estimate(0.5, 0.4, 0.7, 0.95, "wilson"),
        Curve((1.0,), (0.5,), (2.0,), (0.2,), (3.0,), "wilson"),
    ):
        assert decode(type(saved), encode(saved)) == saved
    assert Estimate(0.5, 0.5, 0.5, 0.95, "none, fewer than 10 images").half_width is None
