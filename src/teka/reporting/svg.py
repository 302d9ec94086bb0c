"""Drawings within a page, as SVG that needs no other package and is sharp on paper: elements, lines, scales."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from teka.errors import printable
from teka.reporting.style import GRID, SOFT, LineStyle

POINTS = {
    "o": "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0 -2 0z",
    "s": "M-.9 -.9h1.8v1.8h-1.8z",
    "^": "M0 -1.1L1.05 .8H-1.05z",
    "v": "M0 1.1L1.05 -.8H-1.05z",
    "D": "M0 -1.2L1.2 0L0 1.2L-1.2 0z",
    "P": "M-.4 -1.1h.8v.7h.7v.8h-.7v.7h-.8v-.7h-.7v-.8h.7z",
    "X": "M-.5 -1.1L0 -.6L.5 -1.1L1.1 -.5L.6 0L1.1 .5L.5 1.1L0 .6L-.5 1.1L-1.1 .5L-.6 0L-1.1 -.5z",
    "h": "M0 -1.1L.95 -.55V.55L0 1.1L-.95 .55V-.55z",
    "*": "M0 -1.25L.32 -.44L1.19 -.39L.52 .17L.73 1.01L0 .55L-.73 1.01L-.52 .17L-1.19 -.39L-.32 -.44z",
    ">": "M1.1 0L-.8 1.05V-1.05z",
}
"""Outline of each of `teka.reporting.style.MARKERS`, about 1 in every direction."""
LABEL = {"text-anchor": "middle", "font-size": 12.0, "fill": SOFT, "font-weight": 400}
"""How the words of a drawing look unless they say otherwise."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
DECADES_FOR_LOGARITHM = (
    2.5  # numbers that span more powers of ten than this are drawn on a logarithmic scale
)


def escape(words: str) -> str:
    """Return words as text of XML, which takes no control characters."""
    return html.escape(printable(words))


def element(name: str, attributes: Mapping[str, object], *content: str) -> str:
    """One element; attributes are escaped and their numbers rounded to two decimals, content is SVG already."""
    written = "".join(f' {key}="{escape(_written(value))}"' for key, value in attributes.items())
    return f"<{name}{written}>{''.join(content)}</{name}>" if content else f"<{name}{written}/>"


def _written(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def label(
    words: str,
    x: float,
    y: float,
    *,
    anchor: str = "middle",
    size: float = 12.0,
    colour: str = SOFT,
    weight: int = 400,
) -> str:
    """Text on a base line, anchored at its "start", "middle" or "end"; a weight of 700 is bold."""
    look = {"text-anchor": anchor, "font-size": size, "fill": colour, "font-weight": weight}
    chosen = {name: value for name, value in look.items() if value != LABEL[name]}
    return element("text", {"x": x, "y": y, **chosen}, escape(words))


def ticks(side: Literal["left", "below"], *labels: str) -> str:
    """The labels of an axis, which stay in sight where the drawing is zoomed."""
    return element("g", {"class": f"ticks-{side}"}, *labels)


def edged(words: str) -> str:
    """What `label` gave with a white edge, so that it is read where it lies on a line."""
    return element("g", {"stroke": "#fff", "stroke-width": 4, "paint-order": "stroke"}, words)


def rule(x1: float, y1: float, x2: float, y2: float, colour: str = GRID, dashes: str = "") -> str:
    """A thin straight line."""
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "stroke": colour}
    return element("line", {**ends, **({"stroke-dasharray": dashes} if dashes else {})})


def title(words: str) -> str:
    """What is shown when one points at the element that holds it."""
    return element("title", {}, escape(words))


