import base64

import numpy as np
import pytest
import torch

from teka.audit.caveats import Caveat
from teka.audit.movement import Movement
from tests.audit.page.audit_reports import (
    CROSS,
    LARGEST,
    example_pixels,
    example_prediction,
    make_example,
    make_metrics,
    make_report,
)
from tests.audit.page.test_compared import PAIRS, make_reports

READ_CANVAS = """canvas => {
  const shown = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return [canvas.height, canvas.width, Array.from(shown.data)];
}"""


def shown_pixels(page):
    """Return the pixels of the viewer's canvas, shape (H, W, 4)."""
    height, width, levels = page.locator("[data-part=canvas]").evaluate(READ_CANVAS)
    return np.array(levels, dtype=np.uint8).reshape(height, width, 4)


def moved_pixels(movement, pixels, shift):
    """Return pixels shifted as in the audit."""
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None].double() / 255
    moved = movement.move(movement.prepare_images(images), shift)[0].permute(1, 2, 0)
    return (moved * 255).round().clamp(0, 255).to(torch.uint8).numpy()


def press(page, axis, key, times=1):
    slider = page.get_by_label(f"{axis}, ")
    slider.focus()
    for _ in range(times):
        slider.press(key)


def shown_prediction(page, row=0):
    cells = page.locator("[data-part=predictions] tr").nth(row).locator("td").all_inner_texts()
    return cells


def expect_shifted_image(page, pixels, index, shift, *, label):
    moved = np.roll(pixels, shift, axis=(0, 1))
    assert np.array_equal(shown_pixels(page)[..., 0], moved[..., 0])
    answer, probability = example_prediction(index, shift)
    mark = "✓" if answer == label else "✗"
    assert shown_prediction(page) == [f"{answer} {mark}", f"{100 * probability:.1f} %"]


def test_keyboard_shifts_the_image_and_shows_its_prediction(open_page):
    page = open_page([make_report()])
    assert page.get_by_text("needs JavaScript").is_hidden()
    pixels = example_pixels(3)
    expect_shifted_image(page, pixels, 3, (0, 0), label=3)
    press(page, "dx", "ArrowRight", 3)
    expect_shifted_image(page, pixels, 3, (0, 3), label=3)
    press(page, "dy", "ArrowLeft", 2)
    expect_shifted_image(page, pixels, 3, (-2, 3), label=3)
    press(page, "dx", "Home")
    press(page, "dy", "End")
    expect_shifted_image(page, pixels, 3, (LARGEST, -LARGEST), label=3)
    assert page.get_by_label("dx, ").get_attribute("aria-valuetext") == "−4 pixels"
    assert (
        page.get_by_role("status")
        .text_content()
        .startswith("dx −4, dy +4: patch model predicts 3 with 85.6 %")
    )


def test_mouse_shifts_the_image(open_page):
    page = open_page([make_report()])
    for axis, share, shift in (("dx", 0.999, (0, 4)), ("dy", 0.001, (-4, 4))):
        slider = page.get_by_label(f"{axis}, ")
        slider.scroll_into_view_if_needed()
        box = slider.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2, steps=5)
        page.mouse.up()
        expect_shifted_image(page, example_pixels(3), 3, shift, label=3)


def test_click_on_the_map_of_predictions_selects_the_shift(open_page):
    page = open_page([make_report()])
    answers = page.locator("[data-part=maps] canvas")
    answers.scroll_into_view_if_needed()
    box = answers.bounding_box()
    side = box["width"] / len(range(-LARGEST, LARGEST + 1))
    page.mouse.click(box["x"] + 1.5 * side, box["y"] + 7.5 * side)
    expect_shifted_image(page, example_pixels(3), 3, (3, -3), label=3)


def test_buttons_select_no_shift_and_the_nearest_wrong_prediction(open_page):
    page = open_page([make_report()])
    page.get_by_role("button", name="Next wrong prediction").click()
    assert page.get_by_role("status").text_content().split(":")[0] in {
        "dx −1",
        "dx +1",
        "dy −1",
        "dy +1",
    }
    assert "wrong" in page.get_by_role("status").text_content()
    page.get_by_role("button", name="Unshifted", exact=True).click()
    expect_shifted_image(page, example_pixels(3), 3, (0, 0), label=3)


