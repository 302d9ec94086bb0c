import json
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from teka.codec import decode, encode


@dataclass(frozen=True)
class Point:
    place: tuple[int | float, ...]
    weight: float | None = None


@dataclass(frozen=True)
class Drawing:
    name: str
    points: dict[str, Point]
    corners: tuple[Point, Point]
    kind: Literal["open", "closed"] = "open"
    file: Path = Path("a")
    counts: list[int] = field(default_factory=list)
    notes: object = None


points = st.builds(
    Point,
    st.lists(st.integers() | st.floats(allow_nan=False)).map(tuple),
    st.none() | st.floats(-1, 1),
)
drawings = st.builds(
    Drawing,
    st.text(),
    st.dictionaries(st.text(), points),
    st.tuples(points, points),
    st.sampled_from(["open", "closed"]),
    st.just(Path("b/c")),
    st.lists(st.integers()),
    st.none() | st.lists(st.booleans()),
)


@given(drawing=drawings)
def test_decode_inverts_encode(drawing: Drawing):
    assert decode(Drawing, json.loads(json.dumps(encode(drawing)))) == drawing


def test_numpy_scalars_and_fractions_become_python_numbers():
    values = {"place": (np.int64(3), np.float32(0.5), Fraction(1, 4)), "right": np.True_}
    assert json.dumps(encode(values)) == '{"place": [3, 0.5, 0.25], "right": true}'


WHOLE = {"name": "a", "points": {}, "corners": [{"place": [1]}, {"place": []}]}


def test_errors_name_the_field():
    for change, message in [
        ({"name": 3}, "drawing.name must be a string.*got 3"),
        (
            {"points": {"p": {"place": [True]}}},
            "drawing.points.p.place.0. must be a whole.*got True",
        ),
        ({"points": []}, "drawing.points must be a dictionary.*got .."),
        ({"corners": [{"place": [1]}]}, "drawing.corners must be a list of 2"),
        (
            {"corners": [{"place": [1], "weight": "w"}, {}]},
            "drawing.corners.0..weight must be a number.*got 'w'",
        ),
        ({"corners": [{}, {}]}, "drawing.corners.0..place is missing"),
        ({"kind": "round"}, "drawing.kind must be one of 'open', 'closed'.*got 'round'"),
        (
            {"corners": [{"place": [1], "weight": 10**400}, {}]},
            "weight must be a number up to.*got 10+",
        ),
        ({"size": 3}, "no field 'size': there are name, points"),
    ]:
        with pytest.raises(ValueError, match=message):
            decode(Drawing, {**WHOLE, **change}, "drawing")
