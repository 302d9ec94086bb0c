import pytest

from reproduction.study import read_study
from reproduction.study.study import MeasureSettings, StabilitySettings, StudyModel, make_file_name
from teka.training import Run


def names(study_models):
    return [study_model.name for study_model in study_models]


def test_study_models_are_the_grid_without_excluded_combinations(tiny_fields, write_study):
    assert names(read_study(write_study(tiny_fields)).models()) == [
        "softmax--none--seed-0",
        "squared-relu--none--seed-0",
        "squared-relu--absolute--seed-0",
        "softmax--none--seed-3",
        "squared-relu--none--seed-3",
        "squared-relu--absolute--seed-3",
    ]


def test_levels_override_the_base(tiny_fields, write_study):
    tiny_fields["factors"]["position"]["absolute"]["dim"] = 16
    study = read_study(write_study(tiny_fields))
    run = study.make_study_model({"kernel": "squared relu", "position": "absolute"}, 3).run
    assert (run.kernel, run.position, run.dim, run.heads, run.seed) == (
        "squared_relu",
        "absolute",
        16,
        2,
        3,
    )


def test_only_selects_study_models(tiny_fields, write_study):
    study_models = read_study(write_study(tiny_fields)).models(
        {"kernel": ["squared relu"], "seed": ["3"]}
    )
    assert names(study_models) == ["squared-relu--none--seed-3", "squared-relu--absolute--seed-3"]


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ({"colour": ["red"]}, "only must be one of .*got 'colour'"),
        ({"kernel": ["elu"]}, "only kernel must be one of .*got 'elu'"),
        ({"kernel": ["softmax"], "position": ["absolute"]}, "not all left out"),
    ],
)
def test_unknown_levels_in_only_are_errors(tiny_fields, write_study, only, message):
    with pytest.raises(ValueError, match=message):
        read_study(write_study(tiny_fields)).models(only)


def test_missing_keys_have_default_values(write_study):
    study = read_study(
        write_study({"name": "least", "factors": {"kernel": {"elu": {"kernel": "elu"}}}})
    )
    assert study.seeds == (0,)
    assert study.measure == MeasureSettings()


def test_fields_next_to_a_recipe_override_it(tiny_fields, write_study):
    tiny_fields["base"].pop("batch_size")
    tiny_fields["base"] |= {"recipe": "horn2021", "learning_rate": 0.25}
    tiny_fields["factors"]["position"]["none"] |= {"recipe": "teka", "dropout": 0.5}
    study = read_study(write_study(tiny_fields))
    absolute = study.make_study_model({"kernel": "squared relu", "position": "absolute"}, 0).run
    assert (absolute.optimizer, absolute.batch_size, absolute.learning_rate) == ("adam", 22, 0.25)
    none = study.make_study_model({"kernel": "squared relu", "position": "none"}, 0).run
    assert (none.optimizer, none.learning_rate, none.dropout, none.dim) == ("adamw", 0.001, 0.5, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "no field 'colour'"),
        ({"factors": [1]}, r"factors must be a dictionary.*got \[1\]"),
        ({"factors": {"kernel": {}}}, "kernel"),
        ({"seeds": 3}, "study.seeds must be a list.*got 3"),
        ({"seeds": ["a"]}, r"seeds\[0\] must be a whole number.*got 'a'"),
        ({"reference": {"kernel": "elu"}}, "reference kernel must be .*got 'elu'"),
        ({"leave_out": [{"colour": ["red"]}]}, "leave_out must be .*got 'colour'"),
        ({"leave_out": [{"kernel": ["softmax", "squared relu"]}]}, "not all left out"),
        ({"measure": {"shifts": [[1]]}}, r"measure.shifts\[0\] must be a list of 2"),
        ({"measure": {"mode": "canvas"}}, "canvas_size must be"),
        ({"measure": {"images": 0}}, "measure.images must be .*got 0"),
        ({"measure": {"weights": "first"}}, "measure.weights must be .*got 'first'"),
        ({"measure": {"image": 3}}, "no field 'image'.*Did you mean 'images'"),
        ({"measure": {"stability": {"crop": {}}}}, "crop_size must be the size of the crop"),
    ],
)
def test_invalid_keys_are_errors(tiny_fields, write_study, change, message):
    with pytest.raises(ValueError, match=message):
        read_study(write_study({**tiny_fields, **change}))


def test_an_invalid_field_of_a_run_names_the_study_model(tiny_fields, write_study):
    tiny_fields["factors"]["kernel"]["softmax"]["kernels"] = "elu"
    with pytest.raises(
        ValueError,
        match=r"study model softmax, none: run key with model='performer' must be .*got 'kernels'",
    ):
        read_study(write_study(tiny_fields))


def test_an_unknown_recipe_is_an_error(tiny_fields, write_study):
    tiny_fields["base"]["recipe"] = "grandmother"
    with pytest.raises(ValueError, match=r"recipe must be one of.*got 'grandmother'"):
        read_study(write_study(tiny_fields))


@pytest.mark.parametrize("content", ["a: [1", "- 1"])
def test_an_invalid_file_is_an_error(tmp_path, content):
    path = tmp_path / "broken.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match="must be a"):
        read_study(path)


def test_levels_with_the_same_file_name_are_errors(tiny_fields, write_study):
    tiny_fields["factors"]["kernel"] |= {"squared-relu": {"kernel": "squared_relu"}}
    with pytest.raises(ValueError, match="levels whose names differ in letters or digits"):
        read_study(write_study(tiny_fields))


def test_study_model_is_named_after_its_levels_and_seed():
    labels = {"data": "Fashion-MNIST", "kernel": "elu+1", "position": "content + rotation heads"}
    assert (
        StudyModel(labels, Run(seed=3)).name
        == "fashion-mnist--elu-1--content-rotation-heads--seed-3"
    )


@pytest.mark.parametrize(
    ("text", "name"), [("positive 4×", "positive-4"), ("../a/b", "a-b"), ("0.003", "0.003")]
)
def test_slug_keeps_letters_digits_and_dots(text, name):
    assert make_file_name(text) == name


def test_the_zero_shift_is_always_measured_first():
    assert MeasureSettings(shifts=((0, 4), (0, 0), (4, 0))).shifts == ((0, 0), (0, 4), (4, 0))
    assert MeasureSettings().shifts == ((0, 0),)


def test_stability_settings_are_loaded(tiny_fields, write_study):
    tiny_fields["measure"]["stability"] = {"fourier": {"shifts": [[0.5, 0]], "images": 3}}
    measure = read_study(write_study(tiny_fields)).measure
    assert measure.stability == {"fourier": StabilitySettings(((0.5, 0.0),), 3)}
