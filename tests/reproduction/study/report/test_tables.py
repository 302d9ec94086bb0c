import re

import pytest

from reproduction.study.report.tables import (
    accuracy_tables,
    comparison_tables,
    over_seeds,
    shift_tables,
)

REFERENCE = {"kernel": "softmax"}


def test_the_matrix_holds_means_and_intervals_in_percent(study_of, study_cell):
    values = {"softmax": (0.95, 0.95, 0.95), "squared relu": (0.96, 0.97, 0.98)}
    cells = [
        study_cell(kernel=kernel, position=position, seed=seed, accuracy=value)
        for kernel, accuracies in values.items()
        for position in ("rotation", "none")
        for seed, value in enumerate(accuracies)
    ]
    (table,) = accuracy_tables(study_of(*cells))
    assert table.heads == ("kernel", "rotation", "none")
    # 97 ± t s/√3 with s = 1 and t = 4.303.
    assert table.rows == (
        ("squared relu", "97.0 ± 2.5", "97.0 ± 2.5"),
        ("softmax", "95.0 ± 0.0", "95.0 ± 0.0"),
    )


@pytest.mark.parametrize(
    ("shares", "signed", "text"),
    [
        ((0.9952, 0.9956, 0.9954), False, "99.54 ± 0.05"),
        ((-0.0002, 0.0002, -0.0001), True, "+0.00 ± 0.05"),
        ((0.9, 0.9, 0.9), True, "+90.0 ± 0.0"),
    ],
)
def test_a_narrow_interval_has_two_decimals(shares, signed, text):
    assert over_seeds(shares, signed=signed) == text


def test_failed_cells_are_counted_and_missing_ones_are_dashes(study_of, study_cell, failed_cell):
    cells = [failed_cell(kernel="taylor 2", seed=seed) for seed in range(3)]
    cells += [
        failed_cell(kernel="softmax", seed=0),
        *(study_cell(seed=seed, accuracy=0.9) for seed in (1, 2)),
    ]
    cells += [study_cell(position="none", seed=0, accuracy=0.5)]
    (table,) = accuracy_tables(study_of(*cells))
    assert table.rows == (
        ("softmax", "90.0 ± 0.0\ndiverged (1 of 3)", "50.0"),
        ("taylor 2", "diverged (3 of 3)", "–"),
    )


def test_a_single_factor_has_no_matrix(study_of, study_cell):
    assert accuracy_tables(study_of(study_cell(labels={"data": "mnist", "variant": "one"}))) == []


def test_the_long_table_is_sorted_and_compares_with_the_reference(study_of, study_cells):
    study = study_of(*study_cells())
    for table in comparison_tables(study, REFERENCE):
        accuracies = [float(row[2].split()[0]) for row in table.rows]
        assert accuracies == sorted(accuracies, reverse=True)
        by_name = {row[0]: row for row in table.rows}
        assert by_name["softmax × none"][3:5] == ("reference", "reference")
        assert re.fullmatch(r"[+−]\d+\.\d ± \d+\.\d", by_name["taylor 2 × none"][3])
        assert by_name["taylor 2 × none"][4].endswith("*")


def test_without_a_reference_there_are_no_differences(study_of, study_cells):
    heads = {
        head for table in comparison_tables(study_of(*study_cells()), {}) for head in table.heads
    }
    assert not any(head.startswith("at equal") for head in heads)


def test_shifts_and_errors_have_their_columns(study_of, study_cell):
    (table,) = shift_tables(
        study_of(study_cell(position="absolute", accuracy_by_shift=[0.9, 0.5, 0.6, 0.4]))
    )
    (row,) = table.rows
    assert row[0] == "softmax × absolute"
    assert row[1] == "90.0"
    assert row[4:] == ("3.1e-01", "2.3e-07")
