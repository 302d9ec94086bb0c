"""Paired comparisons of models on the same images, with intervals and p-values."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor

from teka.audit.measure.responses import Responses, check_same_images, take_common
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShifts
from teka.audit.statistics.intervals import (
    MOST_RESAMPLES,
    BootstrapSettings,
    Curve,
    Estimate,
    ImageBootstrap,
    add_two_images,
    difference_curve,
    estimate_mean,
    has_interval,
)
from teka.audit.statistics.metrics import CURVES, NUMBERS, average_images
from teka.checks import check_instance, check_number, check_sizes
from teka.precision import rounding_bound

COMPARED_NUMBERS = tuple(
    name for name, metric in NUMBERS.items() if metric.over in ("zero", "every", "mean")
)
# Metrics that are computed from floating-point outputs. All others count predictions.
ROUNDED_CURVES = ("probability_change", "overlap", "error")
_CHUNK = 256


@dataclass(frozen=True)
class Difference(Estimate):
    """Difference of one number between two models (first minus second) on the same images.

    Args:
        p_value: Two-sided p-value of the hypothesis that there is no difference.
    """

    p_value: float

    def negated(self) -> "Difference":
        """Return the difference of the swapped models, second minus first."""
        return replace(self, value=-self.value, lower=-self.upper, upper=-self.lower)


@dataclass(frozen=True)
class Comparison:
    """Differences of all metrics between two models (first minus second) on the same images.

    A metric is compared if it is defined for both models. A shift is compared if both models were
    evaluated on all images.
    """

    movement: Movement
    num_images: int
    shifts: CheckedShifts
    curves: dict[str, Curve]
    numbers: dict[str, Difference]
    confidence: float


def compare_responses(
    first: Responses,
    second: Responses,
    *,
    noise: float = 0.0,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    num_flips: int = 9999,
    seed: int = 0,
) -> Comparison:
    """Compare the outputs of two models on the same images and shifts, first minus second.

    Differences have the percentile interval of a paired bootstrap over images, and a p-value of a
    test that flips the signs of the images' differences at random. For shares, the bootstrap adds
    two images, one that only the first model and one that only the second model classifies
    correctly, so that the interval has a width even if no image differs. Source: Bonett and Price,
    "Adjusted Wald confidence interval for a difference of binomial proportions based on paired
    data", Journal of Educational and Behavioral Statistics 37 (2012), 479–488.

    Two exactly invariant models have different rounding errors. Therefore, a difference that the
    rounding errors or the noise of the outputs explain has the p-value 1, and intervals are wider
    by this size.

    >>> import torch
    >>> from torch import nn
    >>> from teka.audit import Movement, compare_responses, measure_responses, square_shifts
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    >>> images = torch.rand(20, 1, 8, 8)

    >>> shifts = square_shifts(1)
    >>> first = measure_responses(model, images, shifts, Movement("circular"))
    >>> second = measure_responses(nn.Flatten().eval(), images, shifts, Movement("circular"))
    >>> compare_responses(first, second).num_images
    20

    Args:
        first: Outputs of the first model.
        second: Outputs of the second model on the same images and shifts.
        noise: Relative difference of the models' outputs for equal images, from `noise_floor`.
        confidence: Confidence level of the intervals.
        num_resamples: Number of bootstrap resamples of the images.
        num_flips: Number of random sign flips of the test.
        seed: Seed of the resamples and sign flips.

    Raises:
        ValueError: The models were evaluated on different images, labels, shifts or movements, or
            `summarize` rejects an argument.
    """
    settings = BootstrapSettings(confidence, num_resamples, seed)
    check_sizes({"num_flips": num_flips}, most=MOST_RESAMPLES)
    check_number("noise", noise, "a number of at least 0", low=0)
    check_instance("first", first, Responses)
    check_instance("second", second, Responses)
    check_same_images("second", first, second)
    pair = take_common((first, second))
    noise = max(noise, *(rounding_bound(responses.epsilon) for responses in pair))
    bootstrap = ImageBootstrap(first.num_images, settings)
    padded_bootstrap = ImageBootstrap(first.num_images + 2, settings)
    curves: dict[str, Curve] = {}
    for name, metric in CURVES.items():
        tables = [metric.values_and_norms(responses) for responses in pair]
        if metric.is_share and tables[0] is not None and tables[1] is not None:
            values = tables[0][0].astype(float) - tables[1][0]
            curves[name] = difference_curve(values, padded_bootstrap)
    numbers: dict[str, Difference] = {}
    for name in COMPARED_NUMBERS:
        metric = NUMBERS[name]
        if not all(map(metric.is_defined, pair)):
            continue
        values, others = (metric.image_values(responses) for responses in pair)
        differences = values.astype(float) - others
        if metric.is_share:
            draws = padded_bootstrap.means(add_two_images(differences))
            mean = estimate_mean(float(differences.mean()), draws, padded_bootstrap)
        else:
            average, other = (
                average_images(CURVES[metric.curve], each, bootstrap).mean_over(each.moved)
                for each in pair
            )
            value = float(average.values[0] - other.values[0])
            mean = estimate_mean(value, (average.draws - other.draws)[:, 0], bootstrap)
        level = _noise_level(metric.curve, noise)
        p_value = 1.0
        if abs(mean.value) > level:
            p_value = sign_flip_test(differences, num_flips=num_flips, seed=seed)
        margin = level if has_interval(mean.method) else 0.0
        ends = mean.lower - margin, mean.upper + margin
        numbers[name] = Difference(mean.value, *ends, confidence, mean.method, p_value)
    return Comparison(first.movement, first.num_images, pair[0].shifts, curves, numbers, confidence)


def _noise_level(curve: str, noise: float) -> float:
    """Return the largest difference of a metric between two models that noise alone explains.

    Args:
        curve: Name of the metric in `CURVES`.
        noise: Relative difference of outputs for equal images.
    """
    if curve == "cosine_distance":
        return noise**2 / 2  # 1 − cosine of two unit vectors that differ by the noise
    return noise if curve in ROUNDED_CURVES else 0.0


def sign_flip_test(
    differences: Float[ndarray, " images"], *, num_flips: int = 9999, seed: int = 0
) -> float:
    """Return the two-sided p-value of the hypothesis that two models differ only by chance.

    If so, the sign of the difference of each image is random. The test flips all signs at random,
    many times. The p-value is (1 + m) / (1 + n) for n flips, of which m give a mean that is at
    least as far from zero as the observed mean. For outcomes 0 and 1, this estimates the exact
    p-value of McNemar's test.

    Sources: Fisher, "The Design of Experiments", 1935; Phipson and Smyth, "Permutation p-values
    should never be zero", Statistical Applications in Genetics and Molecular Biology 9 (2010).

    Args:
        differences: Difference of each image.
        num_flips: Number of random sign flips.
        seed: Seed of the random generator.
    """
    random = np.random.default_rng(int(seed))
    # Flipping the sign of a difference of zero changes nothing.
    differences = differences[differences != 0]
    # The tolerance treats sums that differ only by rounding as equal.
    observed = abs(differences.sum()) - 1e-9 * np.abs(differences).sum()
    num_extreme = 0
    for start in range(0, num_flips, _CHUNK):
        size = min(_CHUNK, num_flips - start), len(differences)
        signs = 2 * random.integers(2, size=size, dtype=np.int8) - 1
        num_extreme += int((np.abs(signs @ differences) >= observed).sum())
    return (1 + num_extreme) / (1 + num_flips)


@dataclass(frozen=True)
class Pair:
    """Comparison of two models of a list, first minus second.

    Args:
        first: Index of the first model.
        second: Index of the second model.
        comparison: Their differences.
    """

    first: int
    second: int
    comparison: Comparison


@dataclass(frozen=True)
class BestModel:
    """Best model for one metric, and by how much it is better than each other model.

    The p-values are adjusted with Holm's method over all pairs of models, so they are valid
    although the best model was chosen on the same images.

    Args:
        metric: Name of the metric.
        model: Index of the best model.
        advantages: Advantage over each other model, by the model's index, from the smallest to the
            largest advantage.
    """

    metric: str
    model: int
    advantages: dict[int, Difference]

    @property
    def tied(self) -> list[int]:
        """Indices of the models that are not significantly worse than the best model."""
        return [
            model
            for model, advantage in self.advantages.items()
            if advantage.p_value > 1 - advantage.confidence
        ]

    @property
    def beaten(self) -> list[int]:
        """Indices of the models that are significantly worse, the closest model first."""
        return [model for model in self.advantages if model not in self.tied]


def compare_every_two(
    responses: Sequence[Responses], *, noise: Sequence[float] | None = None, **options: Any
) -> tuple[Pair, ...]:
    """Compare every pair of models with `compare_responses`.

    Args:
        responses: Outputs of each model on the same images and shifts.
        noise: Relative difference of each model's outputs for equal images. By default 0.
        **options: Options of `compare_responses`, such as `confidence` and `seed`.
    """
    noise = noise or [0.0] * len(responses)
    pairs = []
    for first, second in itertools.combinations(range(len(responses)), 2):
        level = max(noise[first], noise[second])
        both = responses[first], responses[second]
        pairs.append(Pair(first, second, compare_responses(*both, noise=level, **options)))
    return tuple(pairs)


def pairs_by_mode(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Return the comparisons of each mode, by the name of the mode."""
    by_mode: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_mode.setdefault(pair.comparison.movement.mode, []).append(pair)
    return by_mode


