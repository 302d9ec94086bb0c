import re
from xml.etree import ElementTree

import pytest
from tests.audit.page.audit_reports import CROSS, SQUARE

from teka.audit.page.heat_map import NOT_EVALUATED, HeatMap, heat_map_chart, heat_scale
from teka.audit.page.style import heat_colour


def map_of(number, values):
    return HeatMap(number, values)


def cells_of(chart):
    """For each colour, the (row, column) of its cells."""
    (group,) = [one for one in ElementTree.fromstring(chart).iter("g") if one.get("shape-rendering") == "crispEdges"]
    return {
        path.attrib["fill"]: {(int(y), int(x)) for x, y in re.findall(r"M(\d+) (\d+)h1v1h-1z", path.attrib["d"])}
        for path in group.findall("path")
    }


def test_down_is_down_and_right_is_right():
    heat_map = map_of("accuracy", dict.fromkeys(SQUARE, 0.9) | {(-4, 3): 0.1})
    found = cells_of(heat_map_chart(heat_map, heat_scale([heat_map]), "A map."))
    # dy −4 is the first row, dx +3 the last but one column.
    assert {(0, 7)} in found.values()
    assert sum(map(len, found.values())) == len(SQUARE)


def test_what_was_not_evaluated_is_grey():
    heat_map = map_of("accuracy", dict.fromkeys(CROSS, 1.0))
    chart = heat_map_chart(heat_map, heat_scale([heat_map]), "A map.")
    found = cells_of(chart)
    assert len(found[NOT_EVALUATED]) == len(SQUARE) - len(CROSS)
    assert len(found[heat_colour(0.0)]) == len(CROSS)
    assert "not evaluated" in chart


def test_the_worst_is_the_lowest_share_or_the_highest_error():
    values = {(0, 0): 0.5, (0, 1): 0.2, (1, 0): 0.9}
    assert map_of("agreement", values).worst == (0, 1)
    assert map_of("error", values).worst == (1, 0)
    assert map_of("error", dict.fromkeys(values, 0.5)).worst is None


def test_maps_beside_each_other_share_one_scale():
    exact, broken = map_of("error", {(0, 0): 0.0, (1, 1): 1e-7}), map_of("error", {(0, 0): 0.0, (1, 1): 2.0})
    scale = heat_scale([exact, broken])
    assert scale.place(2.0) == 1
    assert scale.place(1e-7) == pytest.approx(0, abs=1e-6)


def test_rounding_alone_does_not_look_like_much():
    exact = map_of("error", {(0, 0): 0.0, (1, 1): 1e-7})
    assert heat_scale([exact]).place(1e-7) < 1e-4


def test_only_both_axes_at_once_make_a_square():
    assert map_of("error", dict.fromkeys(SQUARE, 1.0)).is_square
    assert not map_of("error", dict.fromkeys(CROSS, 1.0)).is_square


def test_the_table_has_every_number_as_it_is_written():
    table = map_of("accuracy", {(0, -1): 0.5, (0, 2): 1.0, (1, 2): 0.25}).table()
    assert table == [("0", ["50.0", "100.0"]), ("+1", ["–", "25.0"])]


def test_small_maps_have_their_numbers_written_in_them():
    heat_map = map_of("accuracy", {(down, right): 0.125 * down + 0.25 * right for down in (0, 1) for right in (0, 1)})
    assert ">37.5<" in heat_map_chart(heat_map, heat_scale([heat_map]), "A map.")


def test_long_numbers_stay_within_their_cells():
    heat_map = map_of("error", {(down, right): 1.2e-7 for down in range(8) for right in range(8)})
    sizes = re.findall(
        r'font-size="([\d.]+)"[^>]*>1\.2e−7<', heat_map_chart(heat_map, heat_scale([heat_map]), "A map.")
    )
    # A digit is about 0.6 of its size wide, and a cell 306 / 8.
    assert len(sizes) == 64
    assert all(0.6 * float(size) * len("1.2e−7") < 306 / 8 for size in sizes)
