import dataclasses

import pytest
from tests.audit.page.audit_reports import make_phases

from teka.audit.page.phase import NUMBERS, phase_map
from teka.audit.statistics.phase import PHASE_VALUES


def test_every_phase_has_its_cell():
    found = phase_map(make_phases(3))
    assert found is not None
    assert found.rows == found.columns == [0, 1, 2]
    assert found.values[0, 0] == 0.95
    assert found.values[2, 1] == pytest.approx(0.45)
    assert (found.down, found.across) == ("dy mod 3", "dx mod 3")
    assert [head for head, _ in found.table()] == ["0", "1", "2"]


def test_what_has_labels_is_shown_by_accuracy_first():
    table = make_phases()
    both = dataclasses.replace(table, values={"error": table.values["accuracy"], **table.values})
    for phases, number in ((both, "accuracy"), (make_phases(number="error"), "error")):
        found = phase_map(phases)
        assert found is not None
        assert found.number == number
    assert set(NUMBERS) == set(PHASE_VALUES)


def test_a_single_phase_has_no_map():
    assert phase_map(make_phases(1)) is None
