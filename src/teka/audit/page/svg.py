"""Elements of a drawing within a page, as text: SVG that needs no other package and is sharp on paper."""

from collections.abc import Mapping
from html import escape

from teka.audit.page.style import GRID, INK, SOFT


def element(name: str, attributes: Mapping[str, object], *content: str) -> str:
    """One element; attributes are escaped, content is not.

    Args:
        name: Its name.
        attributes: Its attributes; numbers are rounded to two decimals.
        content: What it holds, as SVG.
    """
    written = "".join(f' {key}="{escape(_written(value))}"' for key, value in attributes.items())
    return f"<{name}{written}>{''.join(content)}</{name}>" if content else f"<{name}{written}/>"


def _written(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def label(
    words: str, x: float, y: float, *, anchor: str = "middle", size: float = 12.0, colour: str = SOFT, weight: int = 400
) -> str:
    """Text at a place.

    Args:
        words: The text.
        x: Where it is anchored.
        y: Its base line.
        anchor: "start", "middle" or "end".
        size: Its size.
        colour: Its colour.
        weight: 400 for normal, 700 for bold.
    """
    place = {"x": x, "y": y, "text-anchor": anchor, "font-size": size, "fill": colour}
    return element("text", {**place, **({} if weight == 400 else {"font-weight": weight})}, escape(words))


def edged(words: str) -> str:
    """Text with a white edge, so that it is read where it lies on a line.

    Args:
        words: What `label` gave.
    """
    return element("g", {"stroke": "#fff", "stroke-width": 4, "paint-order": "stroke"}, words)


def rule(x1: float, y1: float, x2: float, y2: float, colour: str = GRID, dashes: str = "") -> str:
    """A thin straight line."""
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "stroke": colour}
    return element("line", {**ends, **({"stroke-dasharray": dashes} if dashes else {})})


def title(words: str) -> str:
    """What is shown when one points at the element that holds it."""
    return element("title", {}, escape(words))


def drawing(width: float, height: float, description: str, *content: str) -> str:
    """A drawing that is as wide as its place allows.

    Args:
        width: Width in its own units.
        height: Height in its own units.
        description: What it shows, for those who do not see it.
        content: Its elements.
    """
    frame = {
        "viewBox": f"0 0 {_written(float(width))} {_written(float(height))}",
        "role": "img",
        "aria-label": description,
        "class": "drawing",
        "style": f"aspect-ratio: {_written(float(width))} / {_written(float(height))}",
        "fill": INK,
    }
    return element("svg", frame, *content)
