"""Paired comparisons of models on the same images, with confidence intervals and p-values."""

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

from teka.audit.measure.responses import Responses, check_same_images, select_common_shifts
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShifts
from teka.audit.statistics.intervals import (
    MAX_RESAMPLES,
    Curve,
    Estimate,
    ImageBootstrap,
    append_artificial_differences,
    estimate_difference_curve,
    estimate_from_resamples,
    has_interval,
)
from teka.audit.statistics.metrics import CURVES, NUMBERS, average_over_images
from teka.checks import check_instance, check_number, check_sizes
from teka.precision import rounding_error_bound

COMPARED_NUMBERS = tuple(
    name for name, metric in NUMBERS.items() if metric.over in ("zero", "every", "mean")
)
# Metrics of floating-point outputs, which have rounding errors. All others count predictions.
ROUNDED_CURVES = ("probability_change", "overlap", "error")
_CHUNK = 256


@dataclass(frozen=True)
class Difference(Estimate):
    """Difference between two models in one metric, first minus second, with its interval.

    Args:
        p_value: Two-sided p-value of the null hypothesis that the models do not differ.
    """

    p_value: float

    def negate(self) -> "Difference":
        """Return the difference second minus first, with the interval swapped accordingly."""
        return replace(self, value=-self.value, lower=-self.upper, upper=-self.lower)


@dataclass(frozen=True)
class Comparison:
    """Differences between two models in all metrics that both have, first minus second.

    The models were evaluated on the same images. Only shifts at which both were evaluated on all
    images are included.
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
    """Compute the differences between two models in all metrics, on the same images and shifts.

    All differences are first minus second. Each has a percentile interval from a paired bootstrap
    over the images, and a p-value from a sign-flip test.

    For shares, the bootstrap adds two artificial images: one that only the first model classifies
    correctly, and one that only the second model does. As a result, the interval has a positive
    width even if the models agree on all images. Source: Bonett and Price, "Adjusted Wald
    confidence interval for a difference of binomial proportions based on paired data", Journal of
    Educational and Behavioral Statistics 37 (2012), 479–488.

    Even exactly invariant models differ in their rounding errors. Therefore, a difference that
    rounding errors or noise could explain gets the p-value 1, and all intervals are widened by the
    size of this noise.

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
        noise: Relative difference between repeated outputs for the same images, see `noise_floor`.
        confidence: Confidence level of the intervals.
        num_resamples: Number of bootstrap resamples of the images.
        num_flips: Number of random sign flips in the test.
        seed: Seed of the resamples and sign flips.

    Raises:
        ValueError: The models were evaluated on different images, labels, shifts or movements, or
            `summarize` rejects an argument.
    """
    check_sizes({"num_flips": num_flips}, most=MAX_RESAMPLES)
    check_number("noise", noise, "a number of at least 0", low=0)
    check_instance("first", first, Responses)
    check_instance("second", second, Responses)
    check_same_images(first, second)
    pair = select_common_shifts((first, second))
    noise = max(noise, *(rounding_error_bound(responses.epsilon) for responses in pair))
    bootstrap = ImageBootstrap(first.num_images, confidence, num_resamples, seed)
    padded_bootstrap = replace(bootstrap, num_images=first.num_images + 2)
    curves = {}
    for name, metric in CURVES.items():
        tables: list[Any] = [metric.values_and_norms(responses) for responses in pair]
        if metric.is_share and all(tables):
            values = tables[0][0].astype(float) - tables[1][0]
            curves[name] = estimate_difference_curve(values, padded_bootstrap)
    numbers = {}
    for name in COMPARED_NUMBERS:
        metric = NUMBERS[name]
        if not all(map(metric.is_defined, pair)):
            continue
        values, others = (metric.values_per_image(responses) for responses in pair)
        differences = values.astype(float) - others
        if metric.is_share:
            draws = padded_bootstrap.resample_means(append_artificial_differences(differences))
            mean = estimate_from_resamples(float(differences.mean()), draws, padded_bootstrap)
        else:
            curve = CURVES[metric.curve]
            average, other = (
                average_over_images(curve.values_and_norms(each), bootstrap).average_over_shifts(
                    each.moved
                )
                for each in pair
            )
            value = float(average.values[0] - other.values[0])
            mean = estimate_from_resamples(value, (average.draws - other.draws)[:, 0], bootstrap)
        level = _difference_from_noise(metric.curve, noise)
        p_value = 1.0
        if abs(mean.value) > level:
            p_value = sign_flip_test(differences, num_flips=num_flips, seed=seed)
        margin = level if has_interval(mean.method) else 0.0
        ends = mean.lower - margin, mean.upper + margin
        numbers[name] = Difference(mean.value, *ends, confidence, mean.method, p_value)
    return Comparison(first.movement, first.num_images, pair[0].shifts, curves, numbers, confidence)


def _difference_from_noise(curve: str, noise: float) -> float:
    """Return the largest difference between two models in a metric that noise alone could cause.

    Args:
        curve: Name of the metric in `CURVES`.
        noise: Relative difference between repeated outputs for the same images.
    """
    if curve == "cosine_distance":
        return noise**2 / 2  # 1 − cosine of two unit vectors that differ by the noise
    return noise if curve in ROUNDED_CURVES else 0.0


def sign_flip_test(
    differences: Float[ndarray, " images"], *, num_flips: int = 9999, seed: int = 0
) -> float:
    """Test whether the differences between two models are due to chance, by random sign flips.

    Under the null hypothesis, each image's difference is equally likely to be positive or negative.
    The test therefore flips the signs at random n times. If the mean is at least as far from zero
    as the observed mean m times, the two-sided p-value is (1 + m) / (1 + n). For outcomes of 0 and
    1, it approximates the p-value of McNemar's exact test.

    Sources: Fisher, "The Design of Experiments", 1935; Phipson and Smyth, "Permutation p-values
    should never be zero", Statistical Applications in Genetics and Molecular Biology 9 (2010).

    Args:
        differences: Difference between the two models for each image.
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
class ModelPair:
    """Pair of models from a list of models, and the differences between the two.

    Args:
        first: Index of the first model.
        second: Index of the second model.
        comparison: Differences between the models, first minus second.
    """

    first: int
    second: int
    comparison: Comparison


