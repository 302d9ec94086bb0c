from tests.audit.page.audit_reports import make_report

from teka.audit.measure.lie_derivative import LieDerivative
from teka.audit.measure.noise_floor import NoiseFloor
from teka.audit.page.numerics import numerics_rows


def test_noise_and_derivatives_of_every_model_are_listed():
    rows = numerics_rows([make_report(), make_report()])
    assert [row.model for row in rows] == [0] * 4 + [1] * 4
    assert [row.value for row in rows[:4]] == ["0", "3.1e−7", "0.5", "0.4"]
    assert [row.name for row in rows[2:4]] == ["Lie derivative along dy", "Lie derivative along dx"]


def test_a_precision_that_was_not_measured_says_why():
    report = make_report(noise_floor=NoiseFloor(1e-8, None, "not a module"), lie_derivative=())
    assert [(row.value, row.words) for row in numerics_rows([report])] == [("1.0e−8", ""), ("–", "not a module")]


def test_the_middle_of_the_images_is_that_of_four_fifths():
    found = LieDerivative(1, "invariant", tuple(index / 10 for index in range(11)), "double backward")
    (row,) = numerics_rows([make_report(noise_floor=None, lie_derivative=(found,))])
    assert row.words == "mean of 11 images, 0.1 to 0.9 in the middle 80 %; double backward"
