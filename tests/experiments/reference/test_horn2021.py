from teka.experiments.reference import PIXELS, figure1, paper_row, table1


def test_table_1_has_the_nine_models_with_an_accuracy_on_each_data_set():
    rows = table1()
    assert len(rows) == 9
    assert all(set(row.accuracy) == {"mnist", "fashion-mnist", "cifar10"} for row in rows.values())
    assert rows["VGG-16"].accuracy == {"mnist": 99.34, "fashion-mnist": 91.98, "cifar10": 75.45}
    assert rows["Performer (strategy 1)"].parameters == "4.7M"


def test_figure_1_has_seven_curves_over_17_shifts():
    curves = figure1()
    assert len(curves) == 7
    assert all(sorted(curve.accuracy) == list(range(-8, 9)) for curve in curves)
    assert all(0 <= value <= 100 for curve in curves for value in curve.accuracy.values())
    assert {curve.model for curve in curves} <= table1().keys()


def test_a_model_without_positions_is_flat_on_the_digit_one():
    (none,) = (curve for curve in figure1() if curve.model == "Performer (no position)")
    assert none.data == "mnist"
    assert set(none.accuracy.values()) == {99.41}


def test_the_exact_form_of_a_strategy_is_compared_with_the_strategy():
    assert paper_row("Performer (strategy 2 exact)") == "Performer (strategy 2)"
    assert paper_row("Performer (squared relu × rotary)") not in table1()


def test_the_images_have_32_pixels():
    assert PIXELS == 32
