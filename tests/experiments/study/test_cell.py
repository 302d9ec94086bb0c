import pytest

from teka.experiments.study.cell import Cell, slug
from teka.training import Run


def test_a_cell_is_named_after_its_levels_and_seed():
    cell = Cell({"data": "Fashion-MNIST", "kernel": "elu+1", "position": "content + rotation heads"}, Run(seed=3))
    assert cell.name == "fashion-mnist--elu-1--content-rotation-heads--seed-3"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        pytest.param("positive 4×", "positive-4", id="signs at the end are dropped"),
        pytest.param("../a/b", "a-b", id="no path comes through"),
        pytest.param("0.003", "0.003", id="a number stays"),
    ],
)
def test_words_become_part_of_a_file_name(words, name):
    assert slug(words) == name
