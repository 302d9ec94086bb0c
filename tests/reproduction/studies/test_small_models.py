import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from reproduction.studies import small_models


def make_result(data: str, candidate: str, rate: float, seed: int) -> dict[str, Any]:
    result = {"data": data, "candidate": candidate, "rate": rate, "seed": seed}
    result["validation_loss"] = (rate - 0.02) ** 2 + seed
    return result if seed == 100 else {**result, "accuracy": 0.9, "gain": {"test": [1.0, 0.0]}}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for rate in (0.01, 0.02, 0.04):
            print(json.dumps(make_result("digits", "ε = 0.1", rate, 100)), file=file)
        print(json.dumps(make_result("digits", "ε = 0.1", 0.01, 0)), file=file)
    return path


def test_nested_results_are_columns(results: Path):
    table = small_models.read_results(results)
    assert table["gain.test"].tolist()[-1] == [1.0, 0.0]
    assert table.accuracy.isna().tolist() == [True, True, True, False]


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
    assert table.accuracy.tolist()[-1] == 0.9
