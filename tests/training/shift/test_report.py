import json
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

import teka
from teka.audit.statistics.estimate import mean_over_seeds
from teka.training.shift_page import WIDTH, finding, plain_table, table_rows
from teka.training.shift_report import ModelResult, load_report


@pytest.fixture
def load(tmp_path):
    def load(content):
        path = tmp_path / "report.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return load_report(path)

    return load


def test_every_key_is_read(load, content, model):
    one = model(
        accuracy_by_shift={"dx": {"-2": 0.375, "5": 1}, "dy": {}},
        interval_by_shift={"dx": {"-2": [0.25, 0.5], "5": [0.5, 1]}, "dy": {}},
        minimum_accuracy=0.3,
        test_images=360,
        sampling="polyphase",
    )
    further = {"hardware": "two cores", "date": "2021-02-15", "mode": "canvas", "finding": "It moves."}
    report = load(content(one, **further))
    (result,) = report.models
    intervals = {"dx": {-2: (0.25, 0.5), 5: (0.5, 1.0)}, "dy": {}}
    accuracies = {"dx": {-2: 0.375, 5: 1.0}, "dy": {}}
    assert vars(result) == {**one, "accuracy_by_shift": accuracies, "interval_by_shift": intervals}
    assert {name: vars(report)[name] for name in content(**further)} == {**content(**further), "models": (result,)}


def test_the_lowest_accuracy_is_found_where_it_is_not_saved(load, content, model):
    assert load(content(model(fall=0.5))).models[0].lowest == 0.48


def test_further_keys_are_left_alone(load, content, model):
    load(content(model(flops=7), weather="fine", hardware=None))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "report.json"))):
        load_report(tmp_path / "report.json")


def test_what_is_not_a_json_object_is_named(load, tmp_path):
    for text in (b"", b"{", b"\x00", b'{"dataset": "digits",}', b"\xff\xfe\x00"):
        (tmp_path / "report.json").write_bytes(text)
        with pytest.raises(ValueError, match=r"report\.json is not JSON"):
            load_report(tmp_path / "report.json")
    for value in ([], 7, None):
        with pytest.raises(ValueError, match=r"report\.json holds .*, expected a JSON object"):
            load(value)


NEEDED = [field.name for field in fields(ModelResult) if field.default is MISSING]


def test_a_missing_key_is_named(load, content, absolute, model):
    for key in ("dataset", "command", "teka", "torch", "models"):
        broken = content()
        del broken[key]
        with pytest.raises(ValueError, match=rf"report\.json: report\.{key} is missing"):
            load(broken)
    for key in NEEDED:
        broken = model()
        del broken[key]
        with pytest.raises(ValueError, match=rf"report\.json: report\.models\[1\]\.{key} is missing"):
            load(content(absolute(), broken))
    for axis in ("dx", "dy"):
        broken = model()
        del broken["accuracy_by_shift"][axis]
        with pytest.raises(ValueError, match=rf"models\[0\]\.accuracy_by_shift\.{axis} is missing"):
            load(content(broken))


WRONG = (
    ("models", []),
    ("models", {}),
    ("models", [7]),
    ("dataset", ""),
    ("dataset", 7),
    ("hardware", ["two", "cores"]),
)
WRONG_OF_MODEL = (
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
)


def test_a_wrong_value_is_named(load, content, model):
    for key, value in WRONG:
        with pytest.raises(ValueError, match=rf"report\.json: report\.{key}.* is .*, expected"):
            load(content(**{key: value}))
    for key, value in WRONG_OF_MODEL:
        with pytest.raises(ValueError, match=rf"report\.json: report\.models\[0\]\.{key} is .*, expected"):
            load(content(model(**{key: value})))


def test_an_accuracy_outside_0_to_1_and_a_key_that_is_no_shift_are_named(load, content, model):
    for value in (98.3, -0.01, "0.98", None, float("nan"), True):
        broken = model()
        broken["accuracy_by_shift"]["dy"]["-2"] = value
        expected = r"models\[0\]\.accuracy_by_shift\.dy\.-2 is .*, expected (an accuracy from 0 to 1|a number)"
        with pytest.raises(ValueError, match=expected):
            load(content(broken))
    for shift in ("+2", "02", "1.5", "", "-", "-0", "left", "²"):
        broken = model()
        broken["accuracy_by_shift"]["dx"][shift] = 0.5
        with pytest.raises(ValueError, match=rf"accuracy_by_shift\.dx\.{re.escape(shift)} is .*, expected a whole"):
            load(content(broken))


