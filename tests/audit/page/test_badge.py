import dataclasses
import re
from xml.etree import ElementTree

import pytest

from teka.audit.caveats import Caveat
from teka.audit.movement import Movement
from teka.audit.page.badge import BADGE_COLORS, badge_svg
from tests.audit.page.audit_reports import make_metrics, make_report

INVALID = Caveat("constant predictor", "invalidates", "It says 3.")


def badge_parts(report):
    """Return the words, the color and the title of a badge."""
    badge = ElementTree.fromstring(badge_svg(report))
    elements = {re.sub("{.*}", "", element.tag): element for element in badge.iter()}
    words = [element.text for element in badge.iter() if element.tag.endswith("text")]
    return words, elements["rect"].attrib["fill"], elements["title"].text or ""


def test_badge_shows_the_lowest_consistency_and_its_mode():
    zero = make_metrics(Movement("zero"), fall=0.1)
    lowest = make_metrics(Movement("crop", crop_size=5))
    words, colour, title = badge_parts(make_report(metrics=(zero, lowest)))
    assert words == ["shift-consistency", f"{100 * lowest.numbers['consistency'].value:.1f} %"]
    assert colour == BADGE_COLORS[-1][1]
    assert "mode crop, 81 shifts, 60 images" in title


@pytest.mark.parametrize("share", [1.0, 0.991, 0.95, 0.4])
def test_badge_color_depends_on_the_consistency(share):
    metrics = make_metrics()
    number = dataclasses.replace(metrics.numbers["consistency"], value=share)
    metrics = dataclasses.replace(metrics, numbers={**metrics.numbers, "consistency": number})
    expected = {1.0: "#14692f", 0.991: "#14692f", 0.95: "#8a5200", 0.4: "#a31f10"}[share]
    assert badge_parts(make_report(metrics=(metrics,)))[1] == expected


def test_badge_of_invalid_or_dense_results_has_no_number():
    for report, reason in (
        (make_report(caveats=(INVALID,)), "constant predictor"),
        (make_report(metrics=(make_metrics(output="dense"),)), "no predictions to compare"),
    ):
        words, _, title = badge_parts(report)
        assert words == ["shift-consistency", "–"]
        assert reason in title


def test_badge_escapes_the_model_name():
    report = dataclasses.replace(make_report(), name="<img src=x>|`x`\x1b[2J\n\n# head\u202e\ud800")
    assert "<img src=x>|`x`" in badge_parts(report)[2]
