"""Metrics with confidence intervals from the outputs of one model, or averaged over seeds."""

from collections.abc import Sequence
from statistics import stdev
from typing import Any

import torch

from teka.audit.measure.responses import Responses, check_same_images, take_common
from teka.audit.statistics import intervals
from teka.audit.statistics.bootstrap import ImageAverage, ImageResamples, average
from teka.audit.statistics.estimate import BootstrapSettings, Curve, Estimate
from teka.audit.statistics.intervals import MINIMUM_SEEDS
from teka.audit.statistics.metrics import CURVES, NUMBERS, Metrics, NumberMetric, SeedMetrics
from teka.checks import check_instance, check_sequence
from teka.errors import wrong_argument, wrong_value


def summarize(
    responses: Responses, *, confidence: float = 0.95, num_resamples: int = 1000, seed: int = 0
) -> Metrics:
    """Compute all metrics that the outputs of a model define, with intervals and bands.

    Shares of images at one shift have Wilson's interval. Shares over images and shifts have the
    BCa interval, and magnitudes such as errors that of bootstrap-t, both over images. Bands cover
    all shifts together. Shifts at which some images were not evaluated are left out, except for
    the accuracy at every shift, because a single wrong prediction decides it for an image.

    >>> import torch
    >>> from torch import nn
    >>> from teka.audit import Movement, measure_responses, square_shifts, summarize
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    >>> images = torch.rand(20, 1, 8, 8)

    >>> responses = measure_responses(model, images, square_shifts(1), Movement("circular"))
    >>> consistency = summarize(responses).numbers["consistency"]
    >>> consistency.lower <= consistency.value <= consistency.upper
    True

    Args:
        responses: Outputs of the model at all shifts.
        confidence: Confidence level of intervals and bands.
        num_resamples: Number of bootstrap resamples of the images.
        seed: Seed of the resamples.

    Raises:
        ValueError: Some images were not evaluated at the zero shift, `confidence` is not between
            0 and 1, or `num_resamples` is too small.
    """
    check_instance("responses", responses, Responses)
    settings = BootstrapSettings(confidence, num_resamples, seed)
    complete = responses.take_complete()
    resamples = ImageResamples(complete.num_images, settings)
    curves: dict[str, Curve] = {}
    averages: dict[str, ImageAverage] = {}
    for name, metric in CURVES.items():
        table = metric.table(complete)
        if table is None:
            continue
        if table[0].dtype == torch.bool:
            curves[name] = intervals.share_curve(table[0], settings, known=metric.known(complete))
        elif metric.is_share:
            curves[name] = intervals.mean_share_curve(
                average(1 - table[0], resamples), resamples, confidence
            )
        else:
            magnitude = average(table[0], resamples, table[1])
            curves[name] = intervals.magnitude_curve(
                magnitude, resamples, confidence, metric.power, metric.largest
            )
            averages[name] = magnitude.square_root() if metric.is_ratio else magnitude

    def estimated(metric: NumberMetric) -> Estimate:
        if metric.is_extreme:
            return intervals.extreme_of(curves[metric.curve], metric.over, confidence)
        if not metric.is_share:
            mean = _mean_over_shifts(complete, averages[metric.curve])
            largest = CURVES[metric.curve].largest
            return intervals.estimate_magnitudes(mean, resamples, confidence, largest)[0]
        values, weights = metric.of_images(responses if metric.over == "every" else complete)
        if values.dtype == torch.bool:
            ends = intervals.wilson_interval(int(values.sum()), len(values), confidence)
            return Estimate(float(values.double().mean()), *ends, confidence, intervals.WILSON)
        # Images that are correct without a shift are a sample of their own.
        chosen = values if weights is None else values[weights > 0]
        drawn = resamples if weights is None else ImageResamples(len(chosen), settings)
        return intervals.estimate_mean_share(average(chosen[None], drawn), confidence)

    defined = {
        name: metric
        for name, metric in NUMBERS.items()
        if metric.curve in curves and metric.has_cases(complete)
    }
    numbers = {name: estimated(metric) for name, metric in defined.items()}
    return _metrics(responses, complete, curves, numbers, confidence)