def test_a_wrong_interval_is_named(load, content, model):
    for pair in ([0.5], [0.6, 0.5], [0.5, 1.1], 0.5, ["0", "1"]):
        accuracy = {"dx": {"2": 0.5}, "dy": {}}
        broken = model(accuracy_by_shift=accuracy, interval_by_shift={"dx": {"2": pair}, "dy": {}})
        with pytest.raises(ValueError, match=r"models\[0\]\.interval_by_shift\.dx\.2(\[0\])? is .*, expected"):
            load(content(broken))


def test_intervals_at_other_shifts_are_named(load, content, model):
    accuracy = {"dx": {"2": 0.5}, "dy": {}}
    broken = model(accuracy_by_shift=accuracy, interval_by_shift={"dx": {"3": [0, 1]}, "dy": {}})
    with pytest.raises(ValueError, match=r"models\[0\]\.interval_by_shift\.dx is \[3\], expected .*\[2\]"):
        load(content(broken))


def test_models_that_share_a_name_but_are_not_the_same_are_named(load, content, model):
    with pytest.raises(
        ValueError, match=r"report\.json: report\.models: 'rotation' has kernel softmax and squared_relu"
    ):
        load(content(model(), model(seed=1, kernel="softmax")))


def test_results_of_one_name_are_gathered_in_order_of_appearance(report_of, absolute, model):
    groups = report_of(model(seed=3), absolute(), model(seed=1)).groups
    assert [(group.first.name, [result.seed for result in group.results]) for group in groups] == [
        ("rotation", [3, 1]),
        ("absolute", [0]),
    ]


def test_several_seeds_have_their_mean_and_spread(report_of, model):
    models = [model(seed=seed, accuracy=value, seconds=10 * (seed + 1)) for seed, value in enumerate((0.9, 0.99, 0.93))]
    (group,) = report_of(*models).groups
    assert list(group.accuracy("dx")) == list(range(-3, 4))
    assert set(group.accuracy("dy").values()) == {mean_over_seeds([0.9, 0.99, 0.93])}
    assert group.mean("worst_shift_accuracy") == pytest.approx(0.93)
    assert group.mean("seconds") == pytest.approx(20)


def test_a_single_seed_has_the_interval_of_its_images(report_of, model):
    intervals = {"dx": {"4": [0.4, 0.7], "-4": [0.8, 0.95]}, "dy": {}}
    accuracy = {"dx": {"4": 0.5, "-4": 0.9}, "dy": {}}
    (group,) = report_of(model(accuracy_by_shift=accuracy, interval_by_shift=intervals)).groups
    assert {shift: (one.lower, one.upper) for shift, one in group.accuracy("dx").items()} == {
        -4: (0.8, 0.95),
        4: (0.4, 0.7),
    }
    assert group.accuracy("dy") == {}


def test_a_single_seed_without_intervals_has_none(report_of, model):
    assert {one.half_width for one in report_of(model()).groups[0].accuracy("dx").values()} == {None}


def test_shifts_are_in_numerical_order(report_of, model):
    accuracy = {"dx": {"10": 0.1, "-2": 0.2, "0": 0.3, "-10": 0.4, "9": 0.5}, "dy": {}}
    assert list(report_of(model(accuracy_by_shift=accuracy)).groups[0].accuracy("dx")) == [-10, -2, 0, 9, 10]


def test_the_lowest_accuracy_is_that_of_the_means(report_of, model):
    (group,) = report_of(model(fall=0.4), model(seed=1, fall=0.2)).groups
    assert group.lowest == (pytest.approx(0.68), "dx", -3)


def test_among_equal_accuracies_the_lowest_is_at_the_nearest_shift(report_of, model):
    assert report_of(model()).groups[0].lowest[1:] == ("dx", 0)


def test_the_unshifted_accuracy_is_none_where_it_was_not_measured(report_of, model):
    accuracy = {"dx": {}, "dy": {"1": 0.5}}
    assert report_of(model(accuracy_by_shift=accuracy)).groups[0].unshifted is None
    assert report_of(model(accuracy=0.75)).groups[0].unshifted == 0.75


def test_a_repeated_seed_is_an_error(report_of, model):
    with pytest.raises(ValueError, match=r"'rotation' has seeds \[2, 2\], expected each seed once"):
        report_of(model(seed=2), model(seed=2))


def test_seeds_measured_at_different_shifts_are_an_error(report_of, model):
    accuracy = {"dx": {"0": 0.5}, "dy": {}}
    with pytest.raises(ValueError, match="'rotation' has different shifts along dx"):
        report_of(model(), model(seed=1, accuracy_by_shift=accuracy))


