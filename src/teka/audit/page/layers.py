"""The section of an audit page about the layers."""

from collections.abc import Sequence

from teka.audit.layers.fixes import FIXES
from teka.audit.layers.localize import LayerFindings
from teka.reporting.formatting import write_size

BREAK_ROLES = {
    "interior": "breaks equivariance first, inside the image",
    "edge": "breaks equivariance first, at the edge of the image",
    "aliasing": "breaks equivariance first, at shifts that are not a multiple of its stride",
}
MOST_JUMPS = 3
COLUMNS = (
    "class",
    "grid",
    "stride",
    "error inside",
    "error at the edge",
    "error off the stride",
    "error of all cells",
    "added error",
    "noise",
)


def explaining_layers(layers: LayerFindings | None) -> list[tuple[str, str, str]]:
    """Return the role, the name and the numbers of each layer that explains the result."""
    if layers is None:
        return []
    explained = []
    for kind, found in layers.breaks.items():
        place = f", between {found.between[0]} and {found.between[1]}" if found.between else ""
        cause = f", {found.cause}" if found.cause else ""
        words = f"{found.module}{place}{cause}, error {write_size(found.error)}"
        mended = [fix for fix in layers.advised if FIXES[fix].kind == kind]
        explained.append((BREAK_ROLES[kind], found.name, f"{words}{_command(mended)}"))
    for one in layers.undecided[:1]:
        error, noise = write_size(one.error or 0.0), write_size(one.noise)
        words = f"{one.kind}, error {error}, and two copies of the same images differ by {noise}"
        explained.append(("and the layers after it cannot be decided", one.name, words))
    for at, jump in enumerate(layers.biggest_jumps(MOST_JUMPS)):
        role = "also adds error" if at else "adds the most error"
        mended = [fix for fix in layers.advised if jump.name in layers.mendable(fix)]
        explained.append(
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
        explained.append(
            (
                "contains absolute positions",
                name,
                f"according to its name and shape{_command(mended)}",
            )
        )
    return explained + [
        ("has different weights for each cell", name, "reads a flattened map")
        for name in layers.flattened
    ]


def _command(fixes: Sequence[str]) -> str:
    """Return the command that fixes a layer, or an empty text."""
    return f"; teka fix --fix {','.join(fixes)}" if fixes else ""


def layer_rows(layers: LayerFindings) -> list[tuple[str, tuple[str, ...], bool]]:
    """Return the name, the cells of `COLUMNS`, and True for the first layer that breaks."""
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
