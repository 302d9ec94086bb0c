import pytest

from teka.audit.page.colour import LEVELS, STOPS, contrast, heat_colour, ink_on


def test_ends_have_the_first_and_the_last_colour():
    assert heat_colour(0.0) == heat_colour(-1.0) == STOPS[0]
    assert heat_colour(1.0) == heat_colour(2.0) == STOPS[-1]


def test_worse_is_always_darker():
    against_white = [contrast(heat_colour(index / (LEVELS - 1)), "#ffffff") for index in range(LEVELS)]
    assert against_white == sorted(against_white)
    assert len(set(against_white)) == LEVELS


def test_numbers_are_read_on_every_colour():
    for index in range(LEVELS):
        colour = heat_colour(index / (LEVELS - 1))
        assert contrast(ink_on(colour), colour) >= 4.5


def test_contrast_of_black_and_white_is_21():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#777777") == 1
