import numpy as np
import pytest
from matplotlib.patches import Rectangle

from reproduction.heads.figures import (
    compare_layers,
    draw_attention_maps,
    draw_centers_of_heads,
    ellipse_around_zero,
)
from tests.reproduction.heads.head_records import head_arrays


@pytest.fixture
def make():
    def record(*, changed=None, **options):
        return {**head_arrays(**options), **(changed or {})}

    return record


def panels_by_title(figure):
    return {panel.get_title(): panel for panel in figure.axes}


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_an_ellipse_contains_its_share_of_a_gaussian(share):
    covariance = np.array([[2.0, 0.6], [0.6, 0.5]])
    points = ellipse_around_zero(covariance, share)
    squares = np.einsum("pa,ab,pb->p", points, np.linalg.inv(covariance), points)
    np.testing.assert_allclose(squares, squares[0])
    drawn = np.random.default_rng(0).multivariate_normal([0, 0], covariance, 20_000)
    within = np.einsum("pa,ab,pb->p", drawn, np.linalg.inv(covariance), drawn) < squares[0]
    assert within.mean() == pytest.approx(share, abs=0.015)


def test_every_layer_has_a_panel_before_and_after_training(make):
    record = make(layers=(3, 1, 2))
    panels = panels_by_title(draw_centers_of_heads(record))
    assert list(panels) == [
        f"layer {layer}, epoch {epoch}" for epoch in (0, 2) for layer in (1, 2, 3)
    ]
    texts = {text.get_text(): text.get_position() for text in panels["layer 3, epoch 2"].texts}
    assert texts.keys() == {"1", "2"}
    for head, number in enumerate(("1", "2"), start=4):
        assert texts[number] == pytest.approx(tuple(record["center"][2, head][::-1]))


def test_heads_of_a_table_are_drawn_at_the_mean_of_their_attention(make):
    record = make(gaussian=False, moments=2)
    texts = panels_by_title(draw_centers_of_heads(record))["layer 1, epoch 1"].texts
    assert [text.get_position() for text in texts] == [
        tuple(place[::-1]) for place in record["mean"][1, :3]
    ]


def test_heads_that_attend_to_a_single_token_are_drawn(make):
    record = make()
    draw_centers_of_heads({**record, "covariance": np.zeros_like(record["covariance"])})


def test_maps_have_a_row_for_each_layer_and_show_their_largest_weight():
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


def test_the_table_has_numbers_before_and_after_training(make):
    changed = {
        "window_3": np.array([[1, 2], [7, 7], [9, 4]]),
        "chance_window_3": np.array([2.31, 2.35]),
        "spread": np.array([[1.0, 1.0], [3.0, 3.0], [0.1234, 2.0]]),
        "chance_spread": np.ones(2),
    }
    table = compare_layers(make(changed=changed))
    assert table.window_3.to_dict() == {1: "1 → 9 (2.31)", 2: "2 → 4 (2.35)"}
    assert table.spread[1] == "1 → 0.123 (1)"
