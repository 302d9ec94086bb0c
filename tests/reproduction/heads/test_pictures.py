import io
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image, ImageSequence

from reproduction.heads.pictures import (
    choose_moments,
    draw_attention_maps,
    draw_frames,
    draw_head_accuracy,
    draw_head_centers,
    draw_head_progress,
    ellipse,
    encode_frames,
)
from reproduction.heads.record import load_head_record
from tests.reproduction.heads.head_records import head_arrays


@pytest.fixture
def make(tmp_path):
    def record(*, changed=None, **options):
        np.savez(tmp_path / "heads.npz", **{**head_arrays(**options), **(changed or {})})
        return load_head_record(tmp_path / "heads.npz")

    return record


def shown(figure):
    """The panels that are drawn, and their titles."""
    return {panel.get_title(): panel for panel in figure.axes if panel.axison}


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_an_ellipse_holds_its_share_of_a_gaussian(share):
    covariance = np.array([[2.0, 0.6], [0.6, 0.5]])
    points = ellipse(np.array([1.0, -3.0]), covariance, share) - [1.0, -3.0]
    squares = np.einsum("pa,ab,pb->p", points, np.linalg.inv(covariance), points)
    np.testing.assert_allclose(squares, squares[0])
    drawn = np.random.default_rng(0).multivariate_normal([0, 0], covariance, 20_000)
    within = np.einsum("pa,ab,pb->p", drawn, np.linalg.inv(covariance), drawn) < squares[0]
    assert within.mean() == pytest.approx(share, abs=0.015)


def test_every_layer_has_a_panel_at_every_moment_with_its_heads_at_their_centers(make):
    record = make(layers=(3, 1, 2))
    panels = shown(draw_head_centers(record, [0, 2]))
    assert set(panels) == {
        f"layer {layer}, {when}" for layer in (1, 2, 3) for when in ("start", "epoch 2")
    }
    texts = {text.get_text(): text.get_position() for text in panels["layer 3, epoch 2"].texts}
    assert texts.keys() == {"1", "2"}
    for head, place in enumerate(("1", "2"), start=4):
        assert texts[place] == pytest.approx(tuple(record.center[2, head][::-1]))


def test_a_center_far_outside_the_image_is_counted(make):
    record = make(
        layers=(3,),
        moments=1,
        changed={"center": np.array([[[0.0, 0.0], [40.0, 0.0], [0.0, -9.0]]])},
    )
    (panel,) = shown(draw_head_centers(record, [0])).values()
    assert panel.get_xlabel() == "2 centers outside"
    assert [text.get_text() for text in panel.texts] == ["1"]


def test_more_than_six_layers_take_another_line(make):
    figure = draw_head_centers(make(layers=(1,) * 8, moments=1), [0])
    assert len(shown(figure)) == 8
    assert len(figure.axes) == 12


def test_heads_of_a_table_are_drawn_by_their_attention(make):
    record = make(gaussian=False)
    texts = shown(draw_head_centers(record, [1]))["layer 1, epoch 1"].texts
    assert [text.get_position() for text in texts] == [
        tuple(place[::-1]) for place in record.mean[1, :3]
    ]


def test_moments_are_all_or_equally_far_apart_with_both_ends(make):
    assert choose_moments(make(moments=4)) == [0, 1, 2, 3]
    chosen = choose_moments(make(moments=101), count=11)
    assert chosen == list(range(0, 101, 10))
    assert choose_moments(make(moments=1)) == [0]


def test_the_animation_has_a_frame_for_each_moment_and_stays_on_the_last(make):
    frames = draw_frames(make(layers=(2,)), [0, 1, 2])
    image = Image.open(io.BytesIO(encode_frames(frames, "GIF")))
    durations = [frame.info["duration"] for frame in ImageSequence.Iterator(image)]
    assert len(durations) == 3
    assert durations[-1] > 5 * durations[0]
    assert image.info["loop"] == 0
    picture = Image.open(io.BytesIO(encode_frames(frames[:1], "PNG")))
    assert picture.size == frames[0].size
    assert picture.convert("RGB").getpixel((1, 1)) == (255, 255, 255)


def test_a_single_moment_is_an_animation_too(make):
    (frame,) = draw_frames(make(moments=1), [0])
    image = Image.open(io.BytesIO(encode_frames([frame], "GIF")))
    assert len(list(ImageSequence.Iterator(image))) == 1


def test_maps_have_a_row_for_each_layer_and_tell_their_largest_weight():
    generator = np.random.default_rng(0)
    maps = [generator.dirichlet(np.ones(35), size=heads).reshape(heads, 5, 7) for heads in (2, 3)]
    figure = draw_attention_maps(maps, (4, 6))
    drawn = [panel for panel in figure.axes if panel.axison]
    assert [panel.get_xlabel() for panel in drawn] == [
        f"{one.max():.2f}" for layer in maps for one in layer
    ]
    assert [panel.get_title() for panel in drawn] == ["1", "2", "", "", "3"]
    assert [panel.get_ylabel() for panel in drawn] == ["layer 1", "", "layer 2", "", ""]
    for panel, weights in zip(drawn, [one for layer in maps for one in layer], strict=True):
        np.testing.assert_array_equal(panel.images[0].get_array(), weights)
        square = panel.patches[0]
        assert isinstance(square, Rectangle)
        assert square.get_xy() == (5.5, 3.5)


def test_accuracy_is_drawn_where_it_was_measured(make):
    record = make(changed={"validation_accuracy": np.full(3, np.nan)})
    figure = draw_head_accuracy(record)
    assert figure is not None
    (line,) = figure.axes[0].get_lines()
    np.testing.assert_allclose(np.asarray(line.get_xydata()), [[1, 30], [2, 80]])
    nothing = {name: np.full(3, np.nan) for name in ("validation_accuracy", "train_accuracy")}
    assert draw_head_accuracy(make(changed=nothing)) is None
    pruned = draw_head_accuracy(record, before=record)
    assert pruned is not None
    after, earlier, cut = pruned.axes[0].get_lines()
    np.testing.assert_allclose(np.asarray(earlier.get_xydata()), [[1, 30], [2, 80]])
    np.testing.assert_allclose(np.asarray(after.get_xydata()), [[3, 30], [4, 80]])
    np.testing.assert_allclose(np.asarray(cut.get_xdata()), 2)


def test_progress_has_a_line_for_each_layer_and_one_for_chance(make):
    record = make(layers=(3, 1, 2))
    for panel, name in zip(
        draw_head_progress(record).axes, ("window_3", "local", "spread"), strict=True
    ):
        *layers, chance = panel.get_lines()
        for layer, line in enumerate(layers):
            np.testing.assert_array_equal(line.get_ydata(), record.numbers[name][:, layer])
        assert set(np.asarray(chance.get_ydata())) == {record.chance[name].mean()}


def test_labels_of_many_layers_stay_beside_their_panel(make):
    figure = draw_head_progress(make(layers=(1,) * 29))
    figure.savefig(io.BytesIO(), format="png")
    panel = figure.axes[-1]
    boxes = sorted((Text.get_window_extent(text) for text in panel.texts), key=lambda box: -box.y0)
    assert len(boxes) == 30
    assert all(above.y0 >= below.y1 for above, below in pairwise(boxes))
    assert boxes[-1].y0 >= panel.bbox.y0
