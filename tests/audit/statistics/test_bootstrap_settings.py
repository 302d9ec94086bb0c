import pytest

from teka.audit.statistics.bootstrap_settings import BootstrapSettings


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 95.0])
def test_a_confidence_outside_zero_and_one_is_refused(confidence):
    with pytest.raises(ValueError, match=r"^confidence is"):
        BootstrapSettings(confidence=confidence)


def test_each_end_of_an_interval_needs_a_resample_beyond_it():
    assert BootstrapSettings(0.95, 40).num_resamples == 40
    with pytest.raises(ValueError, match=r"^num_resamples is 39, .* = 40$"):
        BootstrapSettings(0.95, 39)
    with pytest.raises(ValueError, match=r"= 200$"):
        BootstrapSettings(0.99, 199)
