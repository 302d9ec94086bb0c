import contextlib
import gzip

import pytest

from reproduction.study import read_results_table
from reproduction.study.results import load_saved_results, save_model_results
from teka.files import write_json
from tests.reproduction.conftest import failed_result, saved_result

RESULTS = {
    ("mnist", "softmax", 0): saved_result(0.9),
    ("mnist", "relu", 0): saved_result(0.8),
    ("mnist", "relu", 1): failed_result(),
}


def test_results_table_has_a_row_per_model_in_the_order_of_the_study(save_study):
    results = read_results_table(*save_study(RESULTS))
    assert results.index.names == ["data", "kernel", "seed"]
    assert list(results.index) == list(RESULTS)
    assert results.accuracy.tolist()[:2] == [0.9, 0.8]
    assert results.unshifted_accuracy.tolist()[:2] == [0.9, 0.8]
    assert results.failed.tolist()[2] == "the loss is nan at step 17"
    assert results.loc["mnist", "relu", 1][["accuracy", "steps", "process_seconds"]].isna().all()


def test_a_folder_without_results_is_an_error(save_study, tmp_path):
    study, _ = save_study(RESULTS)
    with pytest.raises(
        ValueError, match="folder must be the folder of a study, with saved results"
    ):
        read_results_table(study, tmp_path)


def test_damaged_results_file_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "cells.jsonl.gz"
    save_model_results(path, "mnist--relu", saved_result(0.9))
    complete = path.read_bytes()
    damaged = [complete[:size] for size in range(1, len(complete), 7)]
    damaged += [gzip.compress(b"[]"), gzip.compress(b"{}"), gzip.compress(b"\xff")]
    for position in range(len(complete)):
        content = bytearray(complete)
        content[position] ^= 0x55
        damaged.append(bytes(content))
    for content in damaged:
        path.write_bytes(content)
        # Some bytes of the header, such as the modification time, have no effect.
        with contextlib.suppress(ValueError):
            assert load_saved_results(path).keys() == {"mnist--relu"}
    with pytest.raises(ValueError, match=r"cells.jsonl.gz must be the results file of a study"):
        load_saved_results(path)


def test_cpu_seconds_are_steps_times_seconds_per_step(save_study):
    study, folder = save_study(RESULTS)
    models = [{"labels": {"data": "mnist", "kernel": "softmax"}, "seconds": 0.02}]
    write_json(folder / "step_seconds.json", {"models": models})
    results = read_results_table(study, folder)
    assert results.process_seconds.iloc[0] == 2.0
    curve = results.learning_curve.iloc[0]
    assert [point["process_seconds"] for point in curve] == [1.0, 2.0]
    assert results.process_seconds.iloc[1:].isna().all()  # these models were not timed


def test_the_same_results_give_the_same_bytes_in_any_order(tmp_path):
    paths = [tmp_path / "first.jsonl.gz", tmp_path / "second.jsonl.gz"]
    for path, names in zip(paths, ("abc", "cab"), strict=True):
        for name in names:
            save_model_results(path, name, saved_result(0.9))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert load_saved_results(paths[0]) == dict.fromkeys("abc", saved_result(0.9))


def test_a_result_replaces_the_result_with_its_name(tmp_path):
    path = tmp_path / "cells.jsonl.gz"
    assert load_saved_results(path) == {}
    for accuracy in (0.9, 0.75):
        save_model_results(path, "a", {"accuracy": accuracy})
    assert load_saved_results(path) == {"a": {"accuracy": 0.75}}
