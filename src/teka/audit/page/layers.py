"""Layers: which are to blame, in words, and the error of each in the order of execution, drawn and in numbers."""

import math
from collections.abc import Callable, Sequence
from operator import attrgetter

from teka.audit.layers.blame import LayerFinding, LayerFindings
from teka.audit.layers.fixes import FIXES
from teka.reporting import svg
from teka.reporting.formatting import write_size
from teka.reporting.style import INK, SOFT, LineStyle
from teka.reporting.tables import csv_text

NARROW, WIDE = 360.0, 860.0  # widths of the drawing for a phone and for a page
HEIGHT, LEFT, BOTTOM = 280.0, 48.0, 246.0
NAME_HEIGHT = 16.0  # room for the name of a layer that breaks, above the chart
LOWEST = 1e-9  # errors below it lie on the lowest line
BREAK_ROLES = {
    "interior": "first to break within the image",
    "edge": "first to feel the edge of the image",
    "aliasing": "first to break between the cells of its grid",
}
MOST_JUMPS = 3
COLUMNS = (
    "kind",
    "grid",
    "stride",
    "within",
    "edge",
    "between cells",
    "all cells",
    "added",
    "noise",
)
Read = Callable[[LayerFinding], float | None]
# Each kind of error with how it is drawn; the last lies on top.
KINDS: tuple[tuple[str, LineStyle, Read], ...] = (
    (
        "all cells, where none is out of reach",
        LineStyle(INK, "D"),
        lambda one: one.error if one.interior_error is None else None,
    ),
    ("at the edge", LineStyle("#0072B2", "s", (3, 2)), attrgetter("border_error")),
    ("between cells (aliasing)", LineStyle("#009E73", "^", (1, 1.4)), attrgetter("aliasing_error")),
    ("within the image", LineStyle("#D55E00", "o"), attrgetter("interior_error")),
)


def blamed_layers(layers: LayerFindings | None) -> list[tuple[str, str, str]]:
    """What each layer is to blame for, its name, and the numbers: breaks, added error, absolute positions."""
    if layers is None:
        return []
    blamed = []
    for kind, found in layers.breaks.items():
        place = f", between {found.between[0]} and {found.between[1]}" if found.between else ""
        words = f"{found.module}{place}, error {write_size(found.error)}"
        mended = [fix for fix in layers.advised if FIXES[fix].kind == kind]
        blamed.append((BREAK_ROLES[kind], found.name, f"{words}{_command(mended)}"))
    for one in layers.undecided[:1]:
        error, noise = write_size(one.error or 0.0), write_size(one.noise)
        words = f"{one.kind}, error {error}, and two copies of the same images differ by {noise}"
        blamed.append(("cannot be decided from here on", one.name, words))
    for at, jump in enumerate(layers.biggest_jumps(MOST_JUMPS)):
        role = "adds error too" if at else "adds most error"
        mended = [fix for fix in layers.advised if jump.name in layers.mendable(fix)]
        blamed.append(
            (
                role,
                jump.name,
                f"{jump.kind}, adds {write_size(jump.added or 0.0)}{_command(mended)}",
            )
        )
    placed = layers.mendable("positions")
    for name in layers.absolute_embeddings:
        mended = (
            ["positions"]
            if any(one == name or one.startswith(f"{name}.") for one in placed)
            else []
        )
        blamed.append(
            ("holds absolute positions", name, f"by its name and shape{_command(mended)}")
        )
    return blamed + [
        ("reads each cell by its own weights", name, "a flattened map") for name in layers.flattened
    ]


def _command(fixes: Sequence[str]) -> str:
    """What mends a layer, to stand after what it is to blame for."""
    return f"; teka fix --fix {','.join(fixes)}" if fixes else ""


def layer_legend(layers: LayerFindings) -> list[tuple[str, str]]:
    """The kinds of error that are drawn of the layers, with their swatches."""
    drawn = [
        (name, style)
        for name, style, read in KINDS
        if any(read(one) is not None for one in layers.findings)
    ]
    return [(name, svg.swatch(style)) for name, style in reversed(drawn)]


def layer_numbers(layers: LayerFindings) -> str:
    """Every error that is drawn, as comma-separated values."""
    rows = (
        [one.name, one.kind, *(read(one) for *_, read in KINDS), one.noise]
        for one in layers.findings
    )
    return csv_text(("layer", "kind", *(name for name, *_ in KINDS), "noise"), rows)


