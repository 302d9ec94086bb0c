import pytest

from teka.reporting.style import (
    COLOURS,
    HEAT,
    HEAT_LEVELS,
    contrast,
    heat_colour,
    ink_on,
    level_styles,
    line_style,
)


def test_ends_have_the_first_and_the_last_colour():
    assert heat_colour(0.0) == heat_colour(-1.0) == HEAT[0]
    assert heat_colour(1.0) == heat_colour(2.0) == HEAT[-1]


def test_worse_is_always_darker():
    against_white = [
        contrast(heat_colour(index / (HEAT_LEVELS - 1)), "#ffffff") for index in range(HEAT_LEVELS)
    ]
    assert against_white == sorted(against_white)
    assert len(set(against_white)) == HEAT_LEVELS


def test_numbers_are_read_on_every_colour():
    for index in range(HEAT_LEVELS):
        colour = heat_colour(index / (HEAT_LEVELS - 1))
        assert contrast(ink_on(colour), colour) >= 4.5


def test_contrast_of_black_and_white_is_21():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#777777") == 1


def test_no_two_lines_look_the_same_and_all_are_seen_on_white():
    styles = [line_style(index) for index in range(4 * len(COLOURS))]
    assert len(set(styles)) == len(styles)
    assert all(contrast(style.colour, "#ffffff") >= 3 for style in styles)


def test_no_two_levels_look_alike_and_the_reference_is_black():
    levels = [f"level {index}" for index in range(27)]
    styles = level_styles(levels, "level 3")
    assert len(set(styles.values())) == 27
    assert styles["level 3"].colour == "#000000"
    assert level_styles(reversed(levels), "level 3") == styles