def test_every_model_has_a_line_for_each_axis_under_aligned_heads(report_of):
    lines = plain_table(report_of()).splitlines()
    assert lines[0].split() == ["model", "−3", "−2", "−1", "0", "+1", "+2", "+3", "worst", "parameters", "seconds"]
    assert lines[2].split() == ["absolute", "dx", "22.3", *["97.1"] * 5, "59.7", "21.3", "20,513", "41"]
    assert lines[3].split() == ["dy", "59.7", *["97.1"] * 5, "59.7"]
    ends = [lines[0].index(head) + len(head) for head in ("−3", "+3", "worst", "parameters", "seconds")]
    for line in (lines[2], lines[4], lines[6]):
        padded = f"{line} "
        assert all(padded[end - 1] != " " and padded[end] == " " for end in ends)


@pytest.mark.parametrize("reach", [1, 4, 8, 29])
def test_the_table_fits_a_terminal_of_100_columns(report_of, model, reach):
    along = {str(shift): 1.0 for shift in range(-reach, reach + 1)}
    for name in ("a", "rotation, linear cost", "x" * 70, "a name of many words that cannot stand on one line"):
        text = plain_table(report_of(model(name, accuracy_by_shift={"dx": along, "dy": along}, parameters=12345678)))
        assert max(map(len, text.splitlines())) <= WIDTH, name
        assert text.count(" 100") == 2 * len(along), name


def test_nine_shifts_stand_on_one_line(report_of, model):
    along = {str(shift): 0.5 for shift in range(-4, 5)}
    text = plain_table(report_of(model("rotation, squared relu", accuracy_by_shift={"dx": along, "dy": along})))
    assert text.count("model") == 1


def test_shifts_that_were_not_measured_are_dashes(report_of, model):
    accuracy = {"dx": {"0": 0.5, "7": 0.25}, "dy": {"0": 0.5}}
    (row,) = table_rows(report_of(model(accuracy_by_shift=accuracy)))
    assert row.axes == (("dx", ("50.0", "25.0")), ("dy", ("50.0", "–")))
    assert row.lowest == ("dx", 1)


def test_an_axis_without_shifts_has_no_line(report_of, model):
    accuracy = {"dx": {"0": 0.5, "7": 0.25}, "dy": {}}
    (row,) = table_rows(report_of(model(accuracy_by_shift=accuracy)))
    assert [axis for axis, _ in row.axes] == ["dx"]


def test_several_seeds_are_one_row_of_means(report_of, model):
    (row,) = table_rows(report_of(*[model(seed=seed, accuracy=0.9 + seed / 50) for seed in range(3)]))
    assert set(row.axes[0][1]) == {"92.0"}
    assert "mean of 3 seeds" in plain_table(report_of(*[model(seed=seed) for seed in range(3)]))


def test_a_long_name_is_wrapped_and_loses_nothing(report_of, model):
    along = {str(shift): 0.5 for shift in range(-8, 9)}
    name = "alpha beta gamma delta epsilon zeta eta theta"
    block = plain_table(report_of(model(name, accuracy_by_shift={"dx": along, "dy": along}))).split("\n\n")[0]
    assert [word for word in block.split() if word.isalpha() and word not in ("model", "dx", "dy")] == name.split()
    assert len(block.splitlines()) > 4


def test_the_expected_case_reads_as_plain_words(report_of):
    assert finding(report_of()) == (
        "With images of digits moved by up to 3 pixels (one seed), the model with absolute positions falls from 97.1 % "
        "to 22.3 % (at dx = −3); with rotation positions at linear cost it keeps at least 98.0 % at every shift, "
        "0.4 points below softmax attention at its lowest (98.4 %)."
    )


def test_a_relative_model_that_is_worse_is_called_worse(report_of, absolute, model, softmax):
    text = finding(report_of(absolute(fall=0.02), model(fall=0.48), softmax()))
    assert "absolute positions keeps at least 95.1 % at every shift" in text
    assert "rotation positions at linear cost it falls from 98.0 % to 50.0 % (at dx = −3), 48.4 points below" in text
    assert text.endswith(
        " Here the model with absolute positions holds up better: its lowest accuracy is 45.1 points higher."
    )


def test_a_relative_model_that_is_better_is_not_called_worse(report_of):
    assert "holds up better" not in finding(report_of())


def test_softmax_may_be_better_or_worse_or_equal(report_of, absolute, model, softmax):
    for accuracy, words in (
        (0.99, "0.6 points above softmax attention at its lowest (98.4 %)."),
        (0.9841, "as much as softmax attention at its lowest."),
        (0.9, "8.4 points below softmax attention at its lowest (98.4 %)."),
    ):
        assert finding(report_of(absolute(), model(accuracy=accuracy), softmax())).endswith(words)


def test_differences_are_those_of_the_printed_numbers(report_of, model, softmax):
    # 98.04 and 98.36 print as 98.0 and 98.4: a reader finds 0.4 between them, not 0.3.
    text = finding(report_of(model(accuracy=0.9804), softmax(accuracy=0.9836)))
    assert "at least 98.0 %" in text
    assert "0.4 points below softmax attention at its lowest (98.4 %)" in text


