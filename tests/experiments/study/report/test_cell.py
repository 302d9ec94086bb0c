import json
import re

import pytest

from teka.experiments.study.report.cell import FailedCell, read_cell

REQUIRED = (
    "labels", "seed", "run", "parameters", "backend", "forward_flops", "training_flops", "steps", "process_seconds",
    "learning_curve", "test_images", "accuracy", "shifts", "shifted_images", "accuracy_by_shift", "minimum_accuracy",
    "worst_shift_accuracy", "teka", "torch", "hardware", "date",
)  # fmt: skip


@pytest.fixture
def read(tmp_path):
    def read(content):
        path = tmp_path / "cell.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return read_cell(path)

    return read


def test_a_finished_cell_is_read(read, study_cell):
    cell = read(study_cell("mnist", "softmax", "absolute", seed=2))
    assert cell.labels == {"data": "mnist", "kernel": "softmax", "position": "absolute"}
    assert (cell.seed, cell.batch_size, cell.steps, cell.backend) == (2, 64, 625, "dense")
    assert list(cell.accuracy_by_shift) == [(0, 0), (0, 3), (-3, 0), (5, -2)]
    assert cell.unshifted_accuracy == cell.accuracy
    assert cell.learning_curve.accuracy[-1] == cell.accuracy
    assert cell.learning_curve.process_seconds[-1] == pytest.approx(cell.process_seconds)


def test_a_cell_that_diverged_needs_no_measured_fields(read, failed_cell):
    cell = read(failed_cell("mnist", "taylor 2", seed=1))
    assert isinstance(cell, FailedCell)
    assert (cell.seed, cell.message) == (1, "the loss is nan at step 17")


def test_errors_that_were_not_measured_are_none(read, study_cell):
    cell = read(study_cell(equivariance_error=None, noise_floor=None))
    assert cell.equivariance_error is None
    assert cell.noise_floor is None


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(read, study_cell, key):
    content = study_cell()
    del content[key]
    with pytest.raises(ValueError, match=rf"cell\.json: {key} is missing") as caught:
        read(content)
    assert "\n" not in str(caught.value)


POINT = {"step": 5, "process_seconds": 1.0, "accuracy": 0.5, "loss": 1.0}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("labels", {}, "the level of one factor or more"),
        ("labels", {"data": 7}, "a text"),
        ("run", {"batch_size": -1}, "a whole number"),
        ("accuracy", 95.3, "an accuracy from 0 to 1"),
        ("process_seconds", -1.0, "a finite number"),
        ("learning_curve", [], "a list of one object or more"),
        ("learning_curve", [POINT, POINT], "steps that increase"),
        ("learning_curve", [POINT, {**POINT, "step": 7, "process_seconds": 0.5}], "process_seconds that never fall"),
        ("shifts", [[0, 0.5]], "a list of shifts"),
        ("shifts", [[0, 0]], "a list of 1, one for each shift"),
        ("accuracy_by_shift", [0.5, 0.5, 0.5, 2.0], "an accuracy from 0 to 1"),
    ],
)
def test_a_wrong_value_is_named(read, study_cell, key, value, expected):
    with pytest.raises(ValueError, match=rf"cell\.json: .*{re.escape(expected)}"):
        read({**study_cell(), key: value})