def polygon(corners: Sequence[tuple[float, float]]) -> str:
    """The path through corners; closed by a "z"."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)


def drawing(width: float, height: float, description: str, *content: str) -> str:
    """A drawing of a size in its own units, as wide as its place allows, described for those who do not see it."""
    size = (_written(float(width)), _written(float(height)))
    frame = {
        "viewBox": f"0 0 {size[0]} {size[1]}",
        "role": "img",
        "aria-label": description,
        "class": "drawing",
    }
    return element(
        "svg", {**frame, "style": f"aspect-ratio: {size[0]} / {size[1]}", **LABEL}, *content
    )


def styled_line(style: LineStyle, path: str, width: float) -> str:
    """A line of a style along a path."""
    dashes = (
        {"stroke-dasharray": " ".join(f"{width * part:.1f}" for part in style.dashes)}
        if style.dashes
        else {}
    )
    line = {
        "fill": "none",
        "stroke": style.colour,
        "stroke-width": width,
        "stroke-linejoin": "round",
    }
    return element("path", {"d": path, **line, **dashes})


def styled_points(style: LineStyle, points: Iterable[tuple[float, float, str]], size: float) -> str:
    """The marker of a style at places, each with the words that are shown when one points at it, if any."""
    drawn = []
    for x, y, words in points:
        place = {
            "d": POINTS[style.marker],
            "transform": f"translate({x:.1f} {y:.1f}) scale({size:.2f})",
        }
        drawn.append(element("path", place, *([title(words)] if words else ())))
    edge = {"fill": style.colour, "stroke": "#fff", "stroke-width": 0.6 / size}
    return element("g", {"class": "points", **edge}, *drawn)


def line(name: str, *content: str) -> str:
    """What belongs to one line of a chart, which the legend's entry of that name hides."""
    return element("g", {"data-line": name}, *content)


def swatch(style: LineStyle) -> str:
    """A short piece of a line with its marker for a legend, where its name stands beside it."""
    frame = {
        "viewBox": "0 0 34 12",
        "width": 34,
        "height": 12,
        "aria-hidden": "true",
        "class": "swatch",
    }
    return element(
        "svg",
        frame,
        styled_line(style, "M1 6H33", 2.0),
        styled_points(style, [(17.0, 6.0, "")], 4.0),
    )


@dataclass(frozen=True)
class Scale:
    """A scale from numbers, low to high, to places, start to end; logarithmic of positive numbers if asked for."""

    low: int | float
    high: int | float
    start: float
    end: float
    is_logarithmic: bool = False

    def place(self, value: int | float) -> float:
        """Where a number lies; one beyond an end lies at that end."""
        value = min(max(value, self.low), self.high)
        if self.is_logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers within the scale, at most about so many."""
        if self.is_logarithmic:
            first, last = (
                math.ceil(math.log10(self.low) - 1e-9),
                math.floor(math.log10(self.high) + 1e-9),
            )
            return [
                10.0**power
                for power in range(first, last + 1, max(1, -(-(last - first + 1) // most)))
            ]
        step = round_step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def round_step(least: float) -> float:
    """The lowest of 1, 2, 2.5, 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in STEPS if step * power >= least * (1 - 1e-9))


def share_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale for shares: from a round number below the lowest, or 0 where that is not far, to 1."""
    lowest = min(values)
    low = 0.0 if lowest < 0.5 else max(0.0, math.floor(20 * lowest - 0.5) / 20)
    return Scale(min(low, 0.9), 1.0, start, end)


def decade_scale(low: float, high: float, start: float, end: float) -> Scale:
    """A logarithmic scale of whole powers of ten, one at least, around two positive numbers."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high) - 1e-9)
    return Scale(10.0**first, 10.0 ** max(last, first + 1), start, end, is_logarithmic=True)


def signed_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale for differences, with 0 on it: between round numbers around them."""
    low, high = min(0.0, *values), max(0.0, *values)
    step = round_step(max((high - low) / 4, 0.0025))
    return Scale(
        step * math.floor(low / step + 1e-9),
        step * max(1, math.ceil(high / step - 1e-9)),
        start,
        end,
    )


def size_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale for numbers of at least 0: from 0, or logarithmic where they span many powers of ten."""
    positive = [value for value in values if value > 0]
    if not positive:
        return Scale(0.0, 1.0, start, end)
    low, high = min(positive), max(positive)
    if math.log10(high / low) > DECADES_FOR_LOGARITHM:
        return decade_scale(low, high, start, end)
    step = round_step(high / 4)
    return Scale(0.0, math.ceil(high / step - 1e-9) * step, start, end)
