import numpy as np
import pytest
from matplotlib.patches import Rectangle

from reproduction.heads.figures import (
    draw_attention_centers,
    draw_attention_maps,
    make_resemblance_table,
)
from tests.reproduction.heads.head_records import head_arrays


@pytest.fixture
def make_record():
    def change_arrays(*, changed=None, **options):
        return {**head_arrays(**options), **(changed or {})}

    return change_arrays


@pytest.mark.parametrize("gaussian", [True, False])
def test_each_layer_has_a_panel_with_the_paths_of_its_heads(make_record, gaussian):
    record = make_record(layers=(3, 1, 2), gaussian=gaussian)
    panels = draw_attention_centers(record).axes
    assert [panel.get_title() for panel in panels] == ["layer 1", "layer 2", "layer 3"]
    centers = record["center" if gaussian else "mean"]
    for head, text, line in zip((4, 5), panels[2].texts, panels[2].lines, strict=True):
        assert text.get_text() == str(head - 3)
        assert text.get_position() == pytest.approx(tuple(centers[2, head, ::-1]))
        np.testing.assert_array_equal(line.get_xydata(), centers[:, head, ::-1])


def test_attention_maps_have_a_row_per_layer_and_mark_the_largest_weight():
    generator = np.random.default_rng(0)
    maps = [generator.dirichlet(np.ones(35), size=heads).reshape(heads, 5, 7) for heads in (2, 3)]
    figure = draw_attention_maps(maps)
    drawn = [panel for panel in figure.axes if panel.images]
    weights = [head for layer in maps for head in layer]
    assert [panel.get_xlabel() for panel in drawn] == [f"{head.max():.2f}" for head in weights]
    assert [panel.get_title() for panel in drawn] == ["1", "2", "1", "2", "3"]
    assert [panel.get_ylabel() for panel in drawn] == ["layer 1", "", "layer 2", "", ""]
    for panel, head in zip(drawn, weights, strict=True):
        np.testing.assert_array_equal(panel.images[0].get_array(), head)
        square = panel.patches[0]
        assert isinstance(square, Rectangle)
        assert square.get_xy() == (2.5, 1.5)


def test_compare_layers_has_values_before_and_after_training(make_record):
    changed = {
        "window_3": np.array([[1, 2], [7, 7], [9, 4]]),
        "chance_window_3": np.array([2.31, 2.35]),
        "spread": np.array([[1.0, 1.0], [3.0, 3.0], [0.1234, 2.0]]),
        "chance_spread": np.ones(2),
    }
    table = make_resemblance_table(make_record(changed=changed))
    assert table.window_3.to_dict() == {1: "1 → 9 (2.31)", 2: "2 → 4 (2.35)"}
    assert table.spread[1] == "1 → 0.123 (1)"
