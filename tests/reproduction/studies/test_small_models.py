from pathlib import Path
from typing import Any

import pytest

from reproduction.studies import bounded_rotary
from reproduction.studies.small_models import best_levels
from reproduction.study import Study
from reproduction.study.cells import CELLS, add_cell, load_cells

STUDY = Study(
    "tuned",
    {
        "data": {"digits": {}},
        "candidate": {"ε = 0.1": {}},
        "rate": {rate: {"learning_rate": float(rate)} for rate in ("0.01", "0.02", "0.04")},
    },
    seeds=(100, 0),
)


def train_cell(cell: Any, folder: Path, **options: Any) -> dict[str, Any]:
    """Return a result whose loss is smallest at the rate 0.02, and an accuracy after tuning."""
    loss = (cell.run.learning_rate - 0.02) ** 2 + (cell.run.seed == 0)
    result = {"seed": cell.run.seed, "validation_loss": loss}
    return result if cell.run.seed == 100 else {**result, "accuracy": 0.9}


def test_the_best_rate_has_the_smallest_loss_on_the_tuning_seeds(tmp_path: Path):
    for cell in STUDY.cells():
        add_cell(tmp_path / CELLS, cell.name, train_cell(cell, tmp_path))
    levels = {"data": ["digits"], "candidate": ["ε = 0.1"], "rate": ["0.02"]}
    assert best_levels(STUDY, tmp_path) == [levels]


@pytest.mark.parametrize(
    ("rates", "trained"),
    [
        pytest.param(["0.01", "0.02"], {"0.01", "0.02", "0.04"}, id="the largest rate is tried"),
        pytest.param(["0.02", "0.01"], {"0.01", "0.02"}, id="the largest rate is not needed"),
    ],
)
def test_a_study_trains_the_tuning_seeds_and_then_the_best_rate(
    rates: list[str], trained: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    changes = {"STUDY": STUDY, "RESULTS": tmp_path, "RATES": rates, "LARGEST_RATE": "0.04"}
    for name, value in {**changes, "train_cell": train_cell}.items():
        monkeypatch.setattr(bounded_rotary, name, value)
    bounded_rotary.main()
    names = {f"digits--ε-0.1--{rate}--seed-100" for rate in trained}
    assert load_cells(tmp_path / CELLS).keys() == {*names, "digits--ε-0.1--0.02--seed-0"}
