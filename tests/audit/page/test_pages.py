import re
from html.parser import HTMLParser

import pytest

from teka.audit.movement import Movement
from teka.audit.page.pages import render_audit_page, write_page
from teka.audit.protocols import ProtocolResult
from teka.audit.report import AuditReport, Failure
from teka.audit.statistics.intervals import Estimate
from tests.audit.page.audit_reports import CROSS, make_example, make_metrics, make_report

VOID_ELEMENTS = {"meta", "br", "wbr", "input", "link", "img"}


class Page(HTMLParser):
    """Parser that collects the elements, the unclosed elements and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.text = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script", "title"):
            self.text += f"{data} "

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def visible_text(self):
        return re.sub(r"\s+", " ", self.text)


def report_of_two_modes(name="patch model"):
    zero = Movement("zero", 0.25)
    examples = (make_example(3), make_example(4, "zero", CROSS))
    return make_report(
        name,
        metrics=(make_metrics(), make_metrics(zero, CROSS, skipped=((4, 4),))),
        examples=examples,
    )


def test_page_has_no_external_resources():
    text = render_audit_page([report_of_two_modes(), make_report("rotation")])
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.elements} & {
        "link",
        "iframe",
        "object",
        "img",
        "image",
        "use",
    }
    for _, attributes in page.elements:
        assert not {"src", "srcset", "xlink:href", "data"} & set(attributes)
        assert attributes.get("href", "#").startswith("#")
    assert "url(" not in text
    assert "@import" not in text
    assert "http://" not in text
    assert "https://" not in text
    policy = next(
        one["content"]
        for one in page.all("meta")
        if one.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")


def test_page_has_a_language_and_valid_links():
    page = Page(render_audit_page([report_of_two_modes()]))
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all(
        "meta"
    )
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {one["aria-labelledby"] for one in page.all("section")} <= set(ids)
    assert {one["href"].removeprefix("#") for one in page.all("a")} <= set(ids)
    assert {one["data-table"] for one in page.all("figure") if "data-table" in one} <= set(ids)
    assert {one["for"] for one in page.all("label") if "for" in one} <= set(ids)


def test_every_drawing_has_a_description():
    drawings = [
        one
        for one in Page(render_audit_page([make_report()])).all("svg")
        if one.get("aria-hidden") != "true"
    ]
    assert all(one["role"] == "img" and len(one["aria-label"]) > 20 for one in drawings)
    # Only the first curve is drawn twice, because it is also at the top of the page.
    assert len({one["aria-label"] for one in drawings}) == len(drawings) - 1


def test_page_shows_the_verdict_then_caveats_by_severity():
    text = Page(render_audit_page([make_report()])).visible_text
    positions = [
        text.index(words)
        for words in (
            "52.0 % at the worst shift",
            "Limited validity",
            "Worth knowing",
            "accuracy, unshifted (%)",
        )
    ]
    assert positions == sorted(positions)


def test_page_shows_every_part_of_a_report():
    text = Page(render_audit_page([report_of_two_modes()])).visible_text
    for words in (
        "Mode circular", "Mode zero", "Background: 0.25.", "17 of 18",
        "is the first layer to break equivariance inside the image", "blocks.0.attention.output.dense", "its output is no tensor",
        "3.1e−7", "the images are too small", "5f5f5f", "a0a0a0",
        "teka audit runs/patch --data digits", "20,513",
    ):  # fmt: skip
        assert words in text, words


def test_page_leaves_out_missing_parts_of_a_report():
    bare = make_report(layers=None, caveats=(), failures=(), examples=(), noise_floor=None)
    text = Page(render_audit_page([bare])).visible_text
    for words in (
        "Layers", "Before you trust", "Not measured", "Images whose", "Numerical noise",
    ):  # fmt: skip
        assert words not in text, words


def test_report_without_a_measured_mode_states_the_reason():
    empty_report = make_report(
        metrics=(), examples=(), failures=(Failure("mode circular", "the model gave NaN"),)
    )
    text = Page(render_audit_page([empty_report])).visible_text
    assert "No mode could be measured" in text
    assert "mode circular : the model gave NaN" in text


def test_dense_outputs_have_errors_and_no_accuracy():
    page = Page(
        render_audit_page([make_report(metrics=(make_metrics(output="dense"),), examples=())])
    )
    assert "mean error" in page.visible_text
    assert "accuracy, unshifted (%)" not in page.visible_text
    assert "Relative error" in page.visible_text


def test_page_lists_several_models():
    page = Page(
        render_audit_page([report_of_two_modes("patches"), make_report("rotation", caveats=())])
    )
    assert page.visible_text.count("Below each number is") == 1
    assert "patches and rotation under shifts" in page.visible_text
    for words in ("patches circular 97.0", "patches zero 97.0", "rotation circular 97.0"):
        assert words in page.visible_text, words


def test_page_of_one_model_has_three_tiles_and_of_several_none():
    text = render_audit_page([make_report()])
    tiles = re.findall(
        '<span class="meaning">([^<]*)</span><span class="tile">([^<]*)</span>', text
    )
    assert [label for label, _ in tiles] == [
        "consistency",
        "accuracy, unshifted",
        "accuracy at every shift",
    ]
    assert tiles[1][1] == "97.0 %"
    assert text.index('class="tile"') < text.index('id="results"')
    dense = make_report(metrics=(make_metrics(output="dense"),), examples=())
    assert render_audit_page([dense]).count('class="tile"') == 2
    assert 'class="tile"' not in render_audit_page([make_report(), make_report("rotation")])


def test_published_protocol_is_shown_with_its_source():
    share = Estimate(0.994, 0.99, 0.997, 0.95, "wilson")
    protocol = ProtocolResult(
        "horn2021", "Columns are moved.", "Horn et al. 2021", {"images, class 1": 854},
        {"mean accuracy, class 1": share}, {"class 1": make_metrics(shifts=tuple((0, step) for step in range(-2, 3)))},
    )  # fmt: skip
    text = Page(render_audit_page([make_report(protocols=(protocol,))])).visible_text
    for words in (
        "Published protocol: horn2021",
        "Columns are moved.",
        "99.4",
        "99.0–99.7",
        "images, class 1: 854",
    ):
        assert words in text, words


def test_page_escapes_names():
    evil = "<script>alert('x')</script>\" onload=\"y"
    report = make_report(
        evil, verdict=(evil,), data={"name": evil, "class_names": [evil] * 10}, model={evil: evil}
    )
    page = Page(render_audit_page([report, report]))
    assert page.open == []
    assert len(page.all("script")) == 2
    assert not any("onload" in attributes for _, attributes in page.elements)


def test_names_in_tables_may_break_after_underscores_and_slashes():
    page = render_audit_page([make_report("timm/squared_relu"), make_report("rotation")])
    assert "timm/<wbr>squared_<wbr>relu" in page
    assert "&lt;wbr" not in page


def test_page_of_a_saved_report_equals_that_of_the_report(tmp_path):
    report = make_report()
    read = AuditReport.read(report.write(tmp_path / "audit.json"))
    path = write_page([read], tmp_path / "audit.html")
    assert path == tmp_path / "audit.html"
    assert path.read_text(encoding="utf-8") == render_audit_page([report])


def test_page_without_a_report_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="reports"):
        write_page([], tmp_path / "audit.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("pairs", [1.5, "1", [(0, 1)]])
def test_invalid_pairs_are_an_error(pairs, tmp_path, unchecked_annotations):
    with pytest.raises(ValueError, match=r"^pairs must be"):
        write_page([make_report()], tmp_path / "audit.html", pairs)
    assert not list(tmp_path.iterdir())


def test_page_shows_names_without_control_characters():
    name = "<img src=x>\x1b[2J\u202e"
    page = render_audit_page([make_report(name=name), make_report(name="plain")])
    assert Page(page).open == []
    assert not [attributes for _, attributes in Page(page).elements if attributes.get("src") == "x"]
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert r"&lt;img src=x&gt;\x1b[2J\u202e" in page
