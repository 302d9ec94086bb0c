import pytest

from teka.audit.page.notation import averaged, listed, percent, signed


@pytest.mark.parametrize(("share", "text"), [(0.0, "0.0"), (0.98149, "98.1"), (0.9815, "98.2"), (1.0, "100.0")])
def test_a_share_is_a_percentage_to_a_tenth(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(("shift", "text"), [(-4, "−4"), (0, "0"), (13, "+13")])
def test_a_shift_has_its_sign(shift, text):
    assert signed(shift) == text


@pytest.mark.parametrize(("values", "text"), [([3], "3"), ([3, 5], "3 and 5"), ("abc", "a, b and c")])
def test_values_are_listed_in_words(values, text):
    assert listed(values) == text


@pytest.mark.parametrize(
    ("counts", "text"), [([1, 1], "one seed"), ([3, 3], "mean of 3 seeds"), ([2, 1, 5], "means of 1 to 5 seeds")]
)
def test_averages_say_what_they_are_over(counts, text):
    assert averaged(counts) == text
