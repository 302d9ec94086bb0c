import csv
import io
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.audit.page.audit_reports import make_metrics, make_report

FIGURE = "#mode-circular ~ .figures figure"


def two_models():
    return [make_report("patches"), make_report("rotation", metrics=(make_metrics(fall=0.1),))]


def lines_shown(figure):
    """The names of the lines that are drawn."""
    return {
        line.get_attribute("data-line") for line in figure.locator("g[data-line]:visible").all()
    }


def save(page, button):
    with page.expect_download() as saved:
        page.get_by_role("button", name=button).click()
    return saved.value.suggested_filename, Path(saved.value.path()).read_bytes()


def test_a_legend_hides_and_shows_its_line_by_mouse_and_by_keyboard(open_page):
    page = open_page(two_models())
    figure, other = page.locator(FIGURE).nth(0), page.locator(FIGURE).nth(1)
    entry = figure.get_by_role("button", name="patches", exact=True)
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert lines_shown(figure) == {"rotation"}
    assert lines_shown(other) == {"patches", "rotation"}
    entry.press("Enter")
    assert entry.get_attribute("aria-pressed") == "true"
    assert lines_shown(figure) == {"patches", "rotation"}


def test_a_figure_opens_large_is_zoomed_by_keys_and_returns(open_page):
    page = open_page(two_models())
    figure = page.locator(FIGURE).first
    drawing = figure.locator(".drawing").first
    width = drawing.bounding_box()["width"]
    opener = figure.get_by_role("button", name="Enlarge, save: Correct (%), mode circular")
    opener.press("Enter")
    enlarged = (
        page.get_by_role("dialog", name="Correct (%), mode circular").locator(".drawing").first
    )
    large = enlarged.bounding_box()["width"]
    assert large > 1.5 * width
    tick = enlarged.locator(".ticks-left text").first
    before = tick.bounding_box()
    for _ in range(3):
        page.keyboard.press("+")
    after = tick.bounding_box()
    assert enlarged.bounding_box()["width"] == pytest.approx(1.5**3 * large, rel=1e-3)
    # Words stay as large as they were, and those of the axis stay in sight.
    assert after["height"] == pytest.approx(before["height"], rel=0.05)
    assert 0 <= after["x"] < 100
    page.keyboard.press("0")
    assert enlarged.bounding_box()["width"] == pytest.approx(large, rel=1e-3)
    page.keyboard.press("Escape")
    page.locator(f"{FIGURE} .enlarge:focus").wait_for()
    assert drawing.bounding_box()["width"] == pytest.approx(width)


def test_what_is_saved_is_what_is_shown_and_the_numbers_are_those_of_the_report(open_page):
    reports = two_models()
    page = open_page(reports)
    page.locator(FIGURE).first.get_by_role("button", name="patches", exact=True).click()
    page.locator(FIGURE).first.locator(".enlarge").click()
    name, text = save(page, "Save numbers (CSV)")
    assert name == "correct-mode-circular.csv"
    rows = list(csv.DictReader(io.StringIO(text.decode())))
    for report in reports:
        (metrics,) = report.metrics
        values = dict(zip(metrics.shifts, metrics.curves["accuracy"].values, strict=True))
        found = [row for row in rows if row["model"] == report.name]
        assert len(found) == 18
        for row in found:
            step = int(row["pixels"])
            value = values[(0, step) if row["axis"] == "dx" else (step, 0)]
            assert float(row["correct (%)"]) == pytest.approx(100 * value, rel=1e-5)
    name, text = save(page, "Save SVG")
    drawn = ElementTree.fromstring(text)
    words = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert words[:2] == [
        "Correct (%), mode circular",
        "rotation",
    ]  # A line that is hidden has no entry.
    lines = [
        one for one in drawn.iter("{http://www.w3.org/2000/svg}g") if "data-line" in one.attrib
    ]
    assert {one.get("display") for one in lines if one.get("data-line") == "patches"} == {"none"}
    name, picture = save(page, "Save PNG")
    assert name == "correct-mode-circular.png"
    size = [2 * round(float(drawn.attrib[side])) for side in ("width", "height")]
    assert picture.startswith(b"\x89PNG")
    assert [int.from_bytes(picture[at : at + 4], "big") for at in (16, 20)] == pytest.approx(
        size, abs=2
    )


@pytest.mark.parametrize("opened", [".maps figure", "figure.layers"])
def test_maps_and_layers_are_enlarged_and_saved_too(open_page, opened):
    page = open_page([make_report()])
    page.emulate_media(color_scheme="dark")
    page.locator(f"{opened} .enlarge").first.click()
    assert page.get_by_role("dialog").locator(".drawing:visible").count() == 1
    for button, start in (
        ("Save SVG", b"<svg"),
        ("Save PNG", b"\x89PNG"),
        ("Save numbers (CSV)", b""),
    ):
        assert save(page, button)[1].startswith(start)


def test_numbers_for_experts_are_shown_at_will_and_printed_without_the_controls(open_page):
    page = open_page([make_report()])
    expert = page.locator("#numbers ~ .scroll tr.expert").first
    assert not expert.is_visible()
    page.get_by_label("consistency when correct").check()
    assert expert.is_visible()
    page.get_by_label("consistency when correct").uncheck()
    page.emulate_media(media="print")
    assert expert.is_visible()
    assert page.locator(".enlarge:visible, .more-numbers:visible, dialog:visible").count() == 0


def test_other_changes_have_a_curve_beside_what_interpolation_does_and_tables(open_page):
    page = open_page([make_report()])
    figure = page.locator("#changes ~ figure")
    assert figure.count() == 1  # Amounts of a flip are names, and have a table alone.
    assert lines_shown(figure) == {"patch model", "changed and changed back"}
    figure.get_by_role("button", name="changed and changed back", exact=True).click()
    assert lines_shown(figure) == {"patch model"}
    flipped, rotated = page.locator("#changes ~ details table").all()
    assert flipped.is_visible()
    assert not rotated.is_visible()
    figure.locator(".enlarge").click()
    name, text = save(page, "Save numbers (CSV)")
    saved = {
        row["°"]: row
        for row in csv.DictReader(io.StringIO(text.decode()))
        if row["model"] == "patch model"
    }
    assert name == "answered-as-unshifted-rotation.csv"
    page.keyboard.press("Escape")
    page.locator("#changes ~ details summary").nth(1).click()
    shown = [row.inner_text().split("\t") for row in rotated.locator("tbody tr").all()]
    assert [row[0] for row in shown] == [
        "−15°",
        "−10°",
        "−5°",
        "−2°",
        "0°",
        "+2°",
        "+5°",
        "+10°",
        "+15°",
    ]
    for amount, _, agreement, *_ in shown:
        assert (
            f"{float(saved[str(int(amount[:-1].replace('−', '-')))]['answered as unshifted (%)']):.1f}"
            == agreement
        )