def find_best_models(pairs: Sequence[Pair]) -> list[BestModel]:
    """Find the best model for each metric, in the order of `NUMBERS`.

    A metric is left out unless it was compared for every two of the models that define it. Among
    equally good models, the first model is the best.
    """
    best_models = []
    for metric in COMPARED_NUMBERS:
        compared = [pair for pair in pairs if metric in pair.comparison.numbers]
        models = sorted({model for pair in compared for model in (pair.first, pair.second)})
        if not compared or len(compared) < math.comb(len(models), 2):
            continue
        differences = [pair.comparison.numbers[metric] for pair in compared]
        adjusted = holm_adjust([difference.p_value for difference in differences])
        advantages: dict[int, dict[int, Difference]] = {model: {} for model in models}
        for pair, difference, p_value in zip(compared, differences, adjusted, strict=True):
            advantage = replace(difference, p_value=p_value)
            # Higher is better for shares. Lower is better for all other metrics.
            if not NUMBERS[metric].is_share:
                advantage = advantage.negated()
            advantages[pair.first][pair.second] = advantage
            advantages[pair.second][pair.first] = advantage.negated()
        best = max(models, key=lambda model: sum(each.value for each in advantages[model].values()))
        ordered = sorted(advantages[best].items(), key=lambda item: item[1].value)
        best_models.append(BestModel(metric, best, dict(ordered)))
    return best_models


def holm_adjust(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple tests by Holm's method.

    The i-th smallest of m p-values becomes max_{j ≤ i} min(1, (m − j + 1) p_j), where p_j is the
    j-th smallest p-value. Source: Holm, "A simple sequentially rejective multiple test procedure",
    Scandinavian Journal of Statistics 6 (1979), 65–70.
    """
    order = np.argsort(p_values)
    scaled = np.array(p_values)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.maximum.accumulate(scaled).clip(max=1.0)
    return adjusted.tolist()


def disagreement(responses: Sequence[Responses]) -> Bool[Tensor, "shifts images"]:
    """Return a mask of the shifts and images for which several classifiers disagree.

    With labels, classifiers disagree if some are correct and some are wrong. Without labels, they
    disagree if they do not all predict the same class.
    """
    common = take_common(responses)
    outcomes = [each.predictions if each.correct is None else each.correct for each in common]
    answers = torch.stack([outcome for outcome in outcomes if outcome is not None])
    return (answers != answers[0]).any(dim=0)
