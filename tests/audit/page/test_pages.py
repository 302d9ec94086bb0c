import re
from html.parser import HTMLParser

import pytest

from teka.audit.movement import Movement
from teka.audit.page.pages import render_audit_page, write_page
from teka.audit.protocols import ProtocolResult
from teka.audit.report import AuditReport, Failure
from teka.audit.statistics.intervals import Estimate
from tests.audit.page.audit_reports import CROSS, make_example, make_metrics, make_report

VOID = {"meta", "br", "wbr", "input", "link", "img"}


class Page(HTMLParser):
    """The page's elements, its text, and whether every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.text = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
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
    def heads(self):
        return re.sub(r"\s+", " ", self.text)


def two_modes(name="patch model"):
    zero = Movement("zero", 0.25)
    examples = (make_example(3), make_example(4, "zero", CROSS))
    return make_report(
        name,
        metrics=(make_metrics(), make_metrics(zero, CROSS, skipped=((4, 4),))),
        examples=examples,
    )


def test_the_page_needs_nothing_but_itself():
    text = render_audit_page([two_modes(), make_report("rotation")])
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


def test_the_page_says_its_language_and_every_link_leads_somewhere():
    page = Page(render_audit_page([two_modes()]))
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


def test_every_drawing_says_what_it_shows():
    drawings = [
        one
        for one in Page(render_audit_page([make_report()])).all("svg")
        if one.get("aria-hidden") != "true"
    ]
    assert all(one["role"] == "img" and len(one["aria-label"]) > 20 for one in drawings)
    # The first curve is also on the first screen; no others show the same.
    assert len({one["aria-label"] for one in drawings}) == len(drawings) - 1


def test_the_verdict_comes_first_and_the_gravest_caveat_before_the_others():
    text = Page(render_audit_page([make_report()])).heads
    places = [
        text.index(words)
        for words in (
            "52.0 % at the worst shift",
            "Limited validity",
            "Worth knowing",
            "accuracy, unshifted (%)",
        )
    ]
    assert places == sorted(places)


def test_every_part_of_a_report_is_there():
    text = Page(render_audit_page([two_modes()])).heads
    for words in (
        "Mode circular", "Mode zero", "Background: 0.25.", "17 of 18",
        "is the first layer to break equivariance inside the image", "blocks.0.attention.output.dense", "its output is no tensor",
        "3.1e−7", "the images are too small", "5f5f5f", "a0a0a0",
        "teka audit runs/patch --data digits", "20,513",
    ):  # fmt: skip
        assert words in text, words


def test_what_a_report_lacks_is_left_out():
    bare = make_report(layers=None, caveats=(), failures=(), examples=(), noise_floor=None)
    text = Page(render_audit_page([bare])).heads
    for words in (
        "Layers", "Before you trust", "Not measured", "Images whose", "Numerical noise",
    ):  # fmt: skip
        assert words not in text, words


def test_an_audit_that_measured_nothing_says_why():
    nothing = make_report(
        metrics=(), examples=(), failures=(Failure("mode circular", "the model gave NaN"),)
    )
    text = Page(render_audit_page([nothing])).heads
    assert "No mode could be measured" in text
    assert "mode circular : the model gave NaN" in text


def test_dense_outputs_have_errors_and_no_answers():
    page = Page(
        render_audit_page([make_report(metrics=(make_metrics(output="dense"),), examples=())])
    )
    assert "mean error" in page.heads
    assert "accuracy, unshifted (%)" not in page.heads
    assert "Relative error" in page.heads


def test_several_models_stand_beside_each_other():
    page = Page(render_audit_page([two_modes("patches"), make_report("rotation", caveats=())]))
    assert page.heads.count("Below each number is") == 1
    assert "patches and rotation under shifts" in page.heads
    for words in ("patches circular 97.0", "patches zero 97.0", "rotation circular 97.0"):
        assert words in page.heads, words


def test_one_model_has_three_numbers_on_its_first_screen_and_several_have_none():
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


def test_a_procedure_of_the_literature_is_shown_with_its_source():
    share = Estimate(0.994, 0.99, 0.997, 0.95, "wilson")
    protocol = ProtocolResult(
        "horn2021", "Columns are moved.", "Horn et al. 2021", {"images, class 1": 854},
        {"mean accuracy, class 1": share}, {"class 1": make_metrics(shifts=tuple((0, step) for step in range(-2, 3)))},
    )  # fmt: skip
    text = Page(render_audit_page([make_report(protocols=(protocol,))])).heads
    for words in (
        "Published protocol: horn2021",
        "Columns are moved.",
        "99.4",
        "99.0–99.7",
        "images, class 1: 854",
    ):
        assert words in text, words


def test_names_are_escaped():
    evil = "<script>alert('x')</script>\" onload=\"y"
    report = make_report(
        evil, verdict=(evil,), data={"name": evil, "class_names": [evil] * 10}, model={evil: evil}
    )
    page = Page(render_audit_page([report, report]))
    assert page.open == []
    assert len(page.all("script")) == 2
    assert not any("onload" in attributes for _, attributes in page.elements)


def test_the_page_of_a_report_is_that_of_its_file(tmp_path):
    report = make_report()
    read = AuditReport.read(report.write(tmp_path / "audit.json"))
    path = write_page([read], tmp_path / "audit.html")
    assert path == tmp_path / "audit.html"
    assert path.read_text(encoding="utf-8") == render_audit_page([report])


def test_no_report_is_refused(tmp_path):
    with pytest.raises(ValueError, match="reports"):
        write_page([], tmp_path / "audit.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("pairs", [1.5, "1", [(0, 1)]])
def test_wrong_pairs_are_refused(pairs, tmp_path, unchecked_annotations):
    with pytest.raises(ValueError, match=r"^pairs must be"):
        write_page([make_report()], tmp_path / "audit.html", pairs)
    assert not list(tmp_path.iterdir())


def test_names_from_a_file_are_text_without_control_characters():
    name = "<img src=x>\x1b[2J\u202e"
    page = render_audit_page([make_report(name=name), make_report(name="plain")])
    assert Page(page).open == []
    assert not [attributes for _, attributes in Page(page).elements if attributes.get("src") == "x"]
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert r"&lt;img src=x&gt;\x1b[2J\u202e" in page
