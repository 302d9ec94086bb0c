from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teka.reporting.style import MARKERS, line_style
from teka.reporting.svg import (
    POINTS,
    Scale,
    drawing,
    edged,
    element,
    label,
    round_step,
    rule,
    share_scale,
    size_scale,
    swatch,
    title,
)

POSITIVE = st.floats(1e-9, 1e6)


def test_words_and_attributes_are_escaped():
    evil = "<script>\"&'"
    found = ElementTree.fromstring(
        drawing(10.0, 20.0, evil, label(evil, 1.0, 2.0), element("g", {}, title(evil)))
    )
    assert found.get("aria-label") == evil
    assert [child.text for child in found.iter() if child.text] == [evil, evil]


def test_numbers_have_two_decimals_at_most():
    assert rule(1 / 3, 2.0, 10.0, 0.0).startswith('<line x1="0.33" y1="2" x2="10" y2="0"')


def test_a_drawing_keeps_its_shape_and_says_what_it_shows():
    found = ElementTree.fromstring(drawing(36.0, 22.0, "A chart.", edged(label("words", 0.0, 0.0))))
    assert found.get("viewBox") == "0 0 36 22"
    assert found.get("role") == "img"


def test_every_marker_has_an_outline():
    assert set(MARKERS) == set(POINTS)


def test_a_swatch_is_not_read_out():
    assert 'aria-hidden="true"' in swatch(line_style(0))


def test_ends_lie_at_the_ends_and_numbers_beyond_do_too():
    scale = Scale(2.0, 4.0, 100.0, 0.0)
    assert [scale.place(value) for value in (1.0, 2.0, 3.0, 4.0, 9.0)] == [
        100.0,
        100.0,
        50.0,
        0.0,
        0.0,
    ]


def test_equal_factors_take_equal_room_on_a_logarithmic_scale():
    scale = Scale(1e-4, 1.0, 0.0, 40.0, is_logarithmic=True)
    assert [scale.place(10.0**power) for power in range(-4, 1)] == pytest.approx(
        [0, 10, 20, 30, 40]
    )
    assert scale.place(0.0) == 0.0
    assert scale.ticks() == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])


@given(POSITIVE)
def test_steps_are_round_and_large_enough(least):
    step = round_step(least)
    assert least * (1 - 1e-6) <= step <= 2.5 * least
    assert f"{step:.1e}".split("e")[0] in {"1.0", "2.0", "2.5", "5.0"}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_every_share_lies_within_its_scale(shares):
    scale = share_scale(shares, 0.0, 1.0)
    assert 0 <= scale.low <= min(0.9, max(0.0, min(shares)) + 1e-12) or scale.low <= min(shares)
    assert scale.high == 1.0
    assert all(scale.low <= tick <= scale.high + 1e-9 for tick in scale.ticks())


@given(st.lists(st.one_of(st.just(0.0), POSITIVE), min_size=1, max_size=9))
def test_every_size_lies_within_its_scale(sizes):
    scale = size_scale(sizes, 0.0, 1.0)
    assert max(sizes) <= scale.high * (1 + 1e-9)
    assert scale.low <= min((size for size in sizes if size), default=0.0)
    assert len(scale.ticks()) >= 2


def test_sizes_far_apart_are_drawn_on_a_logarithmic_scale():
    assert size_scale([1e-7, 1.0], 0.0, 1.0).is_logarithmic
    assert not size_scale([0.5, 1.0, 0.0], 0.0, 1.0).is_logarithmic
