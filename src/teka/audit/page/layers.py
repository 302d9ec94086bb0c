"""Which layers are to blame, in words, and what the page shows of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from teka.audit.layers.findings import LayerFinding, LayerFindings
from teka.audit.page.layer_chart import NARROW, WIDE, kinds_drawn, layer_chart
from teka.audit.page.notation import listed, write_size
from teka.audit.report import AuditReport

BREAK_ROLES = {
    "interior": "first to break within the image",
    "edge": "first to feel the edge of the image",
    "aliasing": "first to break between the cells of its grid",
}
MOST_JUMPS = 3
COLUMNS = ("kind", "grid", "stride", "within", "edge", "between cells", "all cells", "added", "noise")


@dataclass(frozen=True)
class BlamedLayer:
    """A layer and what it is to blame for.

    Args:
        role: What it does.
        name: Its name.
        words: With which numbers.
    """

    role: str
    name: str
    words: str


@dataclass(frozen=True)
class LayerSection:
    """What the page shows of the layers of one model.

    Args:
        model: Place of the model's report in the list.
        narrow_chart: The drawing for a phone.
        wide_chart: The drawing for a page.
        legend: Name and swatch of each kind of error drawn.
        columns: Heads of the table's columns.
        rows: Of each layer its name, its cells, and whether it is the first that breaks.
        notes: What else is to be said.
    """

    model: int
    narrow_chart: str
    wide_chart: str
    legend: tuple[tuple[str, str], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...], bool], ...]
    notes: tuple[str, ...]


def blamed_layers(layers: LayerFindings | None) -> list[BlamedLayer]:
    """The first layers that break, those that add most error, and those that hold absolute positions.

    Args:
        layers: The layers, or None.
    """
    if layers is None:
        return []
    blamed = [
        BlamedLayer(BREAK_ROLES[kind], found.name, _break_words(found.module, found.error, found.between))
        for kind, found in layers.breaks.items()
    ]
    for at, jump in enumerate(layers.biggest_jumps(MOST_JUMPS)):
        role = "adds error too" if at else "adds most error"
        blamed.append(BlamedLayer(role, jump.name, f"{jump.kind}, adds {write_size(jump.added or 0.0)}"))
    blamed += [
        BlamedLayer("holds absolute positions", name, "by its name and shape") for name in layers.absolute_embeddings
    ]
    blamed += [BlamedLayer("reads each cell by its own weights", name, "a flattened map") for name in layers.flattened]
    return blamed


def layer_sections(reports: Sequence[AuditReport]) -> list[LayerSection]:
    """A section for each report whose layers were measured.

    Args:
        reports: The reports.
    """
    return [
        LayerSection(
            model,
            layer_chart(report.layers, NARROW),
            layer_chart(report.layers, WIDE),
            tuple(kinds_drawn(report.layers)),
            COLUMNS,
            tuple((one.name, _cells(one), one.name == report.layers.first_break) for one in report.layers.findings),
            tuple(_notes(report.layers)),
        )
        for model, report in enumerate(reports)
        if report.layers is not None and report.layers.findings
    ]


def _break_words(module: str, error: float, between: tuple[str, str] | None) -> str:
    place = f", between {between[0]} and {between[1]}" if between else ""
    return f"{module}{place}, error {write_size(error)}"


def _cells(one: LayerFinding) -> tuple[str, ...]:
    def written(error: float | None) -> str:
        return "–" if error is None else write_size(error)

    grid = " × ".join(map(str, one.grid)) or "vector"
    if one.prefix_tokens:
        grid += f" + {one.prefix_tokens}"
    stride = " × ".join(f"{step:g}" for step in dict.fromkeys(one.stride)) or "–"
    errors = (one.interior_error, one.border_error, one.aliasing_error, one.error, one.added, one.noise)
    return (one.kind, grid, stride, *map(written, errors))


def _notes(layers: LayerFindings) -> list[str]:
    notes = [
        f"Measured on {layers.num_images} {'image' if layers.num_images == 1 else 'images'}, steps of up to "
        f"{layers.max_shift:g} pixels{f', mode {layers.movement.mode}' if layers.movement else ''}. A layer breaks "
        f"above {write_size(layers.threshold)} or ten times its noise (grey), whichever is more. "
        "Errors of 0 lie on the lowest line."
    ]
    if layers.class_tokens:
        notes.append(f"Class tokens, which are left out of the comparison: {listed(layers.class_tokens)}.")
    if layers.skipped:
        reasons: dict[str, list[str]] = {}
        for name, reason in layers.skipped.items():
            reasons.setdefault(reason, []).append(name)
        words = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
        notes.append(f"Not compared: {words}.")
    return notes
