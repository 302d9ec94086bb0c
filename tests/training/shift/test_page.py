import base64
import importlib
import io
import re
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.text import Text

from teka.audit.page.charts import encode_png
from teka.training.shift_page import draw_shift_curve, render_html, write_report

page_module = importlib.import_module("teka.training.shift_page")
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


@pytest.fixture
def quick(monkeypatch):
    """Leave out encoding the curve, which takes longest."""
    monkeypatch.setattr(page_module, "encode_png", lambda figure: b"")


@pytest.fixture
def examples(example_arrays):
    return example_arrays


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


@pytest.mark.usefixtures("quick")
def test_the_page_says_its_language_and_fits_a_phone(report_of, examples):
    page = Page(render_html(report_of(), examples))
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["aria-labelledby"] for attributes in page.all("section")} <= set(ids)
    boxes = [attributes for attributes in page.all("div") if attributes.get("class") == "scroll"]
    assert len(boxes) == len(page.all("table")) == 3
    assert all(attributes["tabindex"] == "0" and attributes["role"] == "region" for attributes in boxes)


@pytest.mark.usefixtures("quick")
def test_every_image_has_an_alternative_text(report_of, examples):
    images = Page(render_html(report_of(), examples)).all("img")
    assert len(images) == 1 + 5 * 3
    assert len({image["alt"] for image in images}) == len(images)
    assert "absolute, rotation and softmax" in images[0]["alt"]
    assert images[1]["alt"] == "Example 1, class 4, dx −2"
    assert images[5]["alt"] == "Example 1, class 4, dx −1, dy +2"
    assert images[2]["alt"] == "Example 1, class 4, unshifted"


@pytest.mark.usefixtures("quick")
def test_images_are_shown_as_the_models_saw_them(report_of, examples):
    images = Page(render_html(report_of(), examples)).all("img")[1:]
    shown = imread(io.BytesIO(base64.b64decode(images[1 * 5 + 3]["src"].removeprefix("data:image/png;base64,"))))
    assert np.array_equal(np.round(255 * shown), examples["images"][3, 1])


@pytest.mark.usefixtures("quick")
def test_right_and_wrong_differ_in_more_than_colour(report_of, examples):
    page = Page(render_html(report_of(), examples))
    body = page.text[page.text.index("What the models saw") :]
    legend, table = body.split("image, model", 1)
    assert "✓ correct" in legend
    assert " ".join(table.split()).count("✗ 6 wrong") == 1
    assert table.count("✗") == 1
    assert table.count("✓") == 2 * 5 * 3 - 1


@pytest.mark.usefixtures("quick")
def test_the_numbers_and_the_finding_are_there_the_saved_one_if_there_is_one(report_of):
    text = Page(render_html(report_of())).text
    for number in ("22.3", "97.1", "98.4", "59.7", "21.3", "20,513", "41.3"):
        assert number in text
    assert "falls from 97.1\u00a0% to 22.3\u00a0%" in text
    page = Page(render_html(report_of(finding="All of it moved."))).text
    assert "All of it moved." in page
    assert "falls from" not in page


@pytest.mark.usefixtures("quick")
def test_names_and_settings_are_escaped(report_of, model, examples):
    evil = "<script>alert('x')</script>\" onload=\"y"
    dangerous = {**examples, "model_names": np.array([evil, evil])}
    page = Page(render_html(report_of(model(evil, kernel=evil), hardware=evil, dataset=evil, finding=evil), dangerous))
    assert page.open == []
    assert not page.all("script")
    assert not any("onload" in attributes for _, attributes in page.elements)
    assert page.text.count(evil) >= 6


@pytest.mark.usefixtures("quick")
def test_settings_that_are_not_known_are_left_out(report_of, model):
    known = Page(
        render_html(report_of(model(test_images=1360), hardware="two cores", date="2021-02-15", mode="canvas"))
    ).text
    settings = ("demo --out runs/demo", "1,360", "two cores", "2021-02-15", "canvas", "teka 0.1.0, PyTorch 2.13.0")
    assert all(setting in known for setting in settings)
    unknown = Page(render_html(report_of(model()))).text
    for heading in ("Hardware", "Date", "Shifts", "Test images"):
        assert heading not in unknown


@pytest.mark.usefixtures("quick")
def test_bands_are_explained(report_of, model):
    intervals = {axis: {str(shift): [0.7, 0.99] for shift in range(-3, 4)} for axis in ("dx", "dy")}
    one = model("one", interval_by_shift=intervals)
    two = [model("two"), model("two", seed=1)]
    assert "Bands" not in render_html(report_of(model()))
    assert "Bands: 95 % Wilson interval." in render_html(report_of(one))
    assert "Bands: 95 % interval over seeds, by Student&#39;s t." in render_html(report_of(*two))
    assert (
        "Bands: 95 % interval over seeds, by Student&#39;s t and 95 % Wilson interval (models with one seed)."
        in render_html(report_of(one, *two))
    )


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


def test_the_band_is_students_interval_over_seeds(report_of, model):
    panel = draw_shift_curve(report_of(*[model(seed=seed, accuracy=0.84 + seed / 100) for seed in range(3)])).axes[0]
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


def test_both_files_are_written_whole_and_may_be_written_again_without_examples(run_folder):
    written = write_report(str(run_folder))
    assert written == (run_folder / "shift_curve.png", run_folder / "report.html")
    names = {path.name for path in run_folder.iterdir()}
    assert names == {"report.json", "examples.npz", "shift_curve.png", "report.html"}
    assert imread(written[0]).shape[:2] == (600, 1500)  # at 150 dots per inch
    assert "What the models saw" in written[1].read_text(encoding="utf-8")
    (run_folder / "examples.npz").unlink()
    assert write_report(run_folder) == written
    assert "What the models saw" not in written[1].read_text(encoding="utf-8")


def test_nothing_is_written_from_broken_results(run_folder):
    for name in ("examples.npz", "report.json"):
        (run_folder / name).write_text("broken")
        with pytest.raises(ValueError, match=re.escape(name)):
            write_report(run_folder)
        assert {path.name for path in run_folder.iterdir()} == {"report.json", "examples.npz"}


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"missing.report\.json is missing"):
        write_report(tmp_path / "missing")


def test_a_failure_leaves_the_old_files_whole_and_no_temporary_ones(run_folder, monkeypatch):
    before = {path: path.read_bytes() for path in (*write_report(run_folder), *run_folder.iterdir())}
    (run_folder / "examples.npz").unlink()
    del before[run_folder / "examples.npz"]

    def fail(path, target):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(run_folder)
    assert {path: path.read_bytes() for path in run_folder.iterdir()} == before


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_names_the_extra_that_brings_it(run_folder, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}.*pip install teka\[report\]"):
        write_report(run_folder)
    assert {path.name for path in run_folder.iterdir()} == {"report.json", "examples.npz"}
