from pathlib import Path
from typing import Any

import pytest

from reproduction.studies import small_models
from reproduction.study.cells import add_cell
from reproduction.study.study import cell_name


def make_result(data: str, candidate: str, rate: float, seed: int) -> dict[str, Any]:
    result = {"data": data, "candidate": candidate, "rate": rate, "seed": seed}
    result["validation_loss"] = (rate - 0.02) ** 2 + seed
    return result if seed == 100 else {**result, "accuracy": 0.9, "gain": {"test": [1.0, 0.0]}}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.jsonl.gz"
    for rate, seed in ((0.01, 0), (0.01, 100), (0.02, 100), (0.04, 100)):
        name = cell_name(("digits", "ε = 0.1", str(rate)), seed)
        add_cell(path, name, make_result("digits", "ε = 0.1", rate, seed))
    return path


def test_nested_results_are_columns(results: Path):
    table = small_models.read_results(results)
    assert table["gain.test"].tolist()[0] == [1.0, 0.0]
    assert table.accuracy.isna().tolist() == [False, True, True, True]


def test_the_best_rate_has_the_smallest_loss_on_the_tuning_seeds(results: Path):
    table = small_models.read_results(results)
    assert small_models.best_rates(table) == [("digits", "ε = 0.1", 0.02)]


def test_only_missing_cells_are_trained(results: Path):
    trained = []

    def train(*cell: Any) -> dict[str, Any]:
        trained.append(cell)
        return make_result(*cell)

    cells = [("digits", "ε = 0.1", 0.01, seed) for seed in (100, 0, 1)]
    table = small_models.train_missing(results, train, 1, cells)
    assert trained == [("digits", "ε = 0.1", 0.01, 1)]
    assert len(table) == 5
    assert table.accuracy.count() == 2
