from dataclasses import replace

import pytest
import torch

from teka.audit.statistics.comparison import (
    ModelPair,
    compare_all_pairs,
    compare_responses,
    disagreement_mask,
    find_best_models,
    holm_adjust,
)

SHIFTS = tuple((0, step) for step in range(-2, 3))
NUM_IMAGES = 90


def responses_of_models(measure, shares, labelled=True):
    """Return responses of models that are correct for a share of images and wrong for the rest."""
    labels = torch.arange(NUM_IMAGES) % 3
    found = []
    for share in shares:
        right = torch.arange(NUM_IMAGES) < share * NUM_IMAGES
        classes = torch.where(right, labels, (labels + 1) % 3)
        logits = 4.0 * torch.nn.functional.one_hot(classes, 3).double()[None].repeat(
            len(SHIFTS), 1, 1
        )
        found.append(measure(SHIFTS, logits, labels))
    return found if labelled else [replace(one, labels=None) for one in found]


@pytest.fixture
def best_models(measure):
    pairs = compare_all_pairs(
        responses_of_models(measure, (0.2, 0.9, 0.5, 0.87)), num_resamples=100
    )
    return {best.metric: best for best in find_best_models(pairs)}


def test_each_pair_of_models_is_compared_once(measure):
    responses = responses_of_models(measure, (0.2, 0.9, 0.5))
    pairs = compare_all_pairs(responses, num_resamples=100, seed=3)
    assert [(pair.first, pair.second) for pair in pairs] == [(0, 1), (0, 2), (1, 2)]
    assert pairs[2].comparison == compare_responses(
        responses[1], responses[2], num_resamples=100, seed=3
    )


def test_differences_within_the_noise_of_either_model_are_not_significant(measure):
    labels = torch.zeros(NUM_IMAGES, dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    clean = torch.randn(1, NUM_IMAGES, 3, generator=generator).repeat(len(SHIFTS), 1, 1)
    moved = torch.tensor([bool(any(shift)) for shift in SHIFTS])[:, None, None]
    responses = [measure(SHIFTS, clean + size * moved, labels) for size in (0.0, 1e-3, 2e-3)]
    pairs = compare_all_pairs(responses, noise=[0.0, 0.0, 0.01], num_resamples=100)
    p_values = [pair.comparison.numbers["mean_error"].p_value for pair in pairs]
    assert p_values == pytest.approx([1e-4, 1.0, 1.0])


def test_best_model_has_advantages_tied_and_worse_models(best_models):
    best = best_models["worst_shift_accuracy"]
    assert best.model == 1
    assert list(best.advantages) == [3, 2, 0]
    assert [one.value for one in best.advantages.values()] == pytest.approx(
        [2 / 90, 36 / 90, 63 / 90], abs=1e-9
    )
    assert all(one.lower <= one.value <= one.upper for one in best.advantages.values())
    # A difference of 2 of 90 images is not significant, one of 36 is.
    assert best.tied_models == [3]
    assert best.worse_models == [2, 0]


def test_p_values_are_adjusted_over_all_pairs(measure):
    pairs = compare_all_pairs(responses_of_models(measure, (0.5, 0.56, 0.51)), num_resamples=100)
    raw = [pair.comparison.numbers["accuracy"].p_value for pair in pairs]
    adjusted = holm_adjust(raw)
    (best,) = [best for best in find_best_models(pairs) if best.metric == "accuracy"]
    assert best.model == 1
    assert best.advantages[0].p_value == pytest.approx(adjusted[0])
    assert best.advantages[0].p_value > raw[0]


def test_best_model_has_the_lowest_error(measure):
    constant, changing = responses_of_models(measure, (0.5, 0.5))
    moved = changing.error_squared.clone()
    moved[changing.moved] = 0.1 * changing.norm_squared[changing.moved] * torch.rand(NUM_IMAGES)
    changing = replace(changing, error_squared=moved)
    pairs = compare_all_pairs([changing, constant], num_resamples=100)
    (best,) = [best for best in find_best_models(pairs) if best.metric == "mean_error"]
    assert best.model == 1
    assert best.advantages[0].value > 0


def test_metric_that_one_pair_lacks_has_no_best_model(measure):
    pairs = compare_all_pairs(
        responses_of_models(measure, (0.2, 0.9, 0.5), labelled=False), num_resamples=100
    )
    assert "accuracy" not in {best.metric for best in find_best_models(pairs)}
    lacking = replace(pairs[0].comparison, numbers={})
    assert find_best_models([ModelPair(0, 1, lacking), *pairs[1:]]) == []
    assert find_best_models([]) == []


def test_disagreement_mask_marks_images_not_all_correct_or_all_wrong(measure):
    disagreeing = disagreement_mask(responses_of_models(measure, (0.2, 0.9, 0.5)))
    assert disagreeing.sum(dim=1).tolist() == [63] * len(SHIFTS)
    assert not disagreement_mask(responses_of_models(measure, (0.4, 0.4))).any()
    # Without labels, all different predictions are disagreements.
    one, other = responses_of_models(measure, (0.0, 0.0), labelled=False)
    assert disagreement_mask([one, replace(other, predictions=(other.predictions + 1) % 3)]).all()
    assert not disagreement_mask([one, other]).any()


def test_holm_adjust_equals_an_example_from_the_definition():
    # Sorted: 0.005 · 4, 0.01 · 3, 0.03 · 2, 0.04 · 1. No value may be below the previous one.
    assert holm_adjust([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_adjust([0.3]) == pytest.approx([0.3])
    assert holm_adjust([0.5] * 7) == [1.0] * 7
