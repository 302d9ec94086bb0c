from teka.audit.caveats import SEVERITIES, Caveat
from teka.audit.page.traps import SEVERITY_NAMES, sorted_traps


def test_the_gravest_come_first_and_equals_keep_their_order():
    traps = [
        Caveat("a", "note", ""),
        Caveat("b", "limits", ""),
        Caveat("c", "invalidates", ""),
        Caveat("d", "limits", ""),
    ]
    assert [trap.name for trap in sorted_traps(traps)] == ["c", "b", "d", "a"]


def test_every_severity_has_a_name():
    assert tuple(SEVERITY_NAMES) == SEVERITIES
