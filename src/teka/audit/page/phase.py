"""The map of a number by the phase of the shift in a model's grid."""

from teka.audit.page.heat_map import HeatMap
from teka.audit.statistics.phase import PhaseTable

NUMBERS = ("accuracy", "agreement", "error")
"""Of `teka.audit.statistics.phase.PHASE_VALUES`, the first that is defined is drawn."""


def phase_map(table: PhaseTable) -> HeatMap | None:
    """The mean over the shifts of each phase, (dy mod stride, dx mod stride).

    Args:
        table: The table.

    Returns:
        The map, or None where there is but one phase or an image has not two axes.
    """
    number = next((name for name in NUMBERS if name in table.values), None)
    if number is None or len(table.phases) < 2 or len(table.stride) != 2:
        return None
    down, across = table.stride
    values = dict(zip(table.phases, (one.value for one in table.values[number]), strict=True))
    return HeatMap(number, values, f"dy mod {down}", f"dx mod {across}", write_phase)


def write_phase(phase: int | float) -> str:
    """A phase as it is written, without a sign.

    Args:
        phase: The phase.
    """
    return f"{phase:g}"
