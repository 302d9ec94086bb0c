from pathlib import Path

import numpy as np
import pytest

from reproduction.studies.small_models import FIRST_TUNING_SEED
from reproduction.study import read_results_table, read_study, write_study_page
from reproduction.study.results import load_saved_results
from reproduction.study.run_study import check_saved_options
from reproduction.study.summary_page import (
    add_accuracy_differences,
    format_mean_percentage,
    format_number,
)
from tests.reproduction.conftest import failed_result, saved_result

REFERENCE = {"kernel": "softmax"}


def grid(data=("mnist", "digits"), kernels=("softmax", "relu"), seeds=(0, 1, 2)):
    return {
        (name, kernel, seed): saved_result(0.9 - 0.05 * kernels.index(kernel) + 0.01 * seed)
        for name in data
        for kernel in kernels
        for seed in seeds
    }


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ([0.95, 0.96, 0.97], "96.0 ± 2.5"),
        ([0.95, None], "95.0"),
        ([0.99, 0.9901], "99.00 ± 0.06"),
        ([], "–"),
    ],
)
def test_format_mean(shares, text):
    assert format_mean_percentage(shares) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (1.2345, "1.23"), (36, "36.0"), (1234.5, "1,234")]
)
def test_significant_numbers_have_no_exponent(number, text):
    assert format_number(number) == text


def test_signed_means_have_a_sign():
    values = ([0.01], [-0.01], [-1e-9])
    assert [format_mean_percentage(value, signed=True) for value in values] == [
        "+1.0",
        "−1.0",
        "+0.0",
    ]


def differences(save_study, ours, reference):
    results = {("mnist", "relu", 0): ours, ("mnist", "softmax", 0): reference}
    table = add_accuracy_differences(read_results_table(*save_study(results)), REFERENCE)
    assert table.loc["mnist", "softmax", 0][["at_equal_steps", "at_equal_time"]].isna().all()
    return table.loc["mnist", "relu", 0]


def test_equal_steps_compare_test_accuracies(save_study):
    row = differences(save_study, saved_result(0.7), saved_result(0.9))
    assert row.at_equal_steps == pytest.approx(-0.2)


def test_equal_steps_compare_learning_curves_if_one_run_is_longer(save_study):
    row = differences(save_study, saved_result(0.8, steps=200), saved_result(0.9))
    assert row.at_equal_steps == pytest.approx(0.4 - 0.9)


def test_equal_time_interpolates_the_learning_curve_of_a_slower_run(save_study):
    row = differences(save_study, saved_result(0.8, process_seconds=16.0), saved_result(0.9))
    assert row.at_equal_time == pytest.approx(0.5 - 0.9)


def test_equal_time_takes_the_last_accuracy_of_a_faster_run(save_study):
    row = differences(save_study, saved_result(0.8, process_seconds=5.0), saved_result(0.9))
    assert row.at_equal_time == pytest.approx(0.8 - 0.9)


def test_equal_time_has_no_value_before_the_first_point_of_a_curve(save_study):
    row = differences(save_study, saved_result(0.8, process_seconds=50.0), saved_result(0.9))
    assert np.isnan(row.at_equal_time)


def test_results_without_learning_curves_are_compared_by_their_accuracy(save_study):
    results = [{**saved_result(accuracy), "learning_curve": None} for accuracy in (0.8, 0.9)]
    row = differences(save_study, *results)
    assert row.at_equal_steps == pytest.approx(-0.1)
    assert np.isnan(row.at_equal_time)


@pytest.mark.parametrize("missing", [failed_result(), None], ids=["failed", "unfinished"])
def test_models_without_a_finished_reference_have_no_differences(save_study, missing):
    results = {("mnist", "relu", 0): saved_result(), ("mnist", "softmax", 0): missing}
    table = add_accuracy_differences(read_results_table(*save_study(results)), REFERENCE)
    assert table[["at_equal_steps", "at_equal_time"]].isna().to_numpy().all()


def test_write_study_writes_tables(save_study):
    study, folder = save_study(grid(), reference=REFERENCE)
    text = write_study_page(study, folder)
    assert {path.name for path in folder.iterdir() if path.is_file()} == {
        "summary.md",
        "cells.jsonl.gz",
    }
    page = (folder / "summary.md").read_text(encoding="utf-8")
    assert page.strip() in text
    row = "| mnist | relu | 3 | 86.0 ± 2.5 | −5.0 ± 0.0 | −5.0 ± 0.0 | 21,001 | 5.10 | 10.0 |"
    assert row in page
    assert "| trained models | 12 of 12 |\n| diverged models | 0 |" in page


def test_the_last_of_several_factors_makes_columns(save_study):
    names = ("data", "kernel", "position")
    results = {
        ("mnist", kernel, position, 0): saved_result()
        for kernel in ("softmax", "relu")
        for position in ("none", "$rotary$", "_hidden")
    }
    study, folder = save_study(results, names=names)
    text = write_study_page(study, folder)
    assert "| data | kernel | none | $rotary$ | _hidden |" in text


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_studies_with_failed_models_are_written(save_study, accuracy):
    results = {
        ("mnist", "relu", 0): saved_result(accuracy),
        ("mnist", "softmax", 0): failed_result(),
    }
    study, folder = save_study(results, reference=REFERENCE)
    page = write_study_page(study, folder)
    assert "| trained models | 1 of 2 |\n| diverged models | 1 |" in page


def test_a_study_of_one_factor_without_any_finished_model_is_written(save_study):
    study, folder = save_study({("a", 0): failed_result(), ("b", 0): None}, names=("variant",))
    page = write_study_page(study, folder)
    assert "| trained models | 0 of 2 |\n| diverged models | 1 |" in page


def test_committed_results_of_every_study_load():
    folders = sorted(Path(__file__).parents[3].glob("reproduction/*/*/cells.jsonl.gz"))
    assert len(folders) == 15
    for path in folders:
        study = read_study(path.parent.with_suffix(".yaml"))
        results = read_results_table(study, path.parent)
        # Scripts do not measure models with a tuning seed on test images.
        seeds = results.index.get_level_values("seed")
        is_tuning = (seeds >= FIRST_TUNING_SEED) & bool(study.script)
        assert results.accuracy[~is_tuning].between(0, 1).all()
        assert results.accuracy[is_tuning].isna().all()
        assert results.accuracy.count() >= 9
        first = study.models({"seed": [str(study.seeds[0])]})[0]
        assert first.name in load_saved_results(path)
        check_saved_options(load_saved_results(path), first, path.parent)
