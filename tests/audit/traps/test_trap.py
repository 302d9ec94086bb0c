import pytest

from teka.audit.traps import SEVERITIES, Trap


@pytest.mark.parametrize("severity", SEVERITIES)
def test_a_trap_comes_back_from_its_dictionary(severity: str):
    trap = Trap("resize", severity, "one pixel is two")
    assert Trap.from_dict(trap.to_dict()) == trap


def test_an_unknown_severity_is_refused():
    with pytest.raises(ValueError, match=r"severity is 'limit', expected one of .*; did you mean 'limits'"):
        Trap("resize", "limit", "one pixel is two")
