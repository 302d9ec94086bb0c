"""Which module breaks first: within the image, at its edge, between the cells of its grid."""

from collections.abc import Mapping, Sequence

from teka.audit.layers.layer_break import LayerBreak
from teka.audit.layers.measured import Measured
from teka.audit.layers.survey import Stop
from teka.audit.layers.trace import call_name


def first_breaks(
    stops: Sequence[Stop],
    measured: Mapping[int, Measured],
    kinds: Mapping[str, str],
    flattened: Sequence[str],
    threshold: int | float,
) -> dict[str, LayerBreak]:
    """The first break of each kind.

    A tensor of which no cell is out of reach of the edge cannot tell a break from the edge. If nothing has broken at
    the edge before, it counts as a break at the edge where its module declares padding, and within the image elsewhere.
    If it was made of a flattened map it counts as a break within the image in any case. As aliasing it counts if
    nothing has broken at all before. An edge is named only if nothing has broken within the image before.

    A break is that of the module that gives the tensor. If a module gets a broken tensor that no module gave, it
    happened in the own code of the module around it, between two of its parts.

    Args:
        stops: The visits of the survey.
        measured: What was measured of each tensor, by the index of its slot.
        kinds: Class of each module, by name.
        flattened: Modules that read a flattened map.
        threshold: The error below which no layer breaks.
    """
    found: dict[str, LayerBreak] = {}
    before: str | None = None
    for stop in stops:
        numbers = None if stop.slot is None else measured.get(stop.slot)
        if numbers is None or not stop.is_new:
            continue
        limit = numbers.limit(threshold)
        reads_flattened = stop.visit.side == "output" and stop.visit.module in flattened
        within, at_edge = numbers.interior, numbers.border
        if not numbers.has_interior and ("edge" not in found or reads_flattened):
            if stop.pads_edge and stop.visit.side == "output":
                at_edge = numbers.every
            else:
                within = numbers.every
        between_cells = numbers.aliasing if numbers.has_interior or not found else None
        for kind, error in (("interior", within), ("edge", at_edge), ("aliasing", between_cells)):
            # What has broken within is broken at the edge too.
            is_told = kind in found or (kind == "edge" and "interior" in found)
            if not is_told and error is not None and error > limit:
                found[kind] = _blame(stop, kind, numbers, error, limit, kinds, before)
        before = call_name(stop.visit.module, stop.visit.call)
    return found


def _blame(
    stop: Stop,
    kind: str,
    numbers: Measured,
    error: float,
    limit: int | float,
    kinds: Mapping[str, str],
    before: str | None,
) -> LayerBreak:
    visit = stop.visit
    here = call_name(visit.module, visit.call)
    if visit.side == "output":
        return LayerBreak(kind, here, kinds[visit.module], error, limit, numbers.has_interior)
    between = (before or "the images", here)
    # Without a module around it, say because not all were followed, the module that got it has to stand for the place.
    module, call = visit.inside or (visit.module, visit.call)
    return LayerBreak(kind, call_name(module, call), kinds[module], error, limit, numbers.has_interior, between)
