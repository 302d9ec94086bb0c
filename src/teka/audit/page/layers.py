"""Layers: which are to blame, in words, and the error of each in the order of execution, drawn and in numbers."""

import itertools
import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from teka.audit.layers.findings import LayerFinding, LayerFindings
from teka.audit.page.notation import listed, write_size
from teka.audit.page.style import INK, SOFT, LineStyle
from teka.audit.page.svg import (
    Scale,
    decade_scale,
    drawing,
    edged,
    element,
    label,
    polygon,
    rule,
    styled_line,
    styled_point,
    swatch,
    title,
)
from teka.audit.report import AuditReport

NARROW, WIDE = 360.0, 860.0
"""Widths of the drawing for a phone and for a page."""
HEIGHT, LEFT, BOTTOM = 280.0, 48.0, 246.0
NAME_HEIGHT = 16.0
"""Room for the name of a layer that breaks, above the chart."""
LOWEST, HIGHEST = 1e-9, 10.0
BREAK_ROLES = {
    "interior": "first to break within the image",
    "edge": "first to feel the edge of the image",
    "aliasing": "first to break between the cells of its grid",
}
MOST_JUMPS = 3
COLUMNS = ("kind", "grid", "stride", "within", "edge", "between cells", "all cells", "added", "noise")
# Each kind of error with how it is drawn; the last lies on top.
KINDS: tuple[tuple[str, LineStyle, Callable[[LayerFinding], float | None]], ...] = (
    (
        "all cells, where none is out of reach",
        LineStyle(INK, "D"),
        lambda one: one.error if one.interior_error is None else None,
    ),
    ("at the edge", LineStyle("#0072B2", "s", (3, 2)), attrgetter("border_error")),
    ("between cells (aliasing)", LineStyle("#009E73", "^", (1, 1.4)), attrgetter("aliasing_error")),
    ("within the image", LineStyle("#D55E00", "o"), attrgetter("interior_error")),
)


class BlamedLayer(NamedTuple):
    """A layer, what it is to blame for, and with which numbers."""

    role: str
    name: str
    words: str


class LayerSection(NamedTuple):
    """What the page shows of the layers of the model at a place in the list.

    The legend has a swatch for each kind of error; each row has a name, cells, and whether it is the first that breaks.
    """

    model: int
    narrow_chart: str
    wide_chart: str
    legend: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[str, ...], bool], ...]
    notes: tuple[str, ...]


def blamed_layers(layers: LayerFindings | None) -> list[BlamedLayer]:
    """The first layers that break, those that add most error, and those that hold absolute positions."""
    if layers is None:
        return []
    blamed = []
    for kind, found in layers.breaks.items():
        place = f", between {found.between[0]} and {found.between[1]}" if found.between else ""
        words = f"{found.module}{place}, error {write_size(found.error)}"
        blamed.append(BlamedLayer(BREAK_ROLES[kind], found.name, words))
    for at, jump in enumerate(layers.biggest_jumps(MOST_JUMPS)):
        role = "adds error too" if at else "adds most error"
        blamed.append(BlamedLayer(role, jump.name, f"{jump.kind}, adds {write_size(jump.added or 0.0)}"))
    holds, reads = "holds absolute positions", "reads each cell by its own weights"
    blamed += [BlamedLayer(holds, name, "by its name and shape") for name in layers.absolute_embeddings]
    return blamed + [BlamedLayer(reads, name, "a flattened map") for name in layers.flattened]


def layer_sections(reports: Sequence[AuditReport]) -> list[LayerSection]:
    """A section for each report whose layers were measured."""
    return [
        LayerSection(
            model,
            layer_chart(layers, NARROW),
            layer_chart(layers, WIDE),
            tuple(
                (name, swatch(style))
                for name, style, read in reversed(KINDS)
                if any(read(one) is not None for one in layers.findings)
            ),
            tuple((one.name, _cells(one), one.name == layers.first_break) for one in layers.findings),
            tuple(_notes(layers)),
        )
        for model, report in enumerate(reports)
        if (layers := report.layers) is not None and layers.findings
    ]


def _cells(one: LayerFinding) -> tuple[str, ...]:
    grid = " × ".join(map(str, one.grid)) or "vector"
    if one.prefix_tokens:
        grid += f" + {one.prefix_tokens}"
    stride = " × ".join(f"{step:g}" for step in dict.fromkeys(one.stride)) or "–"
    errors = (one.interior_error, one.border_error, one.aliasing_error, one.error, one.added, one.noise)
    return (one.kind, grid, stride, *("–" if error is None else write_size(error) for error in errors))


