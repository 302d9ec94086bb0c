import pytest


def test_results_of_one_name_are_gathered_in_order_of_appearance(report_of, absolute, model):
    groups = report_of(model(seed=3), absolute(), model(seed=1)).groups
    assert [(group.name, group.seeds) for group in groups] == [("rotation", (3, 1)), ("absolute", (0,))]


def test_several_seeds_have_their_mean_and_spread(report_of, model):
    models = [model(seed=seed, accuracy=value, seconds=10 * (seed + 1)) for seed, value in enumerate((0.9, 0.99, 0.93))]
    (group,) = report_of(*models).groups
    assert group.accuracy("dx") == pytest.approx(dict.fromkeys(range(-3, 4), 0.94))
    assert group.band("dy") == dict.fromkeys(range(-3, 4), (0.9, 0.99))
    assert group.worst_shift_accuracy == pytest.approx(0.93)
    assert group.seconds == pytest.approx(20)


def test_a_single_seed_has_its_interval_as_band(report_of, model):
    intervals = {"dx": {"4": [0.4, 0.7], "-4": [0.8, 0.95]}, "dy": {}}
    accuracy = {"dx": {"4": 0.5, "-4": 0.9}, "dy": {}}
    (group,) = report_of(model(accuracy_by_shift=accuracy, interval_by_shift=intervals)).groups
    assert list(group.band("dx").items()) == [(-4, (0.8, 0.95)), (4, (0.4, 0.7))]
    assert group.band("dy") == {}


def test_a_single_seed_without_intervals_has_no_band(report_of, model):
    assert report_of(model()).groups[0].band("dx") == {}


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
