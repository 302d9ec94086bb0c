from teka.audit.page.traps import SEVERITY_NAMES, sorted_traps
from teka.audit.traps.trap import SEVERITIES, Trap


def test_the_gravest_come_first_and_equals_keep_their_order():
    traps = [Trap("a", "note", ""), Trap("b", "limits", ""), Trap("c", "invalidates", ""), Trap("d", "limits", "")]
    assert [trap.name for trap in sorted_traps(traps)] == ["c", "b", "d", "a"]


def test_every_severity_has_a_name():
    assert tuple(SEVERITY_NAMES) == SEVERITIES
