"""What a saved `report.json` says: its table and finding in words, and its page with the curve and examples."""

import io
import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from numpy.typing import NDArray

from teka.audit.page.charts import ShareCurve, draw_curves, encode_png
from teka.audit.page.notation import listed, percent, write_shift, write_step
from teka.audit.page.pages import data_uri, render_page
from teka.audit.page.tables import Table
from teka.errors import require
from teka.files import write_bytes
from teka.training.arrays import Layout, read_arrays
from teka.training.shift_report import AXES, BUILT_IN, WILSON, SeedGroup, ShiftReport, load_report

if TYPE_CHECKING:
    import matplotlib.figure

WIDTH = 100  # columns of a terminal that the table fits into, if its shifts do
FALL = 5.0  # percentage points below the unshifted accuracy from which a model is said to fall
SAMPLED = {
    "polyphase": "with polyphase halvings",
    "polyphase_patch": "with polyphase patches",
    "strided": "with an ordinary stride",
}
DIRECTIONS = {"dx": "shift to the right, dx (pixels)", "dy": "shift downwards, dy (pixels)"}
EXAMPLES: Layout = {
    "images": ("u", ("shifts", "examples", "height", "width")),
    "shifts": ("iu", ("shifts", 2)),
    "labels": ("iu", ("examples",)),
    "model_names": ("U", ("models",)),
    "predictions": ("iu", ("models", "shifts", "examples")),
}
"""Grey values as the models saw them, each shift (dy, dx) in pixels, the correct classes, and those answered."""


def write_report(directory: str | Path) -> tuple[Path, Path]:
    """Write `shift_curve.png` and `report.html` from a folder's `report.json` and, if there, `examples.npz`."""
    directory = Path(directory)
    report = load_report(directory / "report.json")
    path = directory / "examples.npz"
    page = render_html(report, read_arrays(path, EXAMPLES, "that of a finished run") if path.exists() else None)
    written = directory / "shift_curve.png", directory / "report.html"
    write_bytes(written[0], encode_png(draw_shift_curve(report)))
    write_bytes(written[1], page.encode("utf-8"))
    return written


def draw_shift_curve(
    report: ShiftReport, *, layout: Literal["beside", "stacked"] = "beside"
) -> "matplotlib.figure.Figure":
    """Draw accuracy against shift, the mean over seeds of each model, with its interval as a band where it has one."""
    panels: dict[str, list[ShareCurve]] = {}
    for axis, group in itertools.product(report.axes, report.groups):
        found = group.accuracy(axis)
        known = {shift: one for shift, one in found.items() if one.half_width is not None}
        band = {shift: (max(one.lower, 0.0), min(one.upper, 1.0)) for shift, one in known.items()}
        curve = ShareCurve(group.first.name, {shift: one.value for shift, one in found.items()}, band)
        panels.setdefault(DIRECTIONS[axis], []).append(curve)
    return draw_curves(panels, layout=layout)


def render_html(report: ShiftReport, examples: dict[str, NDArray[Any]] | None = None) -> str:
    """One page that needs no other file and no network: finding, curve, table, example images, settings."""
    found = (one for group in report.groups for axis in report.axes for one in group.accuracy(axis).values())
    methods = {one.method for one in found if one.half_width is not None}
    bands = ["95 % interval over seeds, by Student's t"] if methods - {WILSON} else []
    if WILSON in methods:
        bands.append("95 % Wilson interval" + (" (models with one seed)" if bands else ""))
    images = sorted({model.test_images for model in report.models if model.test_images is not None})
    settings = {
        "Command": report.command,
        "Data": report.dataset,
        "Test images": listed([f"{count:,}" for count in images]) if images else None,
        "Shifts": report.mode,
        "Hardware": report.hardware,
        "Date": report.date,
        "Versions": f"teka {report.teka}, PyTorch {report.torch}",
    }
    content = {
        "report": report,
        "finding": report.finding or finding(report),
        "averaged": report.averaged,
        "bands": f"Bands: {listed(bands)}." if bands else "",
        "curve_beside": data_uri(encode_png(draw_shift_curve(report))),
        "curve_stacked": data_uri(encode_png(draw_shift_curve(report, layout="stacked"))),
        "shifts": [write_step(shift) for shift in report.shifts],
        "rows": table_rows(report),
        "note": table_note(report),
        "example_shifts": [write_shift(shift) for shift in examples["shifts"].tolist()] if examples else [],
        "examples": _rows_of_examples(examples) if examples else [],
        "settings": [(name, value) for name, value in settings.items() if value],
        "listed": listed,
    }
    return render_page("teka.training", "shift.html.j2", content)


def _rows_of_examples(examples: dict[str, NDArray[Any]]) -> list[dict[str, Any]]:
    require("PIL", "reports need", "teka[report]")
    from PIL import Image

    rows = []
    for index, label in enumerate(examples["labels"].tolist()):
        pictures = []
        for image, shift in zip(examples["images"][:, index], examples["shifts"].tolist(), strict=True):
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, format="PNG")
            text = f"Example {index + 1}, class {label}, {write_shift(shift)}"
            pictures.append((data_uri(buffer.getvalue()), text))
        named = zip(examples["model_names"].tolist(), examples["predictions"][:, :, index].tolist(), strict=True)
        predictions = [(name, [(answer, answer == label) for answer in answers]) for name, answers in named]
        rows.append({"label": label, "images": pictures, "predictions": predictions})
    return rows


class TableRow(NamedTuple):
    """One model in the table: for each axis the percentage at each shift, and where in them the lowest one stands."""

    name: str
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    lowest: tuple[str, int]
    worst: str
    parameters: str
    seconds: str


