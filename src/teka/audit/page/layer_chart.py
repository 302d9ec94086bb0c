"""The error of every layer in the order of execution, on a logarithmic scale."""

import itertools
import math
from collections.abc import Callable, Sequence
from operator import attrgetter

from teka.audit.layers.findings import LayerFinding, LayerFindings
from teka.audit.page.model_style import ModelStyle
from teka.audit.page.notation import write_size
from teka.audit.page.scale import Scale
from teka.audit.page.style import INK, SOFT
from teka.audit.page.svg import drawing, edged, element, label, rule, title

NARROW, WIDE = 360.0, 860.0
"""Widths of the drawing for a phone and for a page."""
HEIGHT, LEFT, BOTTOM = 280.0, 48.0, 246.0
NAME_HEIGHT = 16.0
"""Room for the name of a layer that breaks, above the chart."""
LOWEST, HIGHEST = 1e-9, 10.0


def _whole(finding: LayerFinding) -> float | None:
    return finding.error if finding.interior_error is None else None


KINDS: tuple[tuple[str, ModelStyle, Callable[[LayerFinding], float | None]], ...] = (
    ("all cells, where none is out of reach", ModelStyle("#1c2430", "D", ()), _whole),
    ("at the edge", ModelStyle("#0072B2", "s", (3, 2)), attrgetter("border_error")),
    ("between cells (aliasing)", ModelStyle("#009E73", "^", (1, 1.4)), attrgetter("aliasing_error")),
    ("within the image", ModelStyle("#D55E00", "o", ()), attrgetter("interior_error")),
)
"""Each kind of error with how it is drawn; the last lies on top."""


def layer_chart(layers: LayerFindings, width: float) -> str:
    """Draw each kind of error of each layer, the noise, the limit, and where each kind breaks first.

    Args:
        layers: The layers, one or more.
        width: `NARROW` or `WIDE`.
    """
    findings, breaks = layers.findings, _first_breaks(layers)
    across = Scale(0.0, max(1.0, len(findings) - 1.0), LEFT + 8, width - 12)
    up = _upwards(layers, 26.0 + NAME_HEIGHT * len(breaks))
    parts = []
    for tick in up.ticks(6):
        parts += [rule(LEFT, up.place(tick), width - 4, up.place(tick)), _power(tick, up.place(tick))]
    parts += [_noise(findings, across, up), _limit(layers.threshold, up, width)]
    parts += [_break(name, layers, across, width, row) for row, name in enumerate(breaks)]
    parts.append(edged(label("relative error at the worst shift", 2.0, up.end - 12, anchor="start")))
    parts += [_draw_kind(findings, style, read, across, up) for _, style, read in KINDS]
    parts.append(label(f"layers in the order of execution, 1 to {len(findings)}", (LEFT + width) / 2, HEIGHT - 8))
    return drawing(width, HEIGHT, _describe(layers), *parts)


def kinds_drawn(layers: LayerFindings) -> list[tuple[str, str]]:
    """Name and swatch of each kind of error that some layer has, for the legend.

    Args:
        layers: The layers.
    """
    shown = [
        (name, style) for name, style, read in reversed(KINDS) if any(read(one) is not None for one in layers.findings)
    ]
    return [(name, style.swatch()) for name, style in shown]


def _upwards(layers: LayerFindings, top: float) -> Scale:
    errors = [read(one) for one in layers.findings for *_, read in KINDS]
    noises = [one.noise for one in layers.findings]
    known = [max(error, LOWEST) for error in (*errors, *noises, layers.threshold) if error is not None and error > 0]
    low, high = min(known, default=LOWEST), min(max(known, default=1.0), HIGHEST)
    powers = math.floor(math.log10(low)), math.ceil(math.log10(high) - 1e-9)
    return Scale(10.0 ** powers[0], 10.0 ** max(powers[1], powers[0] + 1), BOTTOM, top, is_logarithmic=True)


def _power(tick: float, y: float) -> str:
    words = write_size(tick) if tick >= 0.01 else f"1e{round(math.log10(tick))}".replace("-", "−")
    return label(words, LEFT - 6, y + 4, anchor="end")


def _noise(findings: Sequence[LayerFinding], across: Scale, up: Scale) -> str:
    tops = [(across.place(index), up.place(max(one.noise, up.low))) for index, one in enumerate(findings)]
    corners = [(tops[0][0], BOTTOM), *tops, (tops[-1][0], BOTTOM)]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "z"
    return element("path", {"d": path, "fill": "#dfe3e8", "fill-opacity": 0.8}, title("noise"))


def _limit(threshold: float, up: Scale, width: float) -> str:
    y = up.place(threshold)
    return rule(LEFT, y, width - 4, y, SOFT, "5 4") + edged(label("limit", width - 6, y - 5, anchor="end"))


def _first_breaks(layers: LayerFindings) -> list[str]:
    names = list(dict.fromkeys(one.name for one in layers.breaks.values()))
    return [name for name in names if layers.find(name) is not None]


def _break(name: str, layers: LayerFindings, across: Scale, width: float, row: int) -> str:
    index = next(at for at, one in enumerate(layers.findings) if one.name == name)
    x, y = across.place(index), 12.0 + NAME_HEIGHT * row
    room = int((width - 16) / 6.9)
    words = name if len(name) <= room else f"…{name[1 - room :]}"
    # The name stays within the drawing, however near to its end the line is.
    half = 3.5 * len(words)
    at = min(max(x, half + 4), width - half - 4)
    line = rule(x, y + 5, x, BOTTOM, "#b32413", "2 2")
    return line + edged(label(words, at, y, colour=INK, weight=700))


def _draw_kind(
    findings: Sequence[LayerFinding],
    style: ModelStyle,
    read: Callable[[LayerFinding], float | None],
    across: Scale,
    up: Scale,
) -> str:
    known = [(index, one, error) for index, one in enumerate(findings) if (error := read(one)) is not None]
    size = min(4.0, max(1.6, 150 / max(len(findings), 1)))
    parts = []
    for (before, _, first), (after, _, second) in itertools.pairwise(known):
        if after == before + 1:
            path = f"M{across.place(before):.1f} {up.place(first):.1f}L{across.place(after):.1f} {up.place(second):.1f}"
            parts.append(style.line(path, 1.0))
    for index, one, error in known:
        name = title(f"{index + 1}. {one.name} ({one.kind}): {write_size(error)}")
        parts.append(style.point(across.place(index), up.place(error), size, name))
    return "".join(parts)


def _describe(layers: LayerFindings) -> str:
    first = (
        f"The first layer that breaks is {layers.first_break}."
        if layers.first_break
        else "No layer breaks within the image."
    )
    return f"Chart of the relative error of {len(layers.findings)} layers in the order of execution. {first}"
