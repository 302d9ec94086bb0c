"""A number at every pair of steps along dy and dx, as a picture and as the rows of a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from teka.audit.page.notation import is_share, write_number, write_step
from teka.audit.page.style import HEAT_LEVELS, INK, chosen_ticks, heat_colour, ink_on
from teka.audit.page.svg import Scale, drawing, element, label, share_scale

Pair = tuple[int | float, ...]
WIDTH, LEFT, TOP, SIDE = 360.0, 46.0, 10.0, 306.0
MOST_WRITTEN = 8
"""Up to so many cells along an axis have their number written in them."""
LEAST_HIGH = {"sensitivity": 1.0, "error": 0.01}
"""What is at least the end of a scale, so that rounding does not look like much."""
NOT_EVALUATED = "#e3e7ec"


@dataclass(frozen=True)
class HeatMap:
    """A curve or other number at those pairs (dy, dx) that were measured.

    What dy and dx are called, and how a row or column is written, may be another than for shifts.
    """

    number: str
    values: Mapping[Pair, float]
    down: str = "downwards, dy (pixels)"
    across: str = "to the right, dx (pixels)"
    write_place: Callable[[int | float], str] = write_step

    @cached_property
    def rows(self) -> list[int | float]:
        """The steps dy, from the top of the map to its bottom."""
        return sorted({down for down, _ in self.values})

    @cached_property
    def columns(self) -> list[int | float]:
        """The steps dx, from left to right."""
        return sorted({right for _, right in self.values})

    @property
    def is_square(self) -> bool:
        """Whether both axes are moved at once anywhere, so that it shows more than two curves do."""
        return any(down and right for down, right in self.values)

    @property
    def worst(self) -> Pair | None:
        """The pair at which the number is worst, the first of equals; None where it is the same everywhere."""
        if len(set(self.values.values())) == 1:
            return None
        return (min if is_share(self.number) else max)(self.values, key=self.values.__getitem__)

    def write(self, pair: Pair) -> str:
        """The number at a pair, "–" where it was not measured."""
        return write_number(self.number, self.values[pair]) if pair in self.values else "–"

    def table(self) -> list[tuple[str, list[str]]]:
        """For each dy, how it is written and the number at each dx."""
        return [(self.write_place(down), [self.write((down, right)) for right in self.columns]) for down in self.rows]


def heat_scale(maps: Sequence[HeatMap]) -> Scale:
    """The scale of maps of one number that are to be compared, from 0 for good to 1 for bad."""
    values = [value for one in maps for value in one.values.values()]
    if is_share(maps[0].number):
        return share_scale(values, 1.0, 0.0)
    return Scale(0.0, max(*values, LEAST_HIGH.get(maps[0].number, 0.0)), 0.0, 1.0)


def heat_map_chart(heat_map: HeatMap, scale: Scale, description: str) -> str:
    """Draw a map on a scale that `heat_scale` gave; the darker, the worse."""
    rows, columns = heat_map.rows, heat_map.columns
    side = min(SIDE / len(columns), SIDE / len(rows), 60.0)
    width, height = side * len(columns), side * len(rows)
    left = LEFT + (SIDE - width) / 2
    parts = [_cells(heat_map, scale, left, side)]
    if max(len(rows), len(columns)) <= MOST_WRITTEN:
        parts += _written(heat_map, scale, left, side)
    parts += _marks(heat_map, left, side)
    for at in chosen_ticks(rows):
        parts.append(label(heat_map.write_place(rows[at]), left - 6, TOP + (at + 0.5) * side + 4, anchor="end"))
    for at in chosen_ticks(columns):
        parts.append(label(heat_map.write_place(columns[at]), left + (at + 0.5) * side, TOP + height + 15))
    parts.append(label(heat_map.across, left + width / 2, TOP + height + 32))
    # Written upwards beside the map, rotated about the text's own place.
    x, y = left - 36, TOP + height / 2
    parts.append(element("g", {"transform": f"rotate(-90 {x:.1f} {y:.1f})"}, label(heat_map.down, x, y + 4)))
    parts.append(_legend(heat_map, scale, TOP + height + 44))
    return drawing(WIDTH, TOP + height + 78, description, *parts)


def _cells(heat_map: HeatMap, scale: Scale, left: float, side: float) -> str:
    # Cells of one colour are one path, so that a map of thousands of shifts stays small.
    paths: dict[str, str] = {}
    for row, down in enumerate(heat_map.rows):
        for column, right in enumerate(heat_map.columns):
            value = heat_map.values.get((down, right))
            colour = NOT_EVALUATED if value is None else heat_colour(scale.place(value))
            paths[colour] = paths.get(colour, "") + f"M{column} {row}h1v1h-1z"
    place = {"transform": f"translate({left:.2f} {TOP}) scale({side:.4f})", "shape-rendering": "crispEdges"}
    drawn = [element("path", {"d": path, "fill": colour}) for colour, path in paths.items()]
    ground = {"class": "cells", "width": len(heat_map.columns), "height": len(heat_map.rows), "fill": "#fff"}
    return element("g", place, element("rect", ground), *drawn)


def _written(heat_map: HeatMap, scale: Scale, left: float, side: float) -> list[str]:
    longest = max(len(heat_map.write(pair)) for pair in heat_map.values)
    size = min(12.0, side / 2.9, 1.5 * side / longest)  # so that it stays within its cell
    return [
        label(
            heat_map.write((down, right)),
            left + (heat_map.columns.index(right) + 0.5) * side,
            TOP + (heat_map.rows.index(down) + 0.5) * side + size / 3,
            size=size,
            colour=ink_on(heat_colour(scale.place(value))),
        )
        for (down, right), value in heat_map.values.items()
    ]


def _marks(heat_map: HeatMap, left: float, side: float) -> list[str]:
    """A frame around the unshifted image and a bold one around the worst."""
    worst, marks = heat_map.worst, []
    for place in dict.fromkeys(((0, 0), worst)):
        if place is None or place not in heat_map.values:
            continue
        down, right = place
        x, y = left + heat_map.columns.index(right) * side, TOP + heat_map.rows.index(down) * side
        frame = {"x": x, "y": y, "width": side, "height": side, "fill": "none"}
        width = 2.2 if place == worst else 1.0
        for colour, stroke in (("#fff", 2 * width if place == worst else 2.6), (INK, width)):
            marks.append(element("rect", {**frame, "stroke": colour, "stroke-width": stroke}))
    return marks


def _legend(heat_map: HeatMap, scale: Scale, top: float) -> str:
    left, width, step = LEFT + 38, 150.0, 150.0 / HEAT_LEVELS
    box = {"y": top, "height": 9, "shape-rendering": "crispEdges"}
    parts = []
    for at in range(HEAT_LEVELS):
        colour = heat_colour(at / (HEAT_LEVELS - 1))
        parts.append(element("rect", {**box, "x": left + at * step, "width": step + 0.3, "fill": colour}))
    shares = is_share(heat_map.number)
    good, bad = (scale.high, scale.low) if shares else (scale.low, scale.high)
    for at, value, anchor in ((left - 6, good, "end"), (left + width + 6, bad, "start")):
        parts.append(label(write_number(heat_map.number, value) + " %" * shares, at, top + 9, anchor=anchor))
    if len(heat_map.rows) * len(heat_map.columns) > len(heat_map.values):
        parts.append(element("rect", {**box, "x": 264, "width": 9, "fill": NOT_EVALUATED}))
        parts.append(label("not evaluated", 277.0, top + 9, anchor="start"))
    return "".join(parts)
