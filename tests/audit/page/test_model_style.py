from teka.audit.page.colour import contrast
from teka.audit.page.model_style import POINTS, model_style
from teka.audit.page.shift_curve import STYLES


def test_no_two_models_look_the_same():
    styles = [model_style(index) for index in range(4 * len(STYLES))]
    assert len(set(styles)) == len(styles)


def test_every_marker_has_an_outline():
    assert {marker for _, marker, _ in STYLES} == set(POINTS)


def test_lines_are_seen_on_white():
    assert all(contrast(colour, "#ffffff") >= 3 for colour, *_ in STYLES)


def test_a_swatch_is_not_read_out():
    assert 'aria-hidden="true"' in model_style(0).swatch()
