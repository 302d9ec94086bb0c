import json
from pathlib import Path

import pytest

import teka
from teka.audit.statistics.estimate import mean_over_seeds
from teka.codec import decode
from teka.training.shift.report import WIDTH, ShiftReport, finding, plain_table, table_rows


def test_models_that_share_a_name_but_are_not_the_same_are_named(report_of, model):
    with pytest.raises(
        ValueError,
        match="'rotation' has kernel softmax and squared_relu, expected one for each name",
    ):
        report_of(model(), model(seed=1, kernel="softmax")).groups  # noqa: B018


def test_results_of_one_name_are_gathered_in_order_of_appearance(report_of, absolute, model):
    groups = report_of(model(seed=3), absolute(), model(seed=1)).groups
    assert [(group.first.name, [result.seed for result in group.results]) for group in groups] == [
        ("rotation", [3, 1]),
        ("absolute", [0]),
    ]


def test_several_seeds_have_their_mean_and_spread(report_of, model):
    models = [
        model(seed=seed, accuracy=value, seconds=10 * (seed + 1))
        for seed, value in enumerate((0.9, 0.99, 0.93))
    ]
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


def test_shifts_are_in_numerical_order(report_of, model):
    accuracy = {"dx": {"10": 0.1, "-2": 0.2, "0": 0.3, "-10": 0.4, "9": 0.5}, "dy": {}}
    assert list(report_of(model(accuracy_by_shift=accuracy)).groups[0].accuracy("dx")) == [
        -10,
        -2,
        0,
        9,
        10,
    ]


def test_the_lowest_accuracy_is_that_of_the_means(report_of, model):
    (group,) = report_of(model(fall=0.4), model(seed=1, fall=0.2)).groups
    assert group.lowest == (pytest.approx(0.68), "dx", -3)


def test_among_equal_accuracies_the_lowest_is_at_the_nearest_shift(report_of, model):
    assert report_of(model()).groups[0].lowest[1:] == ("dx", 0)


def test_the_unshifted_accuracy_is_that_of_an_axis_that_was_measured(report_of, model):
    accuracy = {"dx": {}, "dy": {"0": 0.75, "1": 0.5}}
    assert report_of(model(accuracy_by_shift=accuracy)).groups[0].unshifted == 0.75


def test_a_repeated_seed_is_an_error(report_of, model):
    with pytest.raises(ValueError, match=r"'rotation' has seeds \[2, 2\], expected each seed once"):
        report_of(model(seed=2), model(seed=2)).groups  # noqa: B018


def test_every_model_has_a_line_for_each_axis_under_aligned_heads(report_of):
    lines = plain_table(report_of()).splitlines()
    assert lines[0].split() == [
        "model",
        "−3",
        "−2",
        "−1",
        "0",
        "+1",
        "+2",
        "+3",
        "worst",
        "parameters",
        "seconds",
    ]
    assert lines[2].split() == [
        "absolute",
        "dx",
        "22.3",
        *["97.1"] * 5,
        "59.7",
        "21.3",
        "20,513",
        "41",
    ]
    assert lines[3].split() == ["dy", "59.7", *["97.1"] * 5, "59.7"]
    ends = [
        lines[0].index(head) + len(head) for head in ("−3", "+3", "worst", "parameters", "seconds")
    ]
    for line in (lines[2], lines[4], lines[6]):
        padded = f"{line} "
        assert all(padded[end - 1] != " " and padded[end] == " " for end in ends)


@pytest.mark.parametrize("reach", [1, 4, 8, 29])
def test_the_table_fits_a_terminal_of_100_columns(report_of, model, reach):
    along = {str(shift): 1.0 for shift in range(-reach, reach + 1)}
    for name in (
        "a",
        "rotation, linear cost",
        "x" * 70,
        "a name of many words that cannot stand on one line",
    ):
        text = plain_table(
            report_of(
                model(name, accuracy_by_shift={"dx": along, "dy": along}, parameters=12345678)
            )
        )
        assert max(map(len, text.splitlines())) <= WIDTH, name
        assert text.count(" 100") == 2 * len(along), name


def test_nine_shifts_stand_on_one_line(report_of, model):
    along = {str(shift): 0.5 for shift in range(-4, 5)}
    text = plain_table(
        report_of(model("rotation, squared relu", accuracy_by_shift={"dx": along, "dy": along}))
    )
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
    (row,) = table_rows(
        report_of(*[model(seed=seed, accuracy=0.9 + seed / 50) for seed in range(3)])
    )
    assert set(row.axes[0][1]) == {"92.0"}
    assert "mean of 3 seeds" in plain_table(report_of(*[model(seed=seed) for seed in range(3)]))


def test_a_long_name_is_wrapped_and_loses_nothing(report_of, model):
    along = {str(shift): 0.5 for shift in range(-8, 9)}
    name = "alpha beta gamma delta epsilon zeta eta theta"
    block = plain_table(report_of(model(name, accuracy_by_shift={"dx": along, "dy": along}))).split(
        "\n\n"
    )[0]
    assert [
        word for word in block.split() if word.isalpha() and word not in ("model", "dx", "dy")
    ] == name.split()
    assert len(block.splitlines()) > 4


def test_the_finding_says_how_each_model_bears_the_shifts(report_of):
    assert finding(report_of()) == (
        "With images of digits moved by up to 3 pixels (one seed): absolute falls from 97.1 % to 22.3 % (at dx = −3); "
        "rotation keeps at least 98.0 % at every shift; softmax keeps at least 98.4 % at every shift."
    )


def test_five_points_are_a_fall_by_the_printed_numbers(report_of, model):
    # 98.04 and 93.05 print as 98.0 and 93.0: a reader finds 5.0 between them.
    assert "rotation falls from 98.0 % to 93.0 %" in finding(
        report_of(model(accuracy=0.9804, fall=0.05))
    )
    assert "rotation keeps at least 93.1 %" in finding(
        report_of(model(accuracy=0.9804, fall=0.049))
    )


def test_of_many_models_the_best_and_the_worst_are_told(report_of, model):
    text = finding(report_of(*[model(f"model {at}", accuracy=0.9 + at / 100) for at in range(7)]))
    assert "(one seed, the best and the worst of 7 models): model 6 keeps at least 96.0 %" in text
    assert [word for word in "0123456" if f"model {word} " in text] == ["0", "1", "4", "5", "6"]


def test_a_single_pixel_is_in_the_singular(report_of, model):
    accuracy = {"dx": {"0": 0.9, "1": 0.9}, "dy": {}}
    assert "by up to 1 pixel (" in finding(report_of(model(accuracy_by_shift=accuracy)))


def test_seeds_are_counted(report_of, absolute, model):
    three = [model(seed=seed, accuracy=0.9 + seed / 100) for seed in range(3)]
    assert "(mean of 3 seeds): rotation keeps at least 91.0 %" in finding(report_of(*three))
    assert "(means of 1 to 3 seeds)" in finding(report_of(absolute(), *three))


def test_the_report_of_the_published_demo_is_read():
    content = json.loads(
        (
            Path(teka.__file__).parents[2] / "reproduction" / "benchmarks" / "demo_report.json"
        ).read_text()
    )
    report = decode(ShiftReport, content)
    assert [group.first.name for group in report.groups] == [
        "absolute, squared_relu",
        "rotary, squared_relu",
        "rotary, softmax",
        "rotary, squared_relu, polyphase",
        "rotary, squared_relu, strided",
    ]
    assert "mean of 3 seeds" in finding(report)
    assert "rotary, squared_relu, polyphase keeps at least 97.2 % at every shift" in finding(report)
    assert "dx" in plain_table(report)
