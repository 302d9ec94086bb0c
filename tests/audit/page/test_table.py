from tests.audit.page.audit_reports import make_metrics, make_report

from teka.audit.movement import Movement
from teka.audit.page.number import NUMBER_MEANINGS, NUMBER_NAMES
from teka.audit.page.table import PAGE_NUMBERS, audit_columns, audit_rows, column_head
from teka.audit.statistics.metrics import NUMBERS


def test_every_number_of_an_audit_has_a_name_and_a_meaning():
    assert set(NUMBER_NAMES) == set(NUMBER_MEANINGS) == set(NUMBERS)


def test_there_is_a_column_for_what_any_mode_has():
    dense = make_report(metrics=(make_metrics(output="dense"),))
    assert audit_columns([dense], PAGE_NUMBERS) == ["mean_error", "maximum_error"]
    assert audit_columns([dense, make_report()], PAGE_NUMBERS) == list(PAGE_NUMBERS)


def test_a_number_that_a_mode_has_not_is_left_blank():
    reports = [make_report(metrics=(make_metrics(output="dense"),)), make_report()]
    dense, logits = audit_rows(reports, ["accuracy", "mean_error"])
    assert dense.cells == (None, ("0.31", "0.28–0.34"))
    assert logits.cells[0] == ("97.0", "95.0–98.5")


def test_rows_are_those_of_every_mode_of_every_model():
    report = make_report(metrics=(make_metrics(), make_metrics(Movement("zero"), skipped=((9, 9),))))
    rows = audit_rows([report, report], [])
    assert [(row.model, row.mode, row.shifts) for row in rows] == [
        (0, "circular", "81"), (0, "zero", "81 of 82"), (1, "circular", "81"), (1, "zero", "81 of 82"),
    ]  # fmt: skip


def test_shares_say_that_they_are_percent():
    assert column_head("consistency") == "consistency (%)"
    assert column_head("mean_error") == "mean error"
