"""The section of an audit page about the layers."""

from collections.abc import Sequence

from teka.audit.layers.fixes import FIXES
from teka.audit.layers.localize import LayerFindings, is_inside
from teka.audit.page.metric_formatting import MISSING
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


def explain_layers(layers: LayerFindings | None) -> list[tuple[str, str, str]]:
    """Return the role, the name and the numbers of each layer that explains the result."""
    if layers is None:
        return []
    rows = []
    for kind, layer in layers.breaks.items():
        place = f", between {layer.between[0]} and {layer.between[1]}" if layer.between else ""
        cause = f", {layer.cause}" if layer.cause else ""
        words = f"{layer.module}{place}{cause}, error {write_size(layer.error)}"
        fixes = [fix for fix in layers.advised if FIXES[fix].kind == kind]
        rows.append((BREAK_ROLES[kind], layer.name, f"{words}{_command(fixes)}"))
    for layer in layers.undecided[:1]:
        error, noise = write_size(layer.error or 0.0), write_size(layer.noise)
        words = f"{layer.kind}, error {error}, and two copies of the same images differ by {noise}"
        rows.append(("and the layers after it cannot be decided", layer.name, words))
    if not layers.breaks:
        return rows
    for index, layer in enumerate(layers.biggest_jumps(MOST_JUMPS)):
        role = "also adds error" if index else "adds the most error"
        fixes = [fix for fix in layers.advised if layer.name in layers.fixable(fix)]
        words = f"{layer.kind}, adds {write_size(layer.added or 0.0)}{_command(fixes)}"
        rows.append((role, layer.name, words))
    for name in layers.absolute_embeddings:
        embeddings = layers.fixable("positions")
        is_fixable = any(each == name or is_inside(each, name) for each in embeddings)
        command = _command(["positions"] if is_fixable else [])
        words = f"according to its name and shape{command}"
        rows.append(("contains absolute positions", name, words))
    return rows


def _command(fixes: Sequence[str]) -> str:
    """Return the command that fixes a layer, or an empty text."""
    return f"; teka fix --fix {','.join(fixes)}" if fixes else ""


def layer_rows(layers: LayerFindings) -> list[tuple[str, tuple[str, ...], bool]]:
    """Return the name, the cells of `COLUMNS`, and True for the first layer that breaks."""
    rows = []
    for layer in layers.findings:
        grid = " × ".join(map(str, layer.grid)) or "vector"
        if layer.prefix_tokens:
            grid += f" + {layer.prefix_tokens}"
        stride = " × ".join(f"{step:g}" for step in dict.fromkeys(layer.stride)) or MISSING
        errors = (
            layer.interior_error,
            layer.border_error,
            layer.aliasing_error,
            layer.error,
            layer.added,
            layer.noise,
        )
        numbers = (MISSING if error is None else write_size(error) for error in errors)
        row = (layer.kind, grid, stride, *numbers)
        rows.append((layer.name, row, layer.name == layers.first_break))
    return rows
