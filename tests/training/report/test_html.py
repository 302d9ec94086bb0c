import base64
import io
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.image import imread

import teka.training.report.html as page_module
from teka.training.report.examples import Examples
from teka.training.report.html import render_html

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
    names = tuple(str(name) for name in example_arrays["model_names"])
    return Examples(**{**example_arrays, "model_names": names})


def test_the_page_needs_nothing_but_itself(report_of, examples):
    text = render_html(report_of(), examples)
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.elements} & {"script", "link", "iframe", "object"}
    for _, attributes in page.elements:
        for key in ("src", "srcset", "href", "data", "poster"):
            assert attributes.get(key, "data:").startswith("data:")
    assert "url(" not in text
    assert "@import" not in text
    assert "http://" not in text
    assert "https://" not in text


@pytest.mark.usefixtures("quick")
def test_the_page_says_its_language_and_fits_a_phone(report_of):
    page = Page(render_html(report_of()))
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["aria-labelledby"] for attributes in page.all("section")} <= set(ids)


@pytest.mark.usefixtures("quick")
def test_every_table_scrolls_inside_its_box(report_of, examples):
    page = Page(render_html(report_of(), examples))
    boxes = [attributes for attributes in page.all("div") if attributes.get("class") == "scroll"]
    assert len(boxes) == len(page.all("table")) == 3
    assert all(attributes["tabindex"] == "0" and attributes["role"] == "region" for attributes in boxes)


def test_every_image_has_an_alternative_text(report_of, examples):
    images = Page(render_html(report_of(), examples)).all("img")
    assert len(images) == 1 + 5 * 3
    assert len({image["alt"] for image in images}) == len(images)
    assert "absolute, rotation and softmax" in images[0]["alt"]
    assert images[1]["alt"] == "Example 1, class 4, dx −2"
    assert images[5]["alt"] == "Example 1, class 4, dx −1, dy +2"
    assert images[2]["alt"] == "Example 1, class 4, not moved"


def test_images_are_shown_as_the_models_saw_them(report_of, examples):
    images = Page(render_html(report_of(), examples)).all("img")[1:]
    shown = imread(io.BytesIO(base64.b64decode(images[1 * 5 + 3]["src"].removeprefix("data:image/png;base64,"))))
    for channel in range(3):
        assert np.array_equal(np.round(255 * shown[..., channel]), examples.images[3, 1])


@pytest.mark.usefixtures("quick")
def test_right_and_wrong_differ_in_more_than_colour(report_of, examples):
    page = Page(render_html(report_of(), examples))
    body = page.text[page.text.index("What the models saw") :]
    legend, table = body.split("image, model", 1)
    assert "✓ right" in legend
    assert " ".join(table.split()).count("✗ 6 wrong") == 1
    assert table.count("✗") == 1
    assert table.count("✓") == 2 * 5 * 3 - 1


@pytest.mark.usefixtures("quick")
def test_the_numbers_are_there(report_of):
    text = Page(render_html(report_of())).text
    for number in ("22.3", "97.1", "98.4", "59.7", "21.3", "20,513", "41.3"):
        assert number in text


@pytest.mark.usefixtures("quick")
def test_the_finding_is_the_saved_one_or_made_from_the_numbers(report_of):
    assert "falls from 97.1\u00a0% to 22.3\u00a0%" in Page(render_html(report_of())).text
    page = Page(render_html(report_of(finding="All of it moved."))).text
    assert "All of it moved." in page
    assert "falls from" not in page


@pytest.mark.usefixtures("quick")
def test_names_and_settings_are_escaped(report_of, model, examples):
    evil = "<script>alert('x')</script>\" onload=\"y"
    dangerous = Examples(examples.images, examples.shifts, examples.labels, (evil, evil), examples.predictions)
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
    for setting in (
        "teka demo --out runs/demo",
        "1,360",
        "two cores",
        "2021-02-15",
        "canvas",
        "teka 0.1.0, PyTorch 2.13.0",
    ):
        assert setting in known
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
    assert "Bands: from the lowest to the highest seed." in render_html(report_of(*two))
    assert "Bands: from the lowest to the highest seed and 95 % Wilson interval (models with one seed)." in render_html(
        report_of(one, *two)
    )


@pytest.mark.usefixtures("quick")
def test_without_examples_their_section_is_left_out(report_of):
    assert "What the models saw" not in render_html(report_of())


def test_the_page_is_the_same_every_time(report_of, examples):
    assert render_html(report_of(), examples) == render_html(report_of(), examples)
