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
from teka.audit.statistics.metrics import CURVES, NUMBERS, average
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


@dataclass(frozen=True)
class Comparison:
    """Differences between two models (first minus second) on the same images.

    Only shifts at which both models were evaluated on all images are compared, and only metrics
    that are defined for both models.
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
    for argument, responses in (("first", first), ("second", second)):
        check_instance(argument, responses, Responses)
    check_same_images("second", first, second)
    pair = take_common((first, second))
    noise = max(noise, *(rounding_bound(responses.epsilon) for responses in pair))
    bootstrap = ImageBootstrap(first.num_images, settings)
    padded_bootstrap = ImageBootstrap(first.num_images + 2, settings)
    curves: dict[str, Curve] = {}
    for name, metric in CURVES.items():
        tables = [metric.table(responses) for responses in pair]
        if metric.is_share and tables[0] is not None and tables[1] is not None:
            values = tables[0][0].astype(float) - tables[1][0]
            curves[name] = difference_curve(values, padded_bootstrap)
    numbers: dict[str, Difference] = {}
    for name in COMPARED_NUMBERS:
        metric = NUMBERS[name]
        if not all(map(metric.is_defined, pair)):
            continue
        values, others = (metric.of_images(responses) for responses in pair)
        differences = values.astype(float) - others
        if metric.is_share:
            draws = padded_bootstrap.means(add_two_images(differences))
            found = estimate_mean(float(differences.mean()), draws, padded_bootstrap)
        else:
            mean, other = (
                average(CURVES[metric.curve], each, bootstrap).mean_over(each.moved)
                for each in pair
            )
            value = float(mean.values[0] - other.values[0])
            found = estimate_mean(value, (mean.draws - other.draws)[:, 0], bootstrap)
        level = _noise_level(metric.curve, noise)
        p_value = 1.0
        if abs(found.value) > level:
            p_value = sign_flip_test(differences, num_flips=num_flips, seed=seed)
        margin = level if has_interval(found.method) else 0.0
        ends = found.lower - margin, found.upper + margin
        numbers[name] = Difference(found.value, *ends, confidence, found.method, p_value)
    return Comparison(first.movement, first.num_images, pair[0].shifts, curves, numbers, confidence)


def _noise_level(curve: str, noise: float) -> float:
    """Return the largest difference of a metric that noise of the outputs explains.

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
    """Return the two-sided p-value of the hypothesis that paired differences have mean zero.

    The signs of the images are flipped at random. The p-value is
    (1 + number of flips with |mean| at least as large as observed) / (1 + number of flips).
    For outcomes 0 and 1 it estimates the exact p-value of McNemar's test. Sources: Fisher, "The
    Design of Experiments", 1935; Phipson and Smyth, "Permutation p-values should never be zero",
    Statistical Applications in Genetics and Molecular Biology 9 (2010).

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
    """Comparison of two models, given by their indices, as first minus second."""

    first: int
    second: int
    comparison: Comparison


@dataclass(frozen=True)
class Lead:
    """Best model for one metric, and its advantage over each other model.

    The p-values are adjusted with Holm's method over all pairs of models. They are valid although
    the best model was chosen on the same images.

    Args:
        number: Name of the metric.
        best: Index of the best model.
        over: Advantage over each other model, by the model's index, from the smallest to the
            largest advantage.
    """

    number: str
    best: int
    over: dict[int, Difference]

    @property
    def tied(self) -> list[int]:
        """Indices of models that are not significantly worse than the best."""
        return [
            model
            for model, difference in self.over.items()
            if difference.p_value > 1 - difference.confidence
        ]

    @property
    def beaten(self) -> list[int]:
        """Indices of models that are significantly worse, from the closest to the farthest."""
        return [model for model in self.over if model not in self.tied]


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


def find_leads(pairs: Sequence[Pair]) -> list[Lead]:
    """Find the best model for each metric, in the order of `NUMBERS`.

    Among equally good models, the first one is the best. A model for which a metric is not defined
    is left out for this metric.
    """
    leads = []
    for number in COMPARED_NUMBERS:
        differences = {
            (pair.first, pair.second): pair.comparison.numbers[number]
            for pair in pairs
            if number in pair.comparison.numbers
        }
        models = sorted({model for indices in differences for model in indices})
        if not differences or len(differences) < math.comb(len(models), 2):
            continue
        adjusted = holm_adjust([each.p_value for each in differences.values()])
        better: dict[tuple[int, int], Difference] = {}
        for ((first, second), unadjusted), p_value in zip(
            differences.items(), adjusted, strict=True
        ):
            forward = replace(unadjusted, p_value=p_value)
            backward = replace(
                forward, value=-forward.value, lower=-forward.upper, upper=-forward.lower
            )
            # Higher is better for shares. Lower is better for all other metrics.
            is_share = NUMBERS[number].is_share
            better[first, second] = forward if is_share else backward
            better[second, first] = backward if is_share else forward
        best = max(
            models,
            key=lambda model: sum(better[model, other].value for other in models if other != model),
        )
        over = {other: better[best, other] for other in models if other != best}
        leads.append(Lead(number, best, dict(sorted(over.items(), key=lambda item: item[1].value))))
    return leads


def holm_adjust(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple tests by Holm's method.

    The i-th of m p-values in ascending order becomes max_{j ≤ i} min(1, (m − j + 1) p_(j)).
    Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
    Statistics 6 (1979), 65–70.
    """
    order = np.argsort(p_values)
    scaled = np.array(p_values)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.maximum.accumulate(scaled).clip(max=1.0)
    return adjusted.tolist()


def disagreement(responses: Sequence[Responses]) -> Bool[Tensor, "shifts images"]:
    """Return a mask of the shifts and images for which classifiers disagree.

    With labels, models disagree if some are correct and some are wrong. Without labels, they
    disagree if they do not all predict the same class.
    """
    common = take_common(responses)
    outcomes = [each.predictions if each.correct is None else each.correct for each in common]
    answers = torch.stack([outcome for outcome in outcomes if outcome is not None])
    return (answers != answers[0]).any(dim=0)