def _notes(layers: LayerFindings) -> list[str]:
    notes = [
        f"Measured on {layers.num_images} {'image' if layers.num_images == 1 else 'images'}, steps of up to "
        f"{layers.max_shift:g} pixels{f', mode {layers.movement.mode}' if layers.movement else ''}. A layer breaks "
        f"above {write_size(layers.threshold)} or ten times its noise (grey), whichever is more. "
        "Errors of 0 lie on the lowest line."
    ]
    if layers.class_tokens:
        notes.append(f"Class tokens, which are left out of the comparison: {listed(layers.class_tokens)}.")
    reasons: dict[str, list[str]] = {}
    for name, reason in layers.skipped.items():
        reasons.setdefault(reason, []).append(name)
    words = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
    return notes + [f"Not compared: {words}."] * bool(reasons)


def layer_chart(layers: LayerFindings, width: float) -> str:
    """Draw each kind of error of each layer, the noise, the limit, and where each kind breaks first.

    The width is `NARROW` or `WIDE`; errors are on a logarithmic scale.
    """
    findings = layers.findings
    names = dict.fromkeys(one.name for one in layers.breaks.values())
    breaks = [name for name in names if layers.find(name) is not None]
    across = Scale(0.0, max(1.0, len(findings) - 1.0), LEFT + 8, width - 12)
    up = _upwards(layers, 26.0 + NAME_HEIGHT * len(breaks))
    parts = []
    for tick in up.ticks(6):
        y = up.place(tick)
        words = write_size(tick) if tick >= 0.01 else f"1e{round(math.log10(tick))}".replace("-", "−")
        parts += [rule(LEFT, y, width - 4, y), label(words, LEFT - 6, y + 4, anchor="end")]
    tops = [(across.place(at), up.place(max(one.noise, up.low))) for at, one in enumerate(findings)]
    noise = f"{polygon([(tops[0][0], BOTTOM), *tops, (tops[-1][0], BOTTOM)])}z"
    parts.append(element("path", {"d": noise, "fill": "#dfe3e8", "fill-opacity": 0.8}, title("noise")))
    y = up.place(layers.threshold)
    parts.append(rule(LEFT, y, width - 4, y, SOFT, "5 4"))
    parts.append(edged(label("limit", width - 6, y - 5, anchor="end")))
    places = {one.name: across.place(at) for at, one in reversed(list(enumerate(findings)))}
    parts += [_break(name, places[name], width, 12.0 + NAME_HEIGHT * row) for row, name in enumerate(breaks)]
    parts.append(edged(label("relative error at the worst shift", 2.0, up.end - 12, anchor="start")))
    parts += [_draw_kind(findings, style, read, across, up) for _, style, read in KINDS]
    parts.append(label(f"layers in the order of execution, 1 to {len(findings)}", (LEFT + width) / 2, HEIGHT - 8))
    first = f"The first layer that breaks is {layers.first_break}."
    description = (
        f"Chart of the relative error of {len(findings)} layers in the order of execution. "
        f"{first if layers.first_break else 'No layer breaks within the image.'}"
    )
    return drawing(width, HEIGHT, description, *parts)


def _upwards(layers: LayerFindings, top: float) -> Scale:
    errors = [read(one) for one in layers.findings for *_, read in KINDS] + [one.noise for one in layers.findings]
    known = [max(error, LOWEST) for error in (*errors, layers.threshold) if error is not None and error > 0]
    low, high = min(known, default=LOWEST), min(max(known, default=1.0), HIGHEST)
    return decade_scale(low, high, BOTTOM, top)


def _break(name: str, x: float, width: float, y: float) -> str:
    room = int((width - 16) / 6.9)
    words = name if len(name) <= room else f"…{name[1 - room :]}"
    # The name stays within the drawing, however near to its end the line is.
    half = 3.5 * len(words)
    at = min(max(x, half + 4), width - half - 4)
    return rule(x, y + 5, x, BOTTOM, "#b32413", "2 2") + edged(label(words, at, y, colour=INK, weight=700))


def _draw_kind(
    findings: Sequence[LayerFinding],
    style: LineStyle,
    read: Callable[[LayerFinding], float | None],
    across: Scale,
    up: Scale,
) -> str:
    known = [(at, one, error) for at, one in enumerate(findings) if (error := read(one)) is not None]
    size = min(4.0, max(1.6, 150 / len(findings)))
    places = [(across.place(at), up.place(error)) for at, _, error in known]
    parts = []
    for ((before, *_), start), ((after, *_), end) in itertools.pairwise(zip(known, places, strict=True)):
        if after == before + 1:
            parts.append(styled_line(style, polygon([start, end]), 1.0))
    for (at, one, error), (x, y) in zip(known, places, strict=True):
        parts.append(styled_point(style, x, y, size, title(f"{at + 1}. {one.name} ({one.kind}): {write_size(error)}")))
    return "".join(parts)
