import base64
import io
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.text import Text

from teka.reporting.charts import encode_png
from teka.training.shift.page import draw_shift_curve, render_html, write_report

VOID = {"meta", "img", "source", "br", "link"}


class Page(HTMLParser):
    """The page's elements, its text, and whether every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "title"):
            self.text += f"{data} "

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def test_the_page_needs_nothing_but_itself_and_is_the_same_every_time(report_of, examples):
    text = render_html(report_of(), examples)
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.elements} & {"script", "link", "iframe", "object"}
    for _, attributes in page.elements:
        for key in ("src", "srcset", "href", "data", "poster"):
            assert attributes.get(key, "data:").startswith("data:")
    for address in ("url(", "@import", "http://", "https://"):
        assert address not in text
    assert render_html(report_of(), examples) == text


def test_the_page_says_its_language_and_fits_a_phone(report_of, examples):
    page = Page(render_html(report_of(), examples))
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all(
        "meta"
    )
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["aria-labelledby"] for attributes in page.all("section")} <= set(ids)
    boxes = [attributes for attributes in page.all("div") if attributes.get("class") == "scroll"]
    assert len(boxes) == len(page.all("table")) == 3
    assert all(
        attributes["tabindex"] == "0" and attributes["role"] == "region" for attributes in boxes
    )


def test_every_image_has_an_alternative_text(report_of, examples):
    page = Page(render_html(report_of(), examples))
    images = page.all("img")
    assert len({image["alt"] for image in images}) == len(images) == 5 * 3
    assert images[0]["alt"] == "Example 1, class 4, dx −2"
    assert images[4]["alt"] == "Example 1, class 4, dx −1, dy +2"
    assert images[1]["alt"] == "Example 1, class 4, unshifted"
    charts = [drawing["aria-label"] for drawing in page.all("svg") if "aria-label" in drawing]
    assert len(charts) == 2
    assert "absolute lies between 22.3 at −3 and 97.1 at +2" in charts[0]
    assert "softmax lies between 98.4 at −3 and 98.4 at +3" in charts[1]


def test_images_are_shown_as_the_models_saw_them(report_of, examples):
    images = Page(render_html(report_of(), examples)).all("img")
    shown = imread(
        io.BytesIO(
            base64.b64decode(images[1 * 5 + 3]["src"].removeprefix("data:image/png;base64,"))
        )
    )
    assert np.array_equal(np.round(255 * shown), examples.images[3, 1].numpy())


def test_right_and_wrong_differ_in_more_than_colour(report_of, examples):
    page = Page(render_html(report_of(), examples))
    body = page.text[page.text.index("What the models saw") :]
    legend, table = body.split("image, model", 1)
    assert "✓ correct" in legend
    assert " ".join(table.split()).count("✗ 6 wrong") == 1
    assert table.count("✗") == 1
    assert table.count("✓") == 2 * 5 * 3 - 1


def test_the_numbers_and_the_finding_are_there(report_of, examples):
    text = Page(render_html(report_of(), examples)).text
    for number in ("22.3", "97.1", "98.4", "59.7", "21.3", "20,513", "41.3"):
        assert number in text
    assert "falls from 97.1\u00a0% to 22.3\u00a0%" in text
    for setting in (
        "demo --out runs/demo",
        "360",
        "two cores",
        "2021-02-15",
        "canvas",
        "teka 0.1.0, PyTorch 2.13.0",
    ):
        assert setting in text


def test_names_and_settings_are_escaped(report_of, model, examples):
    evil = "<script>alert('x')</script>\" onload=\"y"
    dangerous = examples._replace(predictions={evil: examples.predictions["absolute"]})
    page = Page(
        render_html(report_of(model(evil, kernel=evil), hardware=evil, dataset=evil), dangerous)
    )
    assert page.open == []
    assert not page.all("script")
    assert not any("onload" in attributes for _, attributes in page.elements)
    assert page.text.count(evil) >= 6


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
    lines = (
        draw_shift_curve(report_of(*[model(f"model {index}") for index in range(12)]))
        .axes[0]
        .get_lines()
    )
    styles = [(str(line.get_color()), str(line.get_marker())) for line in lines]
    assert len(set(styles)) == 12
    assert [len(set(kind)) for kind in zip(*styles[:6], strict=True)] == [6, 6]


def test_the_band_is_students_interval_over_seeds(report_of, model):
    panel = draw_shift_curve(
        report_of(*[model(seed=seed, accuracy=0.84 + seed / 100) for seed in range(3)])
    ).axes[0]
    heights = np.asarray(panel.collections[0].get_paths()[0].vertices)[:, 1]
    half = 4.302653 / 3**0.5  # t of two degrees of freedom at 97.5 %, and a deviation of one point
    assert (heights.min(), heights.max()) == (pytest.approx(85 - half), pytest.approx(85 + half))


def test_the_band_of_one_seed_is_its_interval(report_of, model):
    intervals = {axis: {str(shift): [0.7, 0.99] for shift in range(-3, 4)} for axis in ("dx", "dy")}
    panel = draw_shift_curve(report_of(model(interval_by_shift=intervals))).axes[1]
    heights = np.asarray(panel.collections[0].get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == (pytest.approx(70), pytest.approx(99))


def _texts(figure):
    return [
        text.get_text().strip()
        for text in [*figure.axes[-1].texts, *(t for box in figure.legends for t in box.texts)]
    ]


def test_every_model_is_named_once_whatever_its_name(report_of, model):
    names = ["absolute", "_hidden", "$\\nonsense$ $", "50 % off"]
    figure = draw_shift_curve(report_of(*map(model, names)))
    assert _texts(figure) == names
    assert encode_png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("count", [5, 30])
def test_direct_labels_do_not_overlap(report_of, model, count):
    names = [f"a rather long name of model number {index}" for index in range(count)]
    figure = draw_shift_curve(report_of(*map(model, names)))
    figure.savefig(io.BytesIO(), format="png")
    boxes = sorted(
        (Text.get_window_extent(text) for text in figure.axes[-1].texts), key=lambda box: -box.y0
    )
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


def test_the_files_are_written_and_may_be_written_again(report_of, examples, tmp_path):
    written = write_report(report_of(), examples, tmp_path)
    assert [path.name for path in written] == ["report.json", "shift_curve.png", "report.html"]
    assert set(written) == set(tmp_path.iterdir())
    assert imread(written[1]).shape[:2] == (600, 1500)  # at 150 dots per inch
    before = [path.read_bytes() for path in written]
    assert write_report(report_of(), examples, tmp_path) == written
    assert [path.read_bytes() for path in written] == before


def test_a_failure_leaves_the_old_files_whole_and_no_temporary_ones(
    report_of, examples, tmp_path, monkeypatch
):
    before = {path: path.read_bytes() for path in write_report(report_of(), examples, tmp_path)}

    def fail(path, target):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(report_of(date="2021-02-16"), examples, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_names_the_extra_that_brings_it(
    report_of, examples, tmp_path, monkeypatch, package
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}.*pip install teka\[report\]"):
        write_report(report_of(), examples, tmp_path)
    assert not list(tmp_path.iterdir())
