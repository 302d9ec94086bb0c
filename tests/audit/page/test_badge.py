import dataclasses
import re
from xml.etree import ElementTree

import pytest

from teka.audit.caveats import Caveat
from teka.audit.movement import Movement
from teka.audit.page.badge import BADGE_COLORS, badge_svg
from tests.audit.page.audit_reports import make_metrics, make_report

VOID = Caveat("constant predictor", "invalidates", "It says 3.")


def badge_of(report):
    """The words, the colour and the title of a badge."""
    badge = ElementTree.fromstring(badge_svg(report))
    spaced = {re.sub("{.*}", "", one.tag): one for one in badge.iter()}
    words = [one.text for one in badge.iter() if one.tag.endswith("text")]
    return words, spaced["rect"].attrib["fill"], spaced["title"].text or ""


def test_a_badge_has_the_lowest_consistency_of_any_mode_and_says_what_it_is_of():
    zero = make_metrics(Movement("zero"), fall=0.1)
    lowest = make_metrics(Movement("crop", crop_size=5))
    words, colour, title = badge_of(make_report(metrics=(zero, lowest)))
    assert words == ["shift-consistency", f"{100 * lowest.numbers['consistency'].value:.1f} %"]
    assert colour == BADGE_COLORS[-1][1]
    assert "mode crop, 81 shifts, 60 images" in title


@pytest.mark.parametrize("share", [1.0, 0.991, 0.95, 0.4])
def test_the_colour_of_a_badge_is_that_of_the_share(share):
    metrics = make_metrics()
    number = dataclasses.replace(metrics.numbers["consistency"], value=share)
    metrics = dataclasses.replace(metrics, numbers={**metrics.numbers, "consistency": number})
    expected = {1.0: "#14692f", 0.991: "#14692f", 0.95: "#8a5200", 0.4: "#a31f10"}[share]
    assert badge_of(make_report(metrics=(metrics,)))[1] == expected


def test_void_numbers_and_models_without_answers_have_no_number_on_their_badge():
    for report, why in (
        (make_report(caveats=(VOID,)), "constant predictor"),
        (make_report(metrics=(make_metrics(output="dense"),)), "no predictions to compare"),
    ):
        words, _, title = badge_of(report)
        assert words == ["shift-consistency", "–"]
        assert why in title


def test_a_name_from_a_file_is_shown_as_it_is():
    report = dataclasses.replace(make_report(), name="<img src=x>|`x`\x1b[2J\n\n# head\u202e\ud800")
    assert "<img src=x>|`x`" in badge_of(report)[2]
