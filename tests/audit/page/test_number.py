import pytest

from teka.audit.page.number import write_number, write_share, write_shift, write_size, write_step


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100.0"), (0.9999, ">99.9"), (0.99949, "99.9"), (0.5, "50.0"), (0.0004, "<0.1"), (0.0, "0.0")],
)
def test_all_and_none_are_said_only_of_all_and_none(share, text):
    assert write_share(share) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0.0, "0"), (3.1e-7, "3.1e−7"), (0.0123, "0.0123"), (1.539, "1.54"), (2.5e6, "2.5e6")]
)
def test_sizes_have_three_digits_or_a_power_of_ten(size, text):
    assert write_size(size) == text


def test_shares_are_written_in_percent_and_errors_are_not():
    assert write_number("consistency", 0.25) == "25.0"
    assert write_number("maximum_error", 0.25) == "0.25"


def test_shifts_are_written_with_true_signs():
    assert write_shift((-3, 2)) == "dx +2, dy −3"
    assert write_shift((0, 0.5)) == "dx +0.5"
    assert write_shift((0, 0)) == "not moved"
    assert [write_step(step) for step in (-4, 0, 0.25)] == ["−4", "0", "+0.25"]
