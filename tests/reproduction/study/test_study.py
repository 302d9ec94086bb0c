import pytest

from reproduction.study import read_study
from reproduction.study.study import Cell, Measure, Stability, slug
from teka.training import Run


def names(cells):
    return [cell.name for cell in cells]


def test_the_grid_is_the_product_without_what_is_left_out(tiny_fields, write):
    combinations = list(read_study(write(tiny_fields)).combinations())
    assert combinations == [
        {"kernel": "softmax", "position": "none"},
        {"kernel": "squared relu", "position": "none"},
        {"kernel": "squared relu", "position": "absolute"},
    ]


def test_cells_come_seed_by_seed(tiny_fields, write):
    study = read_study(write(tiny_fields))
    cells = study.cells(study.places({}), {})
    assert names(cells)[:4] == [
        "softmax--none--seed-0",
        "squared-relu--none--seed-0",
        "squared-relu--absolute--seed-0",
        "softmax--none--seed-3",
    ]
    assert len(set(names(cells))) == len(cells) == 6


def test_a_cell_has_the_base_and_its_levels_fields(tiny_fields, write):
    tiny_fields["factors"]["position"]["absolute"]["dim"] = 16
    study = read_study(write(tiny_fields))
    run = study.make_cell({"kernel": "squared relu", "position": "absolute"}, 3).run
    assert (run.kernel, run.position, run.dim, run.heads, run.seed) == (
        "squared_relu",
        "absolute",
        16,
        2,
        3,
    )


def test_places_can_be_asked_for_alone(tiny_fields, write):
    study = read_study(write(tiny_fields))
    places = study.places({"kernel": ["squared relu"], "seed": ["3"]})
    assert [(labels["position"], seed) for labels, seed in places] == [("none", 3), ("absolute", 3)]


@pytest.mark.parametrize(
    ("only", "message"),
    [
        pytest.param({"colour": ["red"]}, r"only must be .*got 'colour'", id="an unknown factor"),
        pytest.param(
            {"kernel": ["elu"]}, r"only kernel must be .*got 'elu'", id="an unknown level"
        ),
        pytest.param({"seed": ["9"]}, r"only seed must be .*got '9'", id="an unknown seed"),
        pytest.param(
            {"kernel": ["softmax"], "position": ["absolute"]}, "levels of some cell", id="no cell"
        ),
    ],
)
def test_asking_for_cells_that_are_not_there_is_an_error(tiny_fields, write, only, message):
    with pytest.raises(ValueError, match=message):
        read_study(write(tiny_fields)).places(only)


@pytest.fixture
def tuned(tiny_fields, write):
    tune = {
        "field": "learning_rate",
        "values": [0.1, 0.2],
        "per": ["kernel"],
        "at": {"position": "none"},
        "seed": 7,
    }
    return read_study(write({**tiny_fields, "tune": tune}))


def test_tuning_tries_every_value_at_the_one_place_for_every_level(tuned):
    groups = tuned.tuning_cells(tuned.places({}))
    assert {
        levels: [cell.run.learning_rate for cell in cells] for levels, cells in groups.items()
    } == {("softmax",): [0.1, 0.2], ("squared relu",): [0.1, 0.2]}
    assert names(groups[("softmax",)]) == [
        "softmax--none--0.1--seed-7",
        "softmax--none--0.2--seed-7",
    ]
    assert {cell.run.position for cells in groups.values() for cell in cells} == {"none"}


def test_tuning_at_several_places_tries_every_value_at_each_that_is_not_left_out(
    tiny_fields, write
):
    at = [{"position": "none"}, {"position": "absolute"}]
    tune = {"field": "learning_rate", "values": [0.1, 0.2], "per": ["kernel"], "at": at}
    study = read_study(write({**tiny_fields, "tune": tune}))
    groups = study.tuning_cells(study.places({}))
    assert names(groups[("softmax",)]) == [
        "softmax--none--0.1--seed-0",
        "softmax--none--0.2--seed-0",
    ]
    assert names(groups[("squared relu",)])[1:3] == [
        "squared-relu--none--0.2--seed-0",
        "squared-relu--absolute--0.1--seed-0",
    ]


def test_only_what_is_asked_for_is_tuned(tuned):
    assert list(tuned.tuning_cells(tuned.places({"kernel": ["softmax"]}))) == [("softmax",)]


def test_cells_take_the_tuned_value_of_their_level(tuned):
    cells = tuned.cells(tuned.places({}), {("softmax",): 0.2, ("squared relu",): 0.1})
    assert {(cell.run.kernel, cell.run.learning_rate) for cell in cells} == {
        ("softmax", 0.2),
        ("squared_relu", 0.1),
    }


def test_a_level_that_is_left_out_where_it_would_be_tuned_is_an_error(tiny_fields, write):
    tune = {
        "field": "learning_rate",
        "values": [0.1],
        "per": ["kernel"],
        "at": {"position": "absolute"},
    }
    study = read_study(write({**tiny_fields, "tune": tune}))
    places = study.places({})
    with pytest.raises(ValueError, match="left out for kernel 'softmax'"):
        study.cells(places, dict.fromkeys(study.tuning_cells(places), 0.1))


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (
            ["a b", "a-b"],
            "factors.kernel must be a name that differs from 'a b' in letters or digits.*got 'a-b'",
        ),
        (["../.."], "a name with a letter or a digit"),
        (["A", "a"], "differs from 'A'"),
        (["a" * 200], "180 bytes"),
    ],
)
def test_levels_whose_files_would_not_stay_apart_are_refused(tiny_fields, write, levels, message):
    tiny_fields["factors"]["kernel"] = {level: {"kernel": "relu"} for level in levels}
    tiny_fields["leave_out"], tiny_fields["reference"] = [], {}
    with pytest.raises(ValueError, match=message):
        read_study(write(tiny_fields))


def test_a_cell_is_named_after_its_levels_and_seed():
    cell = Cell(
        {"data": "Fashion-MNIST", "kernel": "elu+1", "position": "content + rotation heads"},
        Run(seed=3),
    )
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


def test_the_zero_shift_is_the_first_of_those_measured():
    assert Measure(shifts=((0, 4), (0, 0), (4, 0))).shifts == ((0, 0), (0, 4), (4, 0))
    assert Measure(shifts=()).shifts == ((0, 0),)


@pytest.mark.parametrize(
    ("mode", "asked", "message"),
    [
        ("crop", {}, "crop_size must be the size of the crop.*got None"),
        (
            "circular",
            {"shifts": ((0.5, 0.0),)},
            r"measure.stability must be whole pixels.*got \(0.5, 0.0\)",
        ),
    ],
)
def test_a_stability_that_cannot_be_measured_is_an_error(mode, asked, message):
    with pytest.raises(ValueError, match=message):
        Measure(stability={mode: Stability(**asked)})
