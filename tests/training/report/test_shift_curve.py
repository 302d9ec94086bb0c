import io
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.text import Text

from teka.audit.page.charts import encode_png
from teka.training.report.shift_curve import draw_shift_curve, write_shift_curve


def test_each_axis_has_a_panel_and_each_model_a_line_of_percentages(report_of):
    panels = draw_shift_curve(report_of()).axes
    assert [panel.get_xlabel() for panel in panels] == [
        "shift to the right, dx (pixels)",
        "shift downwards, dy (pixels)",
    ]
    assert panels[0].get_ylabel() == "accuracy (%)"
    for panel, start in zip(panels, (22.3, 59.7), strict=True):
        lines = [np.asarray(line.get_xydata()) for line in panel.get_lines()]
        assert len(lines) == 3
        assert all(np.array_equal(line[:, 0], range(-3, 4)) for line in lines)
        assert lines[0][0, 1] == pytest.approx(start)


def test_lines_differ_in_more_than_colour(report_of, model):
    lines = draw_shift_curve(report_of(*[model(f"model {index}") for index in range(12)])).axes[0].get_lines()
    styles = [(str(line.get_color()), str(line.get_marker())) for line in lines]
    assert len(set(styles)) == 12
    assert [len(set(kind)) for kind in zip(*styles[:6], strict=True)] == [6, 6]


def test_the_band_is_the_spread_over_seeds(report_of, model):
    panel = draw_shift_curve(report_of(model(accuracy=0.8), model(seed=1, accuracy=0.9))).axes[0]
    heights = np.asarray(panel.collections[0].get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == (pytest.approx(80), pytest.approx(90))


def test_the_band_of_one_seed_is_its_interval(report_of, model):
    intervals = {axis: {str(shift): [0.7, 0.99] for shift in range(-3, 4)} for axis in ("dx", "dy")}
    panel = draw_shift_curve(report_of(model(interval_by_shift=intervals))).axes[1]
    heights = np.asarray(panel.collections[0].get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == (pytest.approx(70), pytest.approx(99))


def _texts(figure):
    return [
        text.get_text().strip() for text in [*figure.axes[-1].texts, *(t for box in figure.legends for t in box.texts)]
    ]


@pytest.mark.parametrize("layout", ["beside", "stacked"])
def test_every_model_is_named_once_whatever_its_name(report_of, model, layout):
    names = ["absolute", "_hidden", "$\\nonsense$ $", "50 % off"]
    figure = draw_shift_curve(report_of(*map(model, names)), layout=layout)
    assert _texts(figure) == names
    assert encode_png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("count", [5, 30])
def test_direct_labels_do_not_overlap(report_of, model, count):
    names = [f"a rather long name of model number {index}" for index in range(count)]
    figure = draw_shift_curve(report_of(*map(model, names)))
    figure.savefig(io.BytesIO(), format="png")
    boxes = sorted((Text.get_window_extent(text) for text in figure.axes[-1].texts), key=lambda box: -box.y0)
    assert len(boxes) == count
    assert boxes[-1].y0 >= figure.axes[-1].bbox.y0
    assert all(above.y0 >= below.y1 for above, below in pairwise(boxes))
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)


def test_one_axis_alone_has_one_panel(report_of, model):
    accuracy = {"dx": {}, "dy": {"0": 0.9, "2": 0.5}}
    figure = draw_shift_curve(report_of(model(accuracy_by_shift=accuracy)))
    assert [panel.get_xlabel() for panel in figure.axes] == ["shift downwards, dy (pixels)"]


def test_many_shifts_have_no_more_ticks_than_are_readable(report_of, model):
    along = {str(shift): 0.5 for shift in range(-32, 33)}
    panel = draw_shift_curve(report_of(model(accuracy_by_shift={"dx": along, "dy": along}))).axes[0]
    assert len(panel.get_xticks()) <= 9
    assert 0 in panel.get_xticks()


@pytest.mark.usefixtures("as_users_run_it")
def test_an_unknown_layout_is_an_error(report_of):
    with pytest.raises(
        ValueError, match="layout is 'staked', expected one of 'beside', 'stacked'; did you mean 'stacked'"
    ):
        draw_shift_curve(report_of(), layout="staked")  # type: ignore[arg-type]


def test_the_picture_is_written_whole_at_150_dots_per_inch(report_of, tmp_path):
    path = write_shift_curve(report_of(), tmp_path / "curve.png")
    assert imread(path).shape[:2] == (600, 1500)
    assert {file.name for file in tmp_path.iterdir()} == {"curve.png", "report.json"}
