"""Description of the layers that explain the result of an audit."""

from collections.abc import Sequence

from teka.audit.layers.fixes import FIXES
from teka.audit.layers.localize import LayerFindings, is_submodule
from teka.audit.verdict import BREAK_PLACES
from teka.reporting.formatting import format_number

MOST_JUMPS = 3


def explain_layers(layers: LayerFindings | None) -> list[tuple[str, str, str]]:
    """List the layers that explain the result of an audit, such as the first to break equivariance.

    Returns:
        Three texts for each layer: a statement that continues its name, its name, and details (its
        class, its error and a fix).
    """
    if layers is None:
        return []
    rows = []
    for kind, layer in layers.breaks.items():
        place = f", between {layer.between[0]} and {layer.between[1]}" if layer.between else ""
        cause = f", {layer.cause}" if layer.cause else ""
        words = f"{layer.module}{place}{cause}, error {format_number(layer.error)}"
        fixes = [fix for fix in layers.advised if FIXES[fix].kind == kind]
        role = f"is the first layer to break equivariance {BREAK_PLACES[kind]}"
        rows.append((role, layer.name, f"{words}{_fix_command(fixes)}"))
    for layer in layers.undecided[:1]:
        error, noise = format_number(layer.error or 0.0), format_number(layer.noise)
        words = f"{layer.kind}, error {error}, but copies of the same images differ by {noise}"
        rows.append(("may be the first layer to break equivariance", layer.name, words))
    if not layers.breaks:
        return rows
    for index, layer in enumerate(layers.biggest_jumps(MOST_JUMPS)):
        role = "also adds error" if index else "adds the most error"
        fixes = [fix for fix in layers.advised if layer.name in layers.fixable(fix)]
        words = f"{layer.kind}, adds {format_number(layer.added or 0.0)}{_fix_command(fixes)}"
        rows.append((role, layer.name, words))
    for name in layers.absolute_embeddings:
        embeddings = layers.fixable("positions")
        is_fixable = any(each == name or is_submodule(each, name) for each in embeddings)
        command = _fix_command(["positions"] if is_fixable else [])
        words = f"according to its name and shape{command}"
        rows.append(("contains absolute positions", name, words))
    return rows


def _fix_command(fixes: Sequence[str]) -> str:
    """Return a hint that names the command for fixing a layer.

    If no fix is recommended, the result is empty.
    """
    return f"; to fix it: teka fix --fix {','.join(fixes)}" if fixes else ""
