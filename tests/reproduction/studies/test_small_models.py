from pathlib import Path
from typing import Any

import pytest

from reproduction.studies.small_models import find_best_learning_rates, run_tuned_study
from reproduction.study import Study
from reproduction.study.results import RESULTS_FILE, load_saved_results, save_model_results


def make_study(*rates: str) -> Study:
    factors = {
        "data": {"digits": {}},
        "candidate": {"ε = 0.1": {}},
        "rate": {rate: {"learning_rate": float(rate)} for rate in rates},
    }
    return Study("tuned", factors, seeds=(100, 0))


def train_study_model(study_model: Any, folder: Path, **options: Any) -> dict[str, Any]:
    """Return a result whose loss is smallest at the rate 0.02, and an accuracy after tuning."""
    loss = (study_model.run.learning_rate - 0.02) ** 2 + (study_model.run.seed == 0)
    result = {"seed": study_model.run.seed, "validation_loss": loss}
    return result if study_model.run.seed == 100 else {**result, "accuracy": 0.9}


def test_the_best_rate_has_the_smallest_loss_on_the_tuning_seeds(tmp_path: Path):
    study = make_study("0.01", "0.02", "0.04")
    for study_model in study.models():
        result = train_study_model(study_model, tmp_path)
        save_model_results(tmp_path / RESULTS_FILE, study_model.name, result)
    levels = {"data": ["digits"], "candidate": ["ε = 0.1"], "rate": ["0.02"]}
    assert find_best_learning_rates(study, tmp_path) == [levels]


@pytest.mark.parametrize(
    ("rates", "last_rate", "trained"),
    [
        pytest.param(["0.01", "0.02"], "0.04", ["0.01", "0.02", "0.04"], id="the last is tried"),
        pytest.param(["0.02", "0.01"], "0.04", ["0.01", "0.02"], id="the last is not needed"),
        pytest.param(["0.01", "0.02"], "", ["0.01", "0.02"], id="no last rate"),
    ],
)
def test_a_study_trains_the_tuning_seeds_and_then_the_best_rate(
    rates: list[str], last_rate: str, trained: list[str], tmp_path: Path
):
    study = make_study(*rates, *([last_rate] if last_rate else []))
    run_tuned_study(study, tmp_path, train_study_model, last_rate=last_rate)
    names = {f"digits--ε-0.1--{rate}--seed-100" for rate in trained}
    saved = load_saved_results(tmp_path / RESULTS_FILE)
    assert saved.keys() == {*names, "digits--ε-0.1--0.02--seed-0"}