def test_keyboard_selects_another_image(open_page):
    page = open_page([make_report()])
    button = page.get_by_role("button", name="Image 1, class 1")
    button.focus()
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert page.locator("[data-part=thumbnails] [aria-pressed=true]").count() == 1
    press(page, "dx", "ArrowLeft", 1)
    expect_shifted_image(page, example_pixels(1), 1, (0, -1), label=1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "movement",
    [
        Movement("circular"),
        Movement("lossless"),
        Movement("zero", 0.25),
        Movement("reflect"),
        Movement("crop", crop_size=(3, 5)),
    ],
    ids=lambda movement: movement.mode,
)
def test_shown_image_is_the_input_of_the_model(open_page, movement, channels):
    height, width = 11, 13
    example = make_example(2, movement.mode, channels=channels, height=height, width=width)
    page = open_page([make_report(metrics=(make_metrics(movement),), examples=(example,))])
    pixels = example_pixels(2, channels, height, width)
    place = (0, 0)
    for axis, key, times in (
        ("dx", "ArrowRight", 4),
        ("dy", "ArrowLeft", 3),
        ("dx", "ArrowLeft", 7),
    ):
        press(page, axis, key, times)
        step = times if key == "ArrowRight" else -times
        place = (place[0], place[1] + step) if axis == "dx" else (place[0] + step, place[1])
        expected = moved_pixels(movement, pixels, place)
        assert np.array_equal(shown_pixels(page)[..., :channels], expected)
        assert (shown_pixels(page)[..., 3] == 255).all()


def test_image_on_a_canvas_is_shifted_without_loss(open_page):
    movement = Movement("canvas", 0.5, canvas_size=(11, 13))
    levels = np.full((11, 13, 1), 128, dtype=np.uint8)
    levels[4:7, 5:8] = example_pixels(0, 1, 3, 3)
    example = make_example(0, "canvas", height=11, width=13)
    example = type(example)(
        **{**vars(example), "image": base64.b64encode(levels.tobytes()).decode()}
    )
    page = open_page([make_report(metrics=(make_metrics(movement),), examples=(example,))])
    press(page, "dy", "ArrowRight", 4)
    assert np.array_equal(shown_pixels(page)[..., :1], np.roll(levels, 4, axis=0))


def test_fractional_shifts_are_interpolated_with_a_note_for_fourier(open_page):
    shifts = tuple((0, step / 2) for step in range(-3, 4))
    for mode in ("bilinear", "fourier"):
        movement = Movement(mode)
        page = open_page(
            [
                make_report(
                    metrics=(make_metrics(movement, shifts),),
                    examples=(make_example(5, mode, shifts),),
                )
            ]
        )
        press(page, "dx", "ArrowRight", 3)
        expected = moved_pixels(Movement("bilinear"), example_pixels(5), (0, 1.5))
        difference = shown_pixels(page)[..., 0].astype(int) - expected[..., 0]
        assert abs(difference).max() <= 1  # Half levels are rounded up or down.
        assert page.get_by_text("shows linear interpolation").is_visible() == (mode == "fourier")
        assert page.get_by_label("dy, ").is_disabled()


def test_slider_resets_the_other_if_only_axes_were_evaluated(open_page):
    page = open_page(
        [
            make_report(
                metrics=(make_metrics(shifts=CROSS),), examples=(make_example(3, shifts=CROSS),)
            )
        ]
    )
    assert page.get_by_text("Not every pair of steps was evaluated").is_visible()
    press(page, "dx", "ArrowRight", 2)
    expect_shifted_image(page, example_pixels(3), 3, (0, 2), label=3)
    press(page, "dy", "ArrowRight", 1)
    expect_shifted_image(page, example_pixels(3), 3, (1, 0), label=3)


def test_models_are_shown_side_by_side(open_page):
    first = make_report("patches")
    second = make_report("rotation", examples=(make_example(3),))
    page = open_page([first, second])
    assert page.locator("[data-part=predictions] th span").all_inner_texts() == [
        "patches",
        "rotation",
    ]
    assert shown_prediction(page, 1) == ["3 ✓", "90.0 %"]
    page.get_by_role("button", name="Image 1, class 1").click()
    assert shown_prediction(page, 1) == ["not among the examples of this model"]


def test_names_of_classes_and_models_are_escaped(open_page):
    evil = "<img src=x onerror=alert(1)>"
    data = {"name": evil, "class_names": [f"{evil}{index}" for index in range(10)]}
    page = open_page([make_report(evil, data=data)])
    assert page.locator("img").count() == 0
    assert shown_prediction(page)[0] == f"{evil}3 ✓"


def test_predictions_without_labels_are_compared_with_no_shift(open_page):
    example = make_example(3)
    page = open_page([make_report(examples=(type(example)(**{**vars(example), "label": None}),))])
    assert page.get_by_text("changed at 72 of 81 shifts").is_visible()
    press(page, "dx", "ArrowRight")
    assert shown_prediction(page)[0] == "4, changed"
    assert "changed" in page.get_by_role("status").text_content()


