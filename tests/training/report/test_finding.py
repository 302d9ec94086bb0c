import pytest

from teka.training.report.finding import finding


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


@pytest.mark.parametrize(
    ("accuracy", "words"),
    [
        (0.99, "0.6 points above softmax attention at its lowest (98.4 %)."),
        (0.9841, "as much as softmax attention at its lowest."),
        (0.9, "8.4 points below softmax attention at its lowest (98.4 %)."),
    ],
)
def test_softmax_may_be_better_or_worse_or_equal(report_of, absolute, model, softmax, accuracy, words):
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


@pytest.mark.parametrize(
    ("further", "words"),
    [
        ({}, "the model with rotation positions at linear cost keeps at least 98.0 % at every shift."),
        ({"position": "absolute"}, "the model with absolute positions keeps at least 98.0 % at every shift."),
        ({"position": "none"}, "the model without positions keeps at least 98.0 % at every shift."),
        ({"kernel": "softmax", "backend": "dense"}, "and softmax attention keeps at least 98.0 % at every shift."),
        ({"kernel": "softmax", "backend": "auto"}, "and softmax attention keeps at least 98.0 % at every shift."),
        ({"backend": "dense"}, "the model with rotation positions and squared relu attention keeps at least 98.0 %"),
        (
            {"kernel": "softmax", "position": "clipped", "backend": "rings"},
            "with clipped positions at linear cost keeps",
        ),
    ],
)
def test_one_model_alone_is_described(report_of, model, further, words):
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
