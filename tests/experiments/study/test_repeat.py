import shutil

import pytest

from teka.experiments.study import read_study, repeat_cell
from teka.files import read_json, write_json

pytestmark = pytest.mark.xdist_group("study")
NAME = "squared-relu--none--seed-3"


def test_training_a_cell_again_reproduces_its_numbers(finished, tiny_study):
    repetition = repeat_cell(read_study(tiny_study), finished, NAME)
    assert repetition.is_same
    assert repetition.stored["accuracy"] == read_json(finished / "cells" / f"{NAME}.json")["accuracy"]


def test_a_number_that_is_not_the_cell_s_is_seen(finished, tiny_study, tmp_path):
    folder = tmp_path / "changed"
    shutil.copytree(finished, folder)
    path = folder / "cells" / f"{NAME}.json"
    write_json(path, {**read_json(path), "accuracy": 0.123})
    repetition = repeat_cell(read_study(tiny_study), folder, NAME)
    assert not repetition.is_same
    assert repetition.stored["accuracy"] == 0.123
    assert read_json(path)["accuracy"] == 0.123  # the file stays as it was


def test_a_cell_that_is_not_there_is_an_error_that_offers_the_nearest(finished, tiny_study):
    with pytest.raises(ValueError, match=f"did you mean '{NAME}'"):
        repeat_cell(read_study(tiny_study), finished, "squared-relu--none--seed-4")