def page_kinds():
    """Return the reports and comparisons of each kind of page, by name.

    Some models have long names, with and without places to break.
    """
    breakable = "a-model-with-a-very-long-name/" * 4
    names = [breakable, "amodelwithoutanyplacetobreak", *map(str, range(8))]
    void = (Caveat("constant predictor", "invalidates", "All images have the same prediction."),)
    return {
        "one model": (make_reports(breakable), ()),
        "two models": (make_reports(*names[:2]), ()),
        "ten models": (make_reports(*names), ()),
        "comparison": (make_reports(*names[:3]), PAIRS),
        "dense model": (make_reports("dense", metrics=(make_metrics(output="dense"),)), ()),
        "invalid results": ([make_report(caveats=void)], ()),
    }


@pytest.mark.parametrize("kind", page_kinds())
def test_page_does_not_scroll_horizontally(open_page, kind):
    reports, pairs = page_kinds()[kind]
    page = open_page(reports, pairs=pairs)
    page.evaluate(
        "document.querySelectorAll('details').forEach(details => { details.open = true; })"
    )
    for width in (320, 390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, width


def test_labels_lie_within_their_charts(open_page):
    page = open_page(make_reports("patches", "rotation", "table"), pairs=PAIRS)
    page.evaluate(
        "document.querySelectorAll('details').forEach(details => { details.open = true; })"
    )
    outside = page.evaluate(
        """() => [...document.querySelectorAll("svg.chart text")].filter((label) => {
      const [inner, outer] = [label, label.closest("svg")].map((each) => each.getBoundingClientRect());
      return inner.left < outer.left - 2 || inner.right > outer.right + 2
        || inner.top < outer.top - 2 || inner.bottom > outer.bottom + 2;
    }).map((label) => label.textContent)"""
    )
    assert outside == []


def test_tab_key_reaches_every_control(open_page):
    page = open_page([make_report()])
    page.locator("[data-part=thumbnails] button").first.focus()
    reached = []
    for _ in range(6):
        reached.append(
            page.evaluate(
                "document.activeElement.dataset.part ?? document.activeElement.dataset.image"
            )
        )
        page.keyboard.press("Tab")
    assert reached == ["0", "1", "dx", "dy", "home", "next"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_light_and_dark_mode(open_page, scheme):
    page = open_page([make_report(), make_report("rotation")])
    page.emulate_media(color_scheme=scheme)
    low = page.evaluate(
        """() => {
      const luminance = (colour) => colour.map((level) => level / 255)
        .map((share) => (share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4))
        .reduce((sum, share, at) => sum + share * [0.2126, 0.7152, 0.0722][at], 0);
      const parse = (text) => text.match(/[\\d.]+/g).map(Number);
      const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
          const colour = parse(getComputedStyle(at).backgroundColor);
          if (colour.length === 3 || colour[3] === 1) return colour.slice(0, 3);
        }
        return [255, 255, 255];
      };
      const failing = [];
      const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
      while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        // Text in charts is not checked here.
        if (!texts.currentNode.data.trim() || element.closest("svg, script, noscript")) continue;
        const ink = luminance(parse(getComputedStyle(element).color).slice(0, 3));
        const paper = luminance(ground(element));
        const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
        if (contrast < 4.5) failing.push(texts.currentNode.data.trim());
      }
      return failing;
    }"""
    )
    assert low == []


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_first_screen_has_verdict_tiles_curve_and_animation(open_page, width, height):
    page = open_page([make_report()], width=width, height=height)
    for part in (".headline", ".tiles", "#strip canvas", ".first-curve .chart"):
        box = page.locator(part).first.bounding_box()
        assert box["y"] + box["height"] <= height, part


def test_animation_runs_and_stops(open_page):
    page = open_page([make_report()])
    shift = page.locator("#strip [data-strip=shift]")
    page.locator("#strip li", has_text="3 ✓ 90.0 %").wait_for()
    page.locator("#strip li", has_text="4 ✗ 69.").wait_for()
    page.locator("#strip button", has_text="Stop").click()
    stopped = shift.inner_text()
    page.wait_for_timeout(700)
    assert shift.inner_text() == stopped


def test_reduced_motion_stops_the_animation(browser, tmp_path):
    from teka.audit.page.pages import write_page

    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(write_page([make_report()], tmp_path / "audit.html").as_uri())
    page.wait_for_timeout(700)
    assert page.locator("#strip button", has_text="Move").is_visible()
    assert page.locator("#strip [data-strip=shift]").inner_text() == "unshifted"
    context.close()


def test_printed_page_contains_collapsed_sections(open_page):
    page = open_page([make_report()])
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") >= 2
    assert not page.locator("details[data-print]").first.evaluate("details => details.open")


def test_page_without_javascript_lacks_only_the_viewer(browser, tmp_path):
    from teka.audit.page.pages import write_page

    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(write_page([make_report()], tmp_path / "audit.html").as_uri())
    assert page.get_by_text("Moving the images needs JavaScript").is_visible()
    assert not page.locator("#viewer").is_visible()
    assert page.locator("svg.chart").first.is_visible()
    context.close()
