from teka.audit.page.model_style import POINTS, model_style
from teka.audit.page.style import MARKERS


def test_every_marker_has_an_outline():
    assert set(MARKERS) == set(POINTS)


def test_a_swatch_is_not_read_out():
    assert 'aria-hidden="true"' in model_style(0).swatch()