def layer_rows(layers: LayerFindings) -> list[tuple[str, tuple[str, ...], bool]]:
    """For each layer its name, what stands in `COLUMNS`, and whether it is the first that breaks."""
    rows = []
    for one in layers.findings:
        grid = " × ".join(map(str, one.grid)) or "vector"
        if one.prefix_tokens:
            grid += f" + {one.prefix_tokens}"
        stride = " × ".join(f"{step:g}" for step in dict.fromkeys(one.stride)) or "–"
        errors = (
            one.interior_error,
            one.border_error,
            one.aliasing_error,
            one.error,
            one.added,
            one.noise,
        )
        cells = (
            one.kind,
            grid,
            stride,
            *("–" if error is None else write_size(error) for error in errors),
        )
        rows.append((one.name, cells, one.name == layers.first_break))
    return rows


def layer_chart(layers: LayerFindings, width: float) -> str:
    """Draw each layer's errors on a logarithmic scale, the noise, the limit, and where each kind breaks first."""
    findings = layers.findings
    names = dict.fromkeys(one.name for one in layers.breaks.values())
    breaks = [name for name in names if layers.find(name) is not None]
    across = svg.Scale(0.0, max(1.0, len(findings) - 1.0), LEFT + 8, width - 12)
    errors = [read(one) for one in findings for *_, read in KINDS] + [one.noise for one in findings]
    known = [
        max(error, LOWEST)
        for error in (*errors, layers.threshold)
        if error is not None and error > 0
    ]
    low, high = min(known, default=LOWEST), max(known, default=1.0)
    up = svg.decade_scale(low, high, BOTTOM, 26.0 + NAME_HEIGHT * len(breaks))
    parts, labels = [], []
    for tick in up.ticks(6):
        y = up.place(tick)
        words = (
            write_size(tick) if tick >= 0.01 else f"1e{round(math.log10(tick))}".replace("-", "−")
        )
        parts.append(svg.rule(LEFT, y, width - 4, y))
        labels.append(svg.label(words, LEFT - 6, y + 4, anchor="end"))
    tops = [(across.place(at), up.place(max(one.noise, up.low))) for at, one in enumerate(findings)]
    noise = f"{svg.polygon([(tops[0][0], BOTTOM), *tops, (tops[-1][0], BOTTOM)])}z"
    parts.append(
        svg.element(
            "path", {"d": noise, "fill": "#dfe3e8", "fill-opacity": 0.8}, svg.title("noise")
        )
    )
    y = up.place(layers.threshold)
    parts.append(svg.rule(LEFT, y, width - 4, y, SOFT, "5 4"))
    parts.append(svg.edged(svg.label("limit", width - 6, y - 5, anchor="end")))
    places = {one.name: across.place(at) for at, one in reversed(list(enumerate(findings)))}
    room = int((width - 16) / 6.9)
    for row, name in enumerate(breaks):
        words = name if len(name) <= room else f"…{name[1 - room :]}"
        x, y, half = places[name], 12.0 + NAME_HEIGHT * row, 3.5 * len(words)
        # The name stays within the drawing, however near to its end the line is.
        at = min(max(x, half + 4), width - half - 4)
        parts.append(svg.rule(x, y + 5, x, BOTTOM, "#b32413", "2 2"))
        parts.append(svg.edged(svg.label(words, at, y, colour=INK, weight=700)))
    parts.append(
        svg.edged(svg.label("relative error at the worst shift", 2.0, up.end - 12, anchor="start"))
    )
    size = min(4.0, max(1.6, 150 / len(findings)))
    for name, style, read in KINDS:
        path, points = "", []
        for at, one in enumerate(findings):
            if (error := read(one)) is None:
                continue
            x, y = across.place(at), up.place(error)
            # A line joins neighbours alone.
            path += f"{'L' if at and read(findings[at - 1]) is not None else 'M'}{x:.1f} {y:.1f}"
            points.append((x, y, f"{at + 1}. {one.name} ({one.kind}): {write_size(error)}"))
        if points:
            parts.append(
                svg.line(
                    name, svg.styled_line(style, path, 1.0), svg.styled_points(style, points, size)
                )
            )
    parts.append(svg.ticks("left", *labels))
    parts.append(
        svg.label(
            f"layers in the order of execution, 1 to {len(findings)}",
            (LEFT + width) / 2,
            HEIGHT - 8,
        )
    )
    first = layers.first_break
    words = (
        f"The first layer that breaks is {first}." if first else "No layer breaks within the image."
    )
    if layers.undecided and not first:
        words = f"Whether {layers.undecided[0].name} breaks cannot be decided."
    order = f"Chart of the relative error of {len(findings)} layers in the order of execution."
    return svg.drawing(width, HEIGHT, f"{order} {words}", *parts)