def test_without_softmax_there_is_no_comparison_with_it(report_of, absolute, model):
    text = finding(report_of(absolute(), model()))
    assert "softmax" not in text
    assert text.endswith("with rotation positions at linear cost it keeps at least 98.0 % at every shift.")


def test_softmax_with_another_position_is_no_reference(report_of, model, softmax):
    assert "softmax" not in finding(report_of(model(position="clipped"), softmax()))
    assert "softmax" not in finding(report_of(model(), softmax(position="absolute")))


def test_without_a_linear_model_the_softmax_one_is_told(report_of, absolute, softmax):
    text = finding(report_of(absolute(), softmax()))
    assert text.endswith("with rotation positions and softmax attention it keeps at least 98.4 % at every shift.")


def test_models_of_fewer_tokens_have_a_sentence_of_their_own(report_of, absolute, model):
    strided = model("strided", sampling="strided", fall=0.48)
    text = finding(report_of(absolute(), model(), model("polyphase", sampling="polyphase"), strided))
    assert "(best of" not in text
    assert text.endswith(
        " Of models with fewer tokens than pixels, the one with polyphase halvings keeps at least 98.0 % at every "
        "shift; the one with an ordinary stride falls from 98.0 % to 50.0 % (at dx = −3)."
    )


KEEPS = "keeps at least 98.0 % at every shift."
ALONE = (
    ({}, f"the model with rotation positions at linear cost {KEEPS}"),
    ({"position": "absolute"}, f"the model with absolute positions {KEEPS}"),
    ({"position": "none"}, f"the model without positions {KEEPS}"),
    ({"kernel": "softmax", "backend": "dense"}, f"and softmax attention {KEEPS}"),
    ({"kernel": "softmax", "backend": "auto"}, f"and softmax attention {KEEPS}"),
    ({"backend": "dense"}, f"the model with rotation positions and squared relu attention {KEEPS}"),
    ({"kernel": "softmax", "position": "clipped", "backend": "rings"}, f"clipped positions at linear cost {KEEPS}"),
)


def test_one_model_alone_is_described(report_of, model):
    for further, words in ALONE:
        text = finding(report_of(model(**further)))
        assert words in text
        assert text.count(". ") == 0


def test_without_positions_stands_in_for_absolute_and_for_relative(report_of, absolute, model):
    without = model("none", position="none", backend="linear", accuracy=0.41)
    assert "the model without positions keeps at least 41.0 %" in finding(report_of(without, model()))
    assert "without positions it keeps at least 41.0 %" in finding(report_of(absolute(), without))


def test_the_best_of_several_models_of_a_kind_is_said_to_be_the_best(report_of, absolute, model):
    models = [model("first", accuracy=0.9), model("second", accuracy=0.95), model("third", fall=0.5)]
    text = finding(report_of(absolute(), *models))
    assert "with rotation positions at linear cost (best of 3: second) it keeps at least 95.0 %" in text


def test_without_the_unshifted_images_the_range_is_told(report_of, model):
    accuracy = {"dx": {"-2": 0.5, "1": 0.9}, "dy": {}}
    assert "moved by up to 2 pixels" in finding(report_of(model(accuracy_by_shift=accuracy)))
    assert "stays between 50.0 % and 90.0 %" in finding(report_of(model(accuracy_by_shift=accuracy)))


def test_a_single_pixel_is_in_the_singular(report_of, model):
    accuracy = {"dx": {"0": 0.9, "1": 0.9}, "dy": {}}
    assert "by up to 1 pixel (" in finding(report_of(model(accuracy_by_shift=accuracy)))


def test_seeds_are_counted(report_of, absolute, model):
    three = [model(seed=seed, accuracy=0.9 + seed / 100) for seed in range(3)]
    assert "(mean of 3 seeds), the model with rotation positions at linear cost keeps at least 91.0 %" in finding(
        report_of(*three)
    )
    assert "(means of 1 to 3 seeds)" in finding(report_of(absolute(), *three))


def test_the_report_of_the_published_demo_renders():
    report = load_report(Path(teka.__file__).parents[2] / "benchmarks" / "demo_report.json")
    assert [group.first.name for group in report.groups] == [
        "absolute, squared_relu",
        "rotary, squared_relu",
        "rotary, softmax",
        "rotary, squared_relu, polyphase",
        "rotary, squared_relu, strided",
    ]
    assert "mean of 3 seeds" in finding(report)
    assert "the one with polyphase halvings keeps at least 97.5 % at every shift" in finding(report)
    assert "dx" in plain_table(report)