@dataclass(frozen=True)
class BestModel:
    """Best of several models in one metric, and its advantage over each of the others.

    The p-values of the advantages are adjusted for all pairs of models with Holm's method. They are
    therefore valid although the best model was chosen on the same images.

    Args:
        metric: Name of the metric.
        model: Index of the best model.
        advantages: Advantage over each other model, by the index of the other model, from the
            smallest to the largest advantage.
    """

    metric: str
    model: int
    advantages: dict[int, Difference]

    @property
    def tied_models(self) -> list[int]:
        """Indices of the other models that are not significantly worse than the best model."""
        return [
            model
            for model, advantage in self.advantages.items()
            if advantage.p_value > 1 - advantage.confidence
        ]

    @property
    def worse_models(self) -> list[int]:
        """Indices of the models that are significantly worse than the best model, best first."""
        return [model for model in self.advantages if model not in self.tied_models]


def compare_all_pairs(
    responses: Sequence[Responses], *, noise: Sequence[float] | None = None, **options: Any
) -> tuple[ModelPair, ...]:
    """Compare each pair of models with `compare_responses`.

    Args:
        responses: Responses of each model to the same images and shifts.
        noise: Relative difference between repeated outputs of each model for the same images. By
            default 0.
        **options: Options of `compare_responses`, such as `confidence` and `seed`.
    """
    noise = noise or [0.0] * len(responses)
    pairs = []
    for first, second in itertools.combinations(range(len(responses)), 2):
        level = max(noise[first], noise[second])
        comparison = compare_responses(responses[first], responses[second], noise=level, **options)
        pairs.append(ModelPair(first, second, comparison))
    return tuple(pairs)


def find_best_models(pairs: Sequence[ModelPair]) -> list[BestModel]:
    """Find the best model in each metric, given the comparisons of all pairs of models.

    If some pairs are missing in a metric, its best model is unknown, and the metric is left out.
    If several models are equally good, the first of them counts as the best.
    """
    best_models = []
    for metric in COMPARED_NUMBERS:
        compared = [pair for pair in pairs if metric in pair.comparison.numbers]
        models = sorted({model for pair in compared for model in (pair.first, pair.second)})
        if not compared or len(compared) < math.comb(len(models), 2):
            continue
        differences = [pair.comparison.numbers[metric] for pair in compared]
        adjusted = holm_adjust([difference.p_value for difference in differences])
        advantages = {model: {} for model in models}
        for pair, difference, p_value in zip(compared, differences, adjusted, strict=True):
            advantage = replace(difference, p_value=p_value)
            # Higher is better for shares. Lower is better for all other metrics.
            if not NUMBERS[metric].is_share:
                advantage = advantage.negate()
            advantages[pair.first][pair.second] = advantage
            advantages[pair.second][pair.first] = advantage.negate()
        best = max(models, key=lambda model: sum(each.value for each in advantages[model].values()))
        ordered = sorted(advantages[best].items(), key=lambda item: item[1].value)
        best_models.append(BestModel(metric, best, dict(ordered)))
    return best_models


def holm_adjust(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple testing with Holm's method.

    Let p_j be the j-th smallest of m p-values. The adjusted value of p_i is
    max_{j ≤ i} min(1, (m − j + 1) p_j). Source: Holm, "A simple sequentially rejective multiple
    test procedure", Scandinavian Journal of Statistics 6 (1979), 65–70.
    """
    order = np.argsort(p_values)
    scaled = np.array(p_values)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.maximum.accumulate(scaled).clip(max=1.0)
    return adjusted.tolist()


def disagreement_mask(responses: Sequence[Responses]) -> Bool[Tensor, "shifts images"]:
    """Return a mask (S, N) of the shifts and images for which several classifiers disagree.

    With labels, they disagree if some are correct and some are wrong. Without labels, they disagree
    if they do not all predict the same class.
    """
    common = select_common_shifts(responses)
    outcomes: Any = [each.predictions if each.correct is None else each.correct for each in common]
    return (torch.stack(outcomes) != outcomes[0]).any(dim=0)