def summarize_seeds(
    responses: Sequence[Responses],
    *,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
) -> SeedMetrics:
    """Average all metrics over training seeds, with intervals for other seeds and images.

    `teka.audit.statistics.intervals.two_level_curve` has the formulas. With fewer than 3 seeds
    the intervals only cover other images, and the result has a warning.

    >>> import torch
    >>> from torch import nn
    >>> from teka.audit import Movement, measure_responses, square_shifts, summarize_seeds
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    >>> images = torch.rand(20, 1, 8, 8)

    >>> shifts = square_shifts(1)
    >>> runs = [measure_responses(model, images, shifts, Movement("zero")) for _ in range(3)]
    >>> summarize_seeds(runs).num_seeds
    3

    Args:
        responses: Outputs of the model of each seed on the same images and shifts.
        confidence: Confidence level of intervals and bands.
        num_resamples: Number of bootstrap resamples of the images.
        seed: Seed of the resamples.

    Raises:
        ValueError: `responses` is empty, the images, labels, shifts, movements or kinds of output
            differ between seeds, or `summarize` rejects an argument.
    """
    settings = BootstrapSettings(confidence, num_resamples, seed)
    responses = check_sequence("responses", responses, "a list of responses")
    if not responses:
        raise wrong_argument("responses", "no seed", "the responses of one seed or more")
    for each in responses:
        check_instance("responses", each, Responses)
    for index, other in enumerate(responses):
        check_same_images(f"responses[{index}]", responses[0], other)
        if other.output != responses[0].output:
            raise wrong_value(
                f"responses[{index}].output",
                other.output,
                f"{responses[0].output!r} as for the first seed",
            )
    common = take_common(responses)
    resamples = ImageResamples(common[0].num_images, settings)
    curves: dict[str, Curve] = {}
    averages: dict[str, list[ImageAverage]] = {}
    for name, metric in CURVES.items():
        tables = [table for each in common if (table := metric.table(each)) is not None]
        if len(tables) == len(common):
            by_seed_averages = [average(values, resamples, norms) for values, norms in tables]
            if metric.is_ratio:
                by_seed_averages = [each.square_root() for each in by_seed_averages]
            averages[name] = by_seed_averages
            known = metric.known(common[0])
            curves[name] = intervals.two_level_curve(
                by_seed_averages, settings, largest=metric.largest, known=known
            )
    numbers: dict[str, Estimate] = {}
    by_seed: dict[str, tuple[float, ...]] = {}
    for name, metric in NUMBERS.items():
        if metric.curve in curves and all(metric.has_cases(each) for each in common):
            pairs = zip(common, averages[metric.curve], strict=True)
            of_seeds = [average_of(metric, each, resamples, curve) for each, curve in pairs]
            line = intervals.two_level_curve(
                of_seeds, settings, largest=CURVES[metric.curve].largest
            )
            numbers[name] = Estimate(
                line.values[0], line.lower[0], line.upper[0], confidence, line.method
            )
            by_seed[name] = tuple(each.values.item() for each in of_seeds)
    deviations = {name: stdev(values) for name, values in by_seed.items() if len(values) > 1}
    few_seeds = (
        f"{len(responses)} of at least {MINIMUM_SEEDS} seeds: "
        "intervals are for these seeds and other images"
    )
    metrics = _metrics(responses[0], common[0], curves, numbers, confidence)
    return SeedMetrics(
        len(responses),
        metrics,
        by_seed,
        deviations,
        few_seeds if len(responses) < MINIMUM_SEEDS else None,
    )


def average_of(
    metric: NumberMetric, responses: Responses, drawn: ImageResamples, curve: ImageAverage
) -> ImageAverage:
    """Return the average of one metric over images, with its bootstrap draws, as one row.

    Args:
        metric: The metric.
        responses: Outputs of a model.
        drawn: Bootstrap resamples of the images.
        curve: Averages of the metric's curve at each shift.
    """
    if metric.is_extreme:
        end = torch.min if metric.over == "lowest" else torch.max
        value, row = end(curve.values[None], dim=1)
        return ImageAverage(
            value, curve.influence[row], end(curve.draws, dim=1, keepdim=True).values
        )
    if not metric.is_share:
        return _mean_over_shifts(responses, curve)
    values, weights = metric.of_images(responses)
    if weights is None:
        return average(values[None], drawn)
    return average((values * weights)[None], drawn, weights[None])


def _mean_over_shifts(responses: Responses, curve: ImageAverage) -> ImageAverage:
    """Return the mean of a curve over all shifts except zero."""
    weights = torch.zeros(1, len(responses.shifts), dtype=torch.float64)
    weights[0, responses.moved] = 1 / len(responses.moved)
    return curve.combine(weights)


def _metrics(responses: Responses, complete: Responses, *results: Any) -> Metrics:
    shifts = set(complete.shifts)
    skipped = tuple(shift for shift in responses.shifts if shift not in shifts)
    measured = responses.movement, responses.output, responses.num_images, complete.shifts, skipped
    return Metrics(*measured, *results, epsilon=responses.epsilon)
