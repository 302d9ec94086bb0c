import json
import re

import pytest

from teka.training.report.load import load_report


@pytest.fixture
def load(tmp_path):
    def load(content):
        path = tmp_path / "report.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return load_report(path)

    return load


def test_every_key_is_read(load, content, model):
    interval = {"dx": {"-2": [0.25, 0.5], "5": [0.5, 1]}, "dy": {}}
    accuracy = {"dx": {"-2": 0.375, "5": 1}, "dy": {}}
    further = {
        "accuracy_by_shift": accuracy,
        "interval_by_shift": interval,
        "minimum_accuracy": 0.3,
        "test_images": 360,
    }
    report = load(
        content(model(**further), hardware="two cores", date="2021-02-15", mode="canvas", finding="It moves.")
    )
    (result,) = report.models
    assert (report.dataset, report.command, report.teka, report.torch) == (
        "digits",
        "teka demo --out runs/demo",
        "0.1.0",
        "2.13.0",
    )
    assert (report.hardware, report.date, report.mode, report.finding) == (
        "two cores",
        "2021-02-15",
        "canvas",
        "It moves.",
    )
    assert (result.name, result.position, result.kernel, result.backend) == (
        "rotation",
        "rotation",
        "squared_relu",
        "toeplitz",
    )
    assert (result.parameters, result.seed, result.epochs, result.seconds, result.test_images) == (
        20513,
        0,
        7,
        41.3,
        360,
    )
    assert result.accuracy_by_shift == {"dx": {-2: 0.375, 5: 1.0}, "dy": {}}
    assert result.interval_by_shift == {"dx": {-2: (0.25, 0.5), 5: (0.5, 1.0)}, "dy": {}}
    assert (result.worst_shift_accuracy, result.minimum_accuracy) == (0.97, 0.3)


def test_the_lowest_accuracy_is_found_where_it_is_not_saved(load, content, model):
    assert load(content(model(fall=0.5))).models[0].minimum_accuracy == 0.48


def test_further_keys_are_left_alone(load, content, model):
    load(content(model(flops=7), weather="fine", hardware=None))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "report.json"))):
        load_report(tmp_path / "report.json")


@pytest.mark.parametrize("text", ["", "{", "\x00", '{"dataset": "digits",}'])
def test_what_is_not_json_is_named(load, text):
    with pytest.raises(ValueError, match=r"report\.json is not JSON"):
        load(text)


def test_what_is_not_text_is_named(tmp_path):
    (tmp_path / "report.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"report\.json is not JSON"):
        load_report(tmp_path / "report.json")


@pytest.mark.parametrize("value", ["[]", "7", "null"])
def test_what_is_not_an_object_is_named(load, value):
    with pytest.raises(ValueError, match=r"report\.json holds .*, expected a JSON object"):
        load(value)


@pytest.mark.parametrize("key", ["dataset", "command", "teka", "torch", "models"])
def test_a_missing_key_is_named(load, content, key):
    broken = content()
    del broken[key]
    with pytest.raises(ValueError, match=rf"report\.json: {key} is missing"):
        load(broken)


@pytest.mark.parametrize(
    "key",
    [
        "name",
        "position",
        "kernel",
        "backend",
        "parameters",
        "seed",
        "epochs",
        "seconds",
        "accuracy_by_shift",
        "worst_shift_accuracy",
    ],
)
def test_a_missing_key_of_a_model_is_named(load, content, absolute, model, key):
    broken = model()
    del broken[key]
    with pytest.raises(ValueError, match=rf"report\.json: models\[1\]\.{key} is missing"):
        load(content(absolute(), broken))


@pytest.mark.parametrize("axis", ["dx", "dy"])
def test_a_missing_axis_is_named(load, content, model, axis):
    broken = model()
    del broken["accuracy_by_shift"][axis]
    with pytest.raises(ValueError, match=rf"models\[0\]\.accuracy_by_shift\.{axis} is missing"):
        load(content(broken))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("models", []),
        ("models", {}),
        ("models", [7]),
        ("dataset", ""),
        ("dataset", 7),
        ("hardware", ["two", "cores"]),
    ],
)
def test_a_wrong_value_is_named(load, content, key, value):
    with pytest.raises(ValueError, match=rf"report\.json: {key}.* is .*, expected"):
        load(content(**{key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", " "),
        ("parameters", 1.5),
        ("parameters", True),
        ("seed", -1),
        ("epochs", "7"),
        ("seconds", float("inf")),
        ("seconds", float("nan")),
        ("worst_shift_accuracy", 1.0001),
        ("worst_shift_accuracy", -0.1),
        ("worst_shift_accuracy", float("nan")),
        ("worst_shift_accuracy", True),
        ("minimum_accuracy", 98.3),
        ("test_images", 0.5),
        ("accuracy_by_shift", {"dx": {}, "dy": {}}),
    ],
)
def test_a_wrong_value_of_a_model_is_named(load, content, model, key, value):
    with pytest.raises(ValueError, match=rf"report\.json: models\[0\]\.{key} is .*, expected"):
        load(content(model(**{key: value})))


@pytest.mark.parametrize("value", [98.3, -0.01, "0.98", None, float("nan"), True])
def test_an_accuracy_outside_0_to_1_is_named(load, content, model, value):
    broken = model()
    broken["accuracy_by_shift"]["dy"]["-2"] = value
    with pytest.raises(
        ValueError, match=r"models\[0\]\.accuracy_by_shift\.dy\.-2 is .*, expected an accuracy from 0 to 1"
    ):
        load(content(broken))


@pytest.mark.parametrize("shift", ["+2", "02", "1.5", "", "-", "-0", "left", "²"])
def test_a_key_that_is_not_a_shift_is_named(load, content, model, shift):
    broken = model()
    broken["accuracy_by_shift"]["dx"][shift] = 0.5
    with pytest.raises(ValueError, match=rf"accuracy_by_shift\.dx\.{re.escape(shift)} is .*, expected a shift"):
        load(content(broken))


@pytest.mark.parametrize("pair", [[0.5], [0.6, 0.5], [0.5, 1.1], 0.5, ["0", "1"]])
def test_a_wrong_interval_is_named(load, content, model, pair):
    accuracy = {"dx": {"2": 0.5}, "dy": {}}
    broken = model(accuracy_by_shift=accuracy, interval_by_shift={"dx": {"2": pair}, "dy": {}})
    with pytest.raises(ValueError, match=r"models\[0\]\.interval_by_shift\.dx\.2 is .*, expected"):
        load(content(broken))


def test_intervals_at_other_shifts_are_named(load, content, model):
    accuracy = {"dx": {"2": 0.5}, "dy": {}}
    broken = model(accuracy_by_shift=accuracy, interval_by_shift={"dx": {"3": [0, 1]}, "dy": {}})
    with pytest.raises(ValueError, match=r"models\[0\]\.interval_by_shift\.dx is \[3\], expected .*\[2\]"):
        load(content(broken))


def test_models_that_share_a_name_but_are_not_the_same_are_named(load, content, model):
    with pytest.raises(ValueError, match=r"report\.json: models: 'rotation' has kernel softmax and squared_relu"):
        load(content(model(), model(seed=1, kernel="softmax")))
