from xml.etree import ElementTree

from teka.audit.page.svg import drawing, edged, element, label, rule, title


def test_words_and_attributes_are_escaped():
    evil = "<script>\"&'"
    found = ElementTree.fromstring(drawing(10.0, 20.0, evil, label(evil, 1.0, 2.0), element("g", {}, title(evil))))
    assert found.get("aria-label") == evil
    assert [child.text for child in found.iter() if child.text] == [evil, evil]


def test_numbers_have_two_decimals_at_most():
    assert rule(1 / 3, 2.0, 10.0, 0.0).startswith('<line x1="0.33" y1="2" x2="10" y2="0"')


def test_a_drawing_keeps_its_shape_and_says_what_it_shows():
    found = ElementTree.fromstring(drawing(36.0, 22.0, "A chart.", edged(label("words", 0.0, 0.0))))
    assert found.get("viewBox") == "0 0 36 22"
    assert found.get("role") == "img"