def table_rows(report: ShiftReport) -> list[TableRow]:
    """The table's rows, every number as it is printed, the means over seeds."""
    rows = []
    for group in report.groups:
        axes = []
        for axis in report.axes:
            curve = group.accuracy(axis)
            axes.append((axis, tuple(percent(curve[at].value) if at in curve else "–" for at in report.shifts)))
        lowest = group.lowest.axis, report.shifts.index(group.lowest.shift)
        worst, seconds = percent(group.mean("worst_shift_accuracy")), f"{group.mean('seconds'):.0f}"
        rows.append(TableRow(group.first.name, tuple(axes), lowest, worst, f"{group.first.parameters:,}", seconds))
    return rows


def table_note(report: ShiftReport) -> str:
    """What the numbers mean."""
    return (
        f"Accuracy in % at each shift in pixels, {report.averaged}: dx to the right, dy downwards. "
        "Worst shift: share of the test images correct at every shift. Seconds: training."
    )


def plain_table(report: ShiftReport) -> str:
    """The table as aligned text of at most 100 columns, a line for each axis of each model, and what it means."""
    heads = ("model", "", *map(write_step, report.shifts), "worst", "parameters", "seconds")
    rows = []
    for row in table_rows(report):
        axes, cells = zip(*row.axes, strict=True)
        # Four characters at most, so that nine shifts fit.
        along = ("\n".join(values).replace("100.0", "100") for values in zip(*cells, strict=True))
        worst = row.worst.replace("100.0", "100")
        rows.append((row.name, "\n".join(axes), *along, worst, row.parameters, row.seconds))
    text = Table("", heads, tuple(rows)).plain(WIDTH, narrowest=14)
    return f"{text}\n\n{textwrap.fill(table_note(report), WIDTH)}"


def _lowest_points(group: SeedGroup) -> float:
    """Percentage points as they are printed, so that printed differences agree with printed numbers."""
    return float(percent(group.lowest.accuracy))


def _best(groups: Sequence[SeedGroup]) -> SeedGroup:
    return max(groups, key=lambda group: group.lowest.accuracy)


def _description(group: SeedGroup, candidates: Sequence[SeedGroup]) -> str:
    several, position = len(candidates) > 1, group.first.position
    if position == BUILT_IN:
        return f"{group.first.name} (best of {len(candidates)})" if several else group.first.name
    words = "without positions" if position == "none" else f"with {position} positions"
    if group.is_relative:
        words += " at linear cost" if group.is_linear else f" and {group.first.kernel.replace('_', ' ')} attention"
    return f"{words} (best of {len(candidates)}: {group.first.name})" if several else words


def _behaviour(group: SeedGroup) -> str:
    lowest, start, low = group.lowest, group.unshifted, _lowest_points(group)
    if start is None:
        high = max(one.value for axis in AXES for one in group.accuracy(axis).values())
        return f"stays between {low:.1f} % and {percent(high)} %"
    if float(percent(start)) - low >= FALL:
        return f"falls from {percent(start)} % to {low:.1f} % (at {lowest.axis} = {write_step(lowest.shift)})"
    return f"keeps at least {low:.1f} % at every shift"


def _beside_softmax(group: SeedGroup, groups: Sequence[SeedGroup]) -> str:
    """How the lowest accuracy compares with that of the same position under softmax, if that was measured."""
    same = [other for other in groups if other.first.position == group.first.position]
    references = [other for other in same if other.first.kernel == "softmax"]
    if not group.is_relative or group.first.kernel == "softmax" or not references:
        return ""
    reference = _lowest_points(_best(references))
    difference = _lowest_points(group) - reference
    if abs(difference) < 0.05:
        return ", as much as softmax attention at its lowest"
    side = "above" if difference > 0 else "below"
    return f", {abs(difference):.1f} points {side} softmax attention at its lowest ({reference:.1f} %)"


def finding(report: ShiftReport) -> str:
    """A few sentences: how far each kind of model falls when images move, and the linear one beside softmax.

    The kinds are absolute positions (or none) and relative ones (at linear cost, if there are such models), each told
    by the model with the highest lowest accuracy. Beside models with a token a pixel, others have a sentence of theirs.
    """
    sampled = [group for group in report.groups if group.first.sampling is not None]
    groups = [group for group in report.groups if group not in sampled] or sampled
    absolute, without = ([one for one in groups if one.first.position == kind] for kind in ("absolute", "none"))
    relative = [group for group in groups if group.is_relative]
    at_linear_cost = [group for group in relative if group.is_linear]
    kinds = [absolute or without, at_linear_cost or relative or (without if absolute else [])]
    told = [(_best(kind), kind) for kind in kinds if kind] or [(_best(groups), groups)]
    clauses = []
    for group, kind in told:
        description = _description(group, kind)
        subject = f"{description} it" if clauses else f"the model {description}"
        clauses.append(f"{subject} {_behaviour(group)}{_beside_softmax(group, groups)}")
    reach = max(map(abs, report.shifts))
    by = f"up to {reach} {'pixel' if reach == 1 else 'pixels'}"
    text = f"With images of {report.dataset} moved by {by} ({report.averaged}), {'; '.join(clauses)}."
    if len(told) == 2:
        (first, first_kind), (second, _) = told
        lead = _lowest_points(first) - _lowest_points(second)
        if lead >= 0.05:
            better = f"Here the model {_description(first, first_kind)} holds up better"
            text += f" {better}: its lowest accuracy is {lead:.1f} points higher."
    if sampled and groups != sampled:
        words = [SAMPLED.get(one.first.sampling or "", "with patches") for one in sampled]
        clauses = [f"the one {how} {_behaviour(one)}" for how, one in zip(words, sampled, strict=True)]
        text += f" Of models with fewer tokens than pixels, {'; '.join(clauses)}."
    return text
