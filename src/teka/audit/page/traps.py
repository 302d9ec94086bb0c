"""Traps in the order in which they should be read."""

from collections.abc import Sequence

from teka.audit.caveats import Caveat

SEVERITY_NAMES = {
    "invalidates": "These numbers do not hold",
    "limits": "These numbers hold for less",
    "note": "Worth knowing",
}
"""What each of `teka.audit.caveats.SEVERITIES` means to a reader, the gravest first."""


def sorted_traps(traps: Sequence[Caveat]) -> list[Caveat]:
    """The traps, the gravest first.

    Args:
        traps: The traps in any order.
    """
    return sorted(traps, key=lambda trap: list(SEVERITY_NAMES).index(trap.severity))
