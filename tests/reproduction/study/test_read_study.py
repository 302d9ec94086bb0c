import pytest

from reproduction.study import Measure, Tune, read_study


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
            {"factors": [1]}, r"factors must be a mapping.*got \[1\]", id="factors that are a list"
        ),
        pytest.param({"factors": {}}, "factors must be one factor or more.*got {}", id="no factor"),
        pytest.param(
            {"factors": {"kernel": {}}},
            "factors.kernel must be one level.*got {}",
            id="a factor without levels",
        ),
        pytest.param(
            {"factors": {"kernel": {"a": {"kernels": "elu"}}}, "leave_out": [], "reference": {}},
            r"cell of kernel 'a' is no run: run key must be .*got 'kernels'",
            id="a level with an unknown field",
        ),
        pytest.param(
            {"seeds": 3}, "study.seeds must be a list.*got 3", id="seeds that are a number"
        ),
        pytest.param(
            {"seeds": ["a"]},
            r"seeds\[0\] must be a whole number.*got 'a'",
            id=r"a seed that is a word",
        ),
        pytest.param(
            {"seeds": [1, 1]},
            r"seeds must be one seed or more, each once.*got \[1, 1\]",
            id="a seed twice",
        ),
        pytest.param(
            {"reference": {"kernel": "elu"}},
            r"reference level of kernel must be .*got 'elu'",
            id="an unknown reference",
        ),
        pytest.param(
            {"leave_out": [{"colour": "red"}]},
            r"leave_out factor must be .*got 'colour'",
            id="an unknown factor left out",
        ),
        pytest.param(
            {"leave_out": [{"kernel": ["softmax", "squared relu"]}]},
            "combinations that leave",
            id="nothing left",
        ),
        pytest.param(
            {"measure": {"shifts": [[1]]}},
            r"measure.shifts\[0\] must be a list of 2.*got \[1\]",
            id="half a shift",
        ),
        pytest.param(
            {"measure": {"mode": "canvas"}},
            r"measure.mode must be .*got 'canvas'",
            id="a mode that asks for a canvas",
        ),
        pytest.param({"measure": {"images": 0}}, r"measure.images must be .*got 0", id="no images"),
        pytest.param(
            {"measure": {"weights": "first"}},
            r"measure.weights must be .*got 'first'",
            id="unknown weights",
        ),
        pytest.param(
            {"measure": {"classes": [-1]}},
            "measure.classes\\[0\\] must be .*got -1",
            id="a negative class",
        ),
        pytest.param(
            {"measure": {"image": 3}},
            r"study.measure must be no field 'image'.*Did you mean 'images'",
            id="an unknown key of measure",
        ),
        pytest.param(
            {"tune": {"field": "learning_rate"}},
            r"study.tune.values is missing",
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
            r"tune.field must be .*got 'rate'",
            id="an unknown field to tune",
        ),
        pytest.param(
            {"tune": {"field": "learning_rate", "values": [1], "per": ["kernel"], "at": {}}},
            "tune.at must be a level of every factor.*got {}",
            id="tuning nowhere",
        ),
    ],
)
def test_a_wrong_file_is_an_error_that_says_what_is_wrong(tiny_fields, write, change, message):
    with pytest.raises(ValueError, match=message):
        read_study(write({**tiny_fields, **change}))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="a YAML file"):
        read_study(tmp_path / "none.yaml")


def test_a_file_that_is_no_yaml_is_an_error(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("a: [1", encoding="utf-8")
    with pytest.raises(ValueError, match="a YAML file"):
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
    with pytest.raises(ValueError, match=r"recipe must be one of.*got 'grandmother'"):
        read_study(write(tiny_fields))
