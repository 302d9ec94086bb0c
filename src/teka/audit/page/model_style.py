"""Colour, dashes and marker of each model, so that it looks the same all over the page and in print."""

from dataclasses import dataclass

from teka.audit.page.style import line_style
from teka.audit.page.svg import element

POINTS = {
    "o": "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0 -2 0z",
    "s": "M-.9 -.9h1.8v1.8h-1.8z",
    "^": "M0 -1.1L1.05 .8H-1.05z",
    "v": "M0 1.1L1.05 -.8H-1.05z",
    "D": "M0 -1.2L1.2 0L0 1.2L-1.2 0z",
    "X": "M-.5 -1.1L0 -.6L.5 -1.1L1.1 -.5L.6 0L1.1 .5L.5 1.1L0 .6L-.5 1.1L-1.1 .5L-.6 0L-1.1 -.5z",
    "h": "M0 -1.1L.95 -.55V.55L0 1.1L-.95 .55V-.55z",
    "P": "M-.4 -1.1h.8v.7h.7v.8h-.7v.7h-.8v-.7h-.7v-.8h.7z",
}
"""Outline of each of the markers of `teka.audit.page.style.MARKERS`, about 1 in every direction."""


@dataclass(frozen=True)
class ModelStyle:
    """How one model is drawn.

    Args:
        colour: Its colour.
        marker: Its marker, a key of `POINTS`.
        dashes: Lengths of its dashes and gaps in line widths; empty for a line without gaps.
    """

    colour: str
    marker: str
    dashes: tuple[int | float, ...]

    def line(self, path: str, width: float) -> str:
        """The model's line along a path."""
        dashes = {"stroke-dasharray": " ".join(f"{width * part:.1f}" for part in self.dashes)} if self.dashes else {}
        style = {"fill": "none", "stroke": self.colour, "stroke-width": width, "stroke-linejoin": "round"}
        return element("path", {"d": path, **style, **dashes})

    def point(self, x: float, y: float, size: float, *content: str) -> str:
        """The model's marker at a place; `content` may be a title."""
        place = f"translate({x:.2f} {y:.2f}) scale({size:.2f})"
        style = {"fill": self.colour, "stroke": "#fff", "stroke-width": 0.6, "vector-effect": "non-scaling-stroke"}
        return element("path", {"d": POINTS[self.marker], "transform": place, **style}, *content)

    def swatch(self) -> str:
        """A short piece of its line with its marker, for a legend; its name stands beside it."""
        frame = {"viewBox": "0 0 34 12", "width": 34, "height": 12, "aria-hidden": "true", "class": "swatch"}
        return element("svg", frame, self.line("M1 6H33", 2.0), self.point(17.0, 6.0, 4.0))


def model_style(index: int) -> ModelStyle:
    """How the model at a place in the list is drawn; after the last style, colours return with other markers.

    Args:
        index: The place, from 0.
    """
    return ModelStyle(*line_style(index))
