"""What every picture shares, in a page as SVG or in a file by matplotlib: colours, styles of lines, choice of ticks."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

INK, SOFT, PALE, GRID, BLACK = "#1c2430", "#556070", "#8a8f98", "#dfe3e8", "#000000"
"""Text; what stands beside numbers, 6.4 : 1 on white; the background; rules; the reference of a comparison."""
# Okabe and Ito's colours, which colour-blind readers tell apart, but for the three that are pale on white, and others,
# so that ten lines have ten; markers and dashes repeat the difference for those who see or print no colour.
COLOURS = (
    "#D55E00", "#0072B2", "#009E73", BLACK, "#CC79A7", "#7A6A00", "#332288", "#882255", "#9944FF", "#553311",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h", "*", ">")
DASHES = (
    (), (), (3, 2), (1, 1.2), (5, 1, 1, 1, 1, 1), (8, 2), (4, 1.5), (5, 1, 1, 1), (2, 1), (8, 1, 2, 1),
)  # fmt: skip
HEAT = (
    "#fff8ec",
    "#fddba6",
    "#fca55d",
    "#e8602c",
    "#b32413",
    "#5f0a07",
)  # from pale, good, to dark, bad
HEAT_LEVELS = 40  # number of colours that are used, so that cells of one colour can be drawn as one
MOST_TICKS = 9


class LineStyle(NamedTuple):
    """How one line looks; dashes and gaps in line widths, empty for a line without gaps."""

    colour: str
    marker: str
    dashes: tuple[float | int, ...] = ()

    @property
    def linestyle(self) -> Literal["-"] | tuple[int, tuple[float | int, ...]]:
        """The dashes as matplotlib takes them."""
        return (0, self.dashes) if self.dashes else "-"


def line_style(index: int) -> LineStyle:
    """How the line at a place in a list is drawn; after the last, colours return with other markers and dashes."""
    round_, at = divmod(index, len(COLOURS))
    other = (at + round_) % len(COLOURS)
    return LineStyle(COLOURS[at], MARKERS[other], DASHES[other])


def level_styles(levels: Iterable[str], reference: str | None = None) -> dict[str, LineStyle]:
    """A style for each level of a factor, black for the reference; the same for the same levels in any order."""
    styles = {} if reference is None else {reference: LineStyle(BLACK, "o")}
    others = (style for index in itertools.count() if (style := line_style(index)).colour != BLACK)
    return styles | dict(zip(sorted(set(levels) - set(styles)), others, strict=False))


def heat_colour(share: float) -> str:
    """The colour, "#rrggbb", for a share of the way from good to bad; beyond [0, 1] that of the nearer end."""
    place = (
        round(min(max(share, 0.0), 1.0) * (HEAT_LEVELS - 1)) / (HEAT_LEVELS - 1) * (len(HEAT) - 1)
    )
    channels = zip(*map(_channels, HEAT), strict=True)
    return "#" + "".join(
        f"{round(float(np.interp(place, range(len(HEAT)), one))):02x}" for one in channels
    )


def contrast(first: str, second: str) -> float:
    """Contrast of two colours "#rrggbb", 1 to 21, as the Web Content Accessibility Guidelines 2.2 define it."""
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def ink_on(colour: str) -> str:
    """Black or white, whichever is read better on a colour; one of them has a contrast of 4.58 at least."""
    return max(BLACK, "#ffffff", key=lambda ink: contrast(ink, colour))


def chosen_ticks(steps: Sequence[int | float]) -> list[int]:
    """Places in a list of steps that have a tick, few enough to be read, counted from step 0 so that it has one."""
    every = -(-len(steps) // MOST_TICKS)
    zero = list(steps).index(0) if 0 in steps else 0
    return [index for index in range(len(steps)) if (index - zero) % every == 0]


def _channels(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def _luminance(colour: str) -> float:
    shares = [channel / 255 for channel in _channels(colour)]
    linear = [
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
