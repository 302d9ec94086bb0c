import dataclasses
import json

import pytest
import torch

from teka.audit import wilson_interval
from teka.audit.statistics.metrics import CURVES, NUMBERS
from teka.audit.statistics.seed_metrics import SeedMetrics
from teka.audit.statistics.summarize import summarize
from teka.audit.statistics.summarize_seeds import summarize_seeds

SHIFTS = ((0, -1), (0, 0), (0, 1))


@pytest.fixture
def seeds(measure):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (41,), generator=generator)
    common = torch.nn.functional.one_hot(labels, 4) + torch.randn(41, 4, generator=generator)
    return [measure(SHIFTS, common + torch.randn(3, 41, 4, generator=generator), labels) for _ in range(4)]


def test_values_are_the_means_of_the_seeds(seeds):
    summary = summarize_seeds(seeds, num_resamples=100)
    alone = [summarize(each, num_resamples=100) for each in seeds]
    assert summary.num_seeds == 4
    assert summary.warning is None
    assert set(summary.metrics.numbers) == set(NUMBERS)
    assert set(summary.metrics.curves) == set(CURVES)
    for name, number in summary.metrics.numbers.items():
        values = torch.tensor([metrics.numbers[name].value for metrics in alone], dtype=torch.float64)
        assert summary.by_seed[name] == pytest.approx(values.tolist())
        assert number.value == pytest.approx(values.mean().item())
        assert summary.deviations[name] == pytest.approx(values.std().item())
        assert number.lower <= number.value <= number.upper
        assert number.method == "bootstrap over seeds and images"
    for name, curve in summary.metrics.curves.items():
        rows = torch.tensor([metrics.curves[name].values for metrics in alone], dtype=torch.float64)
        assert curve.values == pytest.approx(rows.mean(dim=0).tolist())


def test_seeds_that_are_one_model_add_nothing_to_the_spread_of_images(seeds):
    one, same = summarize_seeds(seeds[:1]), summarize_seeds([seeds[0]] * 5)
    for name, number in one.metrics.numbers.items():
        other = same.metrics.numbers[name]
        assert (number.lower, number.upper) == pytest.approx((other.lower, other.upper), abs=1e-6)
    # Near Wilson's, which is of the same model.
    accuracy = summarize(seeds[0]).numbers["accuracy"]
    assert one.metrics.numbers["accuracy"].lower == pytest.approx(accuracy.lower, abs=0.03)


def test_too_few_seeds_are_said_to_be_too_few(seeds):
    summary = summarize_seeds(seeds[:2], num_resamples=100)
    assert summary.warning == "2 of at least 3 seeds: intervals are for these seeds and other images"
    assert summary.metrics.numbers["accuracy"].method == "bootstrap over images"
    assert summarize_seeds(seeds[:1], num_resamples=100).deviations == {}
    assert summarize_seeds(seeds[:3], num_resamples=100).warning is None


def test_intervals_cover_what_other_seeds_and_images_give(respond):
    trials, images, num_seeds = 150, 60, 3
    generator = torch.Generator().manual_seed(4)
    covered = band = images_only = 0
    for trial in range(trials):
        # A seed has its own level, an image its own difficulty: both are drawn anew.
        ease = torch.randn(images, generator=generator)
        responses = []
        for level in (0.4 * torch.randn(num_seeds, generator=generator)).tolist():
            right = ease + level + torch.randn(3, images, generator=generator) > 0
            responses.append(respond(SHIFTS, right.long(), torch.ones(images, dtype=torch.int64)))
        summary = summarize_seeds(responses, num_resamples=100, seed=trial).metrics
        curve = summary.curves["accuracy"]
        number = summary.numbers["accuracy"]
        covered += number.lower <= 0.5 <= number.upper
        band += all(low <= 0.5 <= high for low, high in zip(curve.band_lower, curve.band_upper, strict=True))
        lower, upper = wilson_interval(round(number.value * images * num_seeds), images * num_seeds)
        images_only += lower <= 0.5 <= upper
    assert covered / trials > 0.9
    assert band / trials > 0.9
    # Seed-image pairs as trials would cover far less often.
    assert images_only / trials < 0.75


def test_where_nothing_varies_shares_are_still_left_open(respond):
    labels = torch.zeros(20, dtype=torch.int64)
    summary = summarize_seeds([respond(SHIFTS, torch.zeros(3, 20, dtype=torch.int64), labels)] * 3, num_resamples=100)
    accuracy = summary.metrics.numbers["accuracy"]
    assert (accuracy.value, accuracy.lower, accuracy.upper) == (1.0, *wilson_interval(20, 20))
    agreement = summary.metrics.curves["agreement"]
    assert agreement.lower[1] == agreement.band_lower[1] == 1.0
    assert agreement.lower[0] < 1.0


def test_only_shifts_that_all_seeds_finished_count(seeds):
    evaluated = seeds[1].evaluated.clone()
    evaluated[0, 5] = False
    seeds[1] = dataclasses.replace(seeds[1], evaluated=evaluated)
    summary = summarize_seeds(seeds, num_resamples=100)
    assert summary.metrics.shifts == SHIFTS[1:]
    assert summary.metrics.skipped_shifts == SHIFTS[:1]


def test_no_seed_and_other_images_are_refused(seeds):
    with pytest.raises(ValueError, match=r"^responses is 'no seed'"):
        summarize_seeds([])
    with pytest.raises(ValueError, match=r"^responses\[1\]\.labels"):
        summarize_seeds([seeds[0], dataclasses.replace(seeds[1], labels=3 - seeds[1].labels)])
    with pytest.raises(ValueError, match=r"^responses\[2\]\.output is 'features'"):
        summarize_seeds([*seeds[:2], dataclasses.replace(seeds[2], output="features")])


def test_the_summary_survives_json(seeds):
    summary = summarize_seeds(seeds, num_resamples=100)
    assert SeedMetrics.from_dict(json.loads(json.dumps(summary.to_dict(), allow_nan=False))) == summary
