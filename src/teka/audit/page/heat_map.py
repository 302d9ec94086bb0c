"""A number at every pair of steps along dy and dx, as a picture and as the rows of a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from teka.audit.page.notation import write_step
from teka.audit.page.number import SHARES, write_number
from teka.audit.page.scale import Scale, share_scale
from teka.audit.page.style import HEAT_LEVELS, INK, heat_colour, ink_on
from teka.audit.page.svg import drawing, element, label

WIDTH, LEFT, TOP, SIDE = 360.0, 46.0, 10.0, 306.0
MOST_TICKS = 9
MOST_WRITTEN = 8
"""Up to so many cells along an axis have their number written in them."""
LEAST_HIGH = {"sensitivity": 1.0, "error": 0.01}
"""What is at least the end of a scale, so that rounding does not look like much."""
NOT_EVALUATED = "#e3e7ec"


@dataclass(frozen=True)
class HeatMap:
    """A number at pairs of steps.

    Args:
        number: Name of the number or curve, which says whether high is good.
        values: The number at each pair (dy, dx); pairs that were not measured are left out.
        down: What dy is called.
        across: What dx is called.
        write_place: How a row or column is written.
    """

    number: str
    values: Mapping[tuple[int | float, ...], float]
    down: str = "downwards, dy (pixels)"
    across: str = "to the right, dx (pixels)"
    write_place: Callable[[int | float], str] = write_step

    @property
    def rows(self) -> list[int | float]:
        """The steps dy, from the top of the map to its bottom."""
        return sorted({down for down, _ in self.values})

    @property
    def columns(self) -> list[int | float]:
        """The steps dx, from left to right."""
        return sorted({right for _, right in self.values})

    @property
    def is_square(self) -> bool:
        """Whether both axes are moved at once anywhere, so that it shows more than two curves do."""
        return any(down and right for down, right in self.values)

    @property
    def worst(self) -> tuple[int | float, ...] | None:
        """The pair at which the number is worst, the first of equals; None where it is the same everywhere."""
        if len(set(self.values.values())) == 1:
            return None
        choose = min if self.number in SHARES else max
        return choose(self.values, key=lambda pair: self.values[pair])

    def table(self) -> list[tuple[str, list[str]]]:
        """For each dy, its name and the number at each dx as written; "–" where it was not measured."""
        return [
            (
                self.write_place(down),
                [
                    write_number(self.number, self.values[down, right]) if (down, right) in self.values else "–"
                    for right in self.columns
                ],
            )
            for down in self.rows
        ]


def heat_scale(maps: Sequence[HeatMap]) -> Scale:
    """The scale of maps that are to be compared, from 0 for good to 1 for bad.

    Args:
        maps: The maps, of one number.
    """
    values = [value for one in maps for value in one.values.values()]
    if maps[0].number in SHARES:
        return share_scale(values, 1.0, 0.0)
    return Scale(0.0, max(*values, LEAST_HIGH.get(maps[0].number, 0.0)), 0.0, 1.0)


def heat_map_chart(heat_map: HeatMap, scale: Scale, description: str) -> str:
    """Draw a heat map; the darker, the worse.

    Args:
        heat_map: The map.
        scale: What `heat_scale` gave.
        description: What it shows, for those who do not see it.
    """
    rows, columns = heat_map.rows, heat_map.columns
    side = min(SIDE / len(columns), SIDE / len(rows), 60.0)
    width, height = side * len(columns), side * len(rows)
    left = LEFT + (SIDE - width) / 2
    parts = [_cells(heat_map, scale, left, side)]
    if max(len(rows), len(columns)) <= MOST_WRITTEN:
        parts += _written(heat_map, scale, left, side)
    parts += _marks(heat_map, left, side)
    for index in _ticks(rows):
        parts.append(label(heat_map.write_place(rows[index]), left - 6, TOP + (index + 0.5) * side + 4, anchor="end"))
    for index in _ticks(columns):
        parts.append(label(heat_map.write_place(columns[index]), left + (index + 0.5) * side, TOP + height + 15))
    parts.append(label(heat_map.across, left + width / 2, TOP + height + 32))
    middle = TOP + height / 2
    # Written upwards beside the map; the transform turns about the text's own place.
    turned = {"transform": f"rotate(-90 {left - 36:.1f} {middle:.1f})"}
    parts.append(element("g", turned, label(heat_map.down, left - 36, middle + 4)))
    parts.append(_legend(heat_map, scale, TOP + height + 44, is_whole=len(rows) * len(columns) == len(heat_map.values)))
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
    size = min(12.0, side / 2.9)
    return [
        label(
            write_number(heat_map.number, value),
            left + (heat_map.columns.index(right) + 0.5) * side,
            TOP + (heat_map.rows.index(down) + 0.5) * side + size / 3,
            size=size,
            colour=ink_on(heat_colour(scale.place(value))),
        )
        for (down, right), value in heat_map.values.items()
    ]


def _marks(heat_map: HeatMap, left: float, side: float) -> list[str]:
    """A ring around the image not moved and a bold one around the worst."""
    worst = heat_map.worst
    marks = []
    for place in dict.fromkeys(((0, 0), worst)):
        if place is None or place not in heat_map.values:
            continue
        down, right = place
        x, y = left + heat_map.columns.index(right) * side, TOP + heat_map.rows.index(down) * side
        frame = {"x": x, "y": y, "width": side, "height": side, "fill": "none"}
        style = {"stroke": INK, "stroke-width": 2.2 if place == worst else 1.0}
        white = {"stroke": "#fff", "stroke-width": 4.4 if place == worst else 2.6}
        marks += [element("rect", {**frame, **white}), element("rect", {**frame, **style})]
    return marks


def _ticks(steps: Sequence[int | float]) -> list[int]:
    every = -(-len(steps) // MOST_TICKS)
    zero = list(steps).index(0) if 0 in steps else 0
    return [index for index in range(len(steps)) if (index - zero) % every == 0]


def _legend(heat_map: HeatMap, scale: Scale, top: float, *, is_whole: bool) -> str:
    width, height = 150.0, 9
    step = width / HEAT_LEVELS
    ends = (scale.high, scale.low) if heat_map.number in SHARES else (scale.low, scale.high)
    unit = " %" if heat_map.number in SHARES else ""
    left = LEFT + 38
    parts = [
        element(
            "rect",
            {"x": left + index * step, "y": top, "width": step + 0.3, "height": height,
             "fill": heat_colour(index / (HEAT_LEVELS - 1)), "shape-rendering": "crispEdges"},
        )
        for index in range(HEAT_LEVELS)
    ]  # fmt: skip
    for at, value, anchor in ((left - 6, ends[0], "end"), (left + width + 6, ends[1], "start")):
        parts.append(label(write_number(heat_map.number, value) + unit, at, top + 9, anchor=anchor))
    if not is_whole:
        parts.append(element("rect", {"x": 264, "y": top, "width": 9, "height": 9, "fill": NOT_EVALUATED}))
        parts.append(label("not evaluated", 277.0, top + 9, anchor="start"))
    return "".join(parts)
