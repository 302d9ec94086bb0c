import pytest

from teka.experiments.study import Measure, Tune, read_study


def test_a_file_is_read_with_its_levels_in_order(tiny_fields, write):
    study = read_study(write(tiny_fields))
    assert list(study.factors) == ["kernel", "position"]
    assert list(study.factors["kernel"]) == ["softmax", "squared relu"]
    assert study.seeds == (0, 3)
    assert study.reference == {"kernel": "softmax"}


def test_the_shift_by_nothing_is_always_measured_and_comes_first(tiny_fields, write):
    assert read_study(write(tiny_fields)).measure.shifts == ((0, 0), (0, 3), (-2, 1))


def test_what_is_left_out_of_the_file_has_its_default(write):
    study = read_study(write({"name": "least", "factors": {"kernel": {"elu": {"kernel": "elu"}}}}))
    assert study.seeds == (0,)
    assert study.measure == Measure()
    assert study.tune is None


def test_a_field_to_tune_is_read(tiny_fields, write):
    tune = {
        "field": "learning_rate",
        "values": [0.1, 0.2],
        "per": ["kernel"],
        "at": {"position": "none"},
        "seed": 7,
    }
    study = read_study(write({**tiny_fields, "tune": tune}))
    assert study.tune == Tune("learning_rate", (0.1, 0.2), ("kernel",), ({"position": "none"},), 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"colour": 1}, "no field 'colour'", id="an unknown key"),
        pytest.param(
            {"factors": [1]}, "factors is \\[1\\], expected a mapping", id="factors that are a list"
        ),
        pytest.param({"factors": {}}, "factors is {}, expected one factor or more", id="no factor"),
        pytest.param(
            {"factors": {"kernel": {}}},
            "factors.kernel is {}, expected one level",
            id="a factor without levels",
        ),
        pytest.param(
            {"factors": {"kernel": {"a": {"kernels": "elu"}}}, "leave_out": [], "reference": {}},
            "cell of kernel 'a' is no run: run key is 'kernels'",
            id="a level with an unknown field",
        ),
        pytest.param(
            {"seeds": 3}, "study.seeds is 3, expected a list", id="seeds that are a number"
        ),
        pytest.param(
            {"seeds": ["a"]},
            "seeds\\[0\\] is 'a', expected a whole number",
            id="a seed that is a word",
        ),
        pytest.param(
            {"seeds": [1, 1]},
            "seeds is \\[1, 1\\], expected one seed or more, each once",
            id="a seed twice",
        ),
        pytest.param(
            {"reference": {"kernel": "elu"}},
            "reference level of kernel is 'elu'",
            id="an unknown reference",
        ),
        pytest.param(
            {"leave_out": [{"colour": "red"}]},
            "leave_out factor is 'colour'",
            id="an unknown factor left out",
        ),
        pytest.param(
            {"leave_out": [{"kernel": ["softmax", "squared relu"]}]},
            "expected combinations that leave",
            id="nothing left",
        ),
        pytest.param(
            {"measure": {"shifts": [[1]]}},
            "measure.shifts\\[0\\] is \\[1\\], expected a list of 2",
            id="half a shift",
        ),
        pytest.param(
            {"measure": {"mode": "canvas"}},
            "measure.mode is 'canvas'",
            id="a mode that asks for a canvas",
        ),
        pytest.param({"measure": {"images": 0}}, "measure.images is 0", id="no images"),
        pytest.param(
            {"measure": {"weights": "first"}}, "measure.weights is 'first'", id="unknown weights"
        ),
        pytest.param(
            {"measure": {"classes": [-1]}}, "measure.classes\\[0\\] is -1", id="a negative class"
        ),
        pytest.param(
            {"measure": {"image": 3}},
            "study.measure is .* no field 'image'.*did you mean 'images'",
            id="an unknown key of measure",
        ),
        pytest.param(
            {"tune": {"field": "learning_rate"}},
            "study.tune.values is missing",
            id="tune without values",
        ),
        pytest.param(
            {
                "tune": {
                    "field": "rate",
                    "values": [1],
                    "per": ["kernel"],
                    "at": {"position": "none"},
                }
            },
            "tune.field is 'rate'",
            id="an unknown field to tune",
        ),
        pytest.param(
            {"tune": {"field": "learning_rate", "values": [1], "per": ["kernel"], "at": {}}},
            "tune.at is {}, expected a level of every factor",
            id="tuning nowhere",
        ),
    ],
)
def test_a_wrong_file_is_an_error_that_says_what_is_wrong(tiny_fields, write, change, message):
    with pytest.raises(ValueError, match=message):
        read_study(write({**tiny_fields, **change}))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="expected a YAML file"):
        read_study(tmp_path / "none.yaml")


def test_a_file_that_is_no_yaml_is_an_error(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("a: [1", encoding="utf-8")
    with pytest.raises(ValueError, match="expected a YAML file"):
        read_study(path)


def test_a_recipe_stands_for_its_fields_and_those_beside_it_go_before(tiny_fields, write):
    tiny_fields["base"].pop("batch_size")
    tiny_fields["base"] |= {"recipe": "horn2021", "learning_rate": 0.25}
    tiny_fields["factors"]["position"]["none"] |= {"recipe": "teka", "dropout": 0.5}
    study = read_study(write(tiny_fields))
    absolute = study.make_cell({"kernel": "squared relu", "position": "absolute"}, 0).run
    assert (absolute.optimizer, absolute.batch_size, absolute.learning_rate) == ("adam", 22, 0.25)
    none = study.make_cell({"kernel": "squared relu", "position": "none"}, 0).run
    assert (none.optimizer, none.learning_rate, none.dropout, none.dim) == ("adamw", 0.001, 0.5, 8)


def test_an_unknown_recipe_is_an_error(tiny_fields, write):
    tiny_fields["base"]["recipe"] = "grandmother"
    with pytest.raises(ValueError, match="recipe is 'grandmother', expected one of"):
        read_study(write(tiny_fields))
