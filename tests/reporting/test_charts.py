import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teka.reporting.charts import ShareCurve, draw_curves, encode_png, spread, stretch_for


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 0.1)), min_size=1, max_size=9))
def test_labels_never_overlap_and_keep_their_order_and_bounds(labels):
    heights, sizes = [height for height, _ in labels], [size for _, size in labels]
    placed = spread(heights, sizes, 0.0, 1.0)
    order = sorted(range(len(labels)), key=lambda index: -heights[index])
    for above, below in pairwise(order):
        assert placed[above] - sizes[above] / 2 >= placed[below] + sizes[below] / 2 - 1e-9
    for place, size in zip(placed, sizes, strict=True):
        assert place - size / 2 >= -1e-9
        assert place + size / 2 <= 1 + 1e-9


def test_labels_that_do_not_collide_stay():
    assert spread([0.2, 0.9, 0.5], [0.1, 0.1, 0.1], 0.0, 1.0) == pytest.approx([0.2, 0.9, 0.5])


def test_labels_that_do_not_fit_run_over_at_the_bottom_without_overlap():
    assert spread([0.5, 0.5, 0.5], [0.5, 0.5, 0.5], 0.0, 1.0) == pytest.approx([0.75, 0.25, -0.25])


def test_a_panel_is_stretched_by_as_many_labels_as_it_does_not_hold():
    assert stretch_for(["a"]) == stretch_for(["a"] * 13) == 1
    assert stretch_for(["a"] * 58) == pytest.approx(2 * stretch_for(["a"] * 29))
    assert stretch_for(["a name of two lines, as it is long"] * 29) > stretch_for(["a"] * 29) > 2


@pytest.mark.parametrize(("lowest", "bottom"), [(0.99, 90), (0.7, 60), (0.3, 0)])
def test_an_axis_of_accuracies_has_no_mark_above_100(lowest, bottom):
    (panel,) = draw_curves({"shift": [ShareCurve("a model", {-1: lowest, 0: 1.0})]}).axes
    marks = panel.get_yticks()
    assert (min(marks), max(marks)) == (bottom, 100)
    assert panel.get_ylim() == (bottom, 102)


def test_drawing_does_not_import_the_global_state_of_pyplot(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    picture = encode_png(draw_curves({"x": [ShareCurve("a", {0: 0.5})]}))
    assert picture.startswith(b"\x89PNG")
