"""Metrics with confidence intervals from the outputs of one model."""

import numpy as np

from teka.audit.measure.responses import Responses
from teka.audit.statistics.intervals import (
    BootstrapSettings,
    Curve,
    Estimate,
    ImageAverage,
    ImageBootstrap,
    estimate,
    estimate_extreme,
    estimate_share,
    mean_curve,
    share_curve,
)
from teka.audit.statistics.metrics import CURVES, NUMBERS, CurveMetric, Metrics
from teka.checks import check_instance


def summarize(
    responses: Responses, *, confidence: float = 0.95, num_resamples: int = 1000, seed: int = 0
) -> Metrics:
    """Compute all metrics that the outputs of a model define, with intervals and bands.

    Shares of images have Wilson's interval. Averages have the interval of a bootstrap over images.
    Bands cover all shifts together. Shifts at which some images were not evaluated are left out.

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
    bootstrap = ImageBootstrap(responses.num_images, settings)
    complete = responses.take_complete()
    curves: dict[str, Curve] = {}
    averages: dict[str, ImageAverage] = {}
    for name, metric in CURVES.items():
        table = metric.table(complete)
        if table is None:
            continue
        if table[0].dtype == bool:
            known = complete.zero if metric.is_one_at_zero else None
            curves[name] = share_curve(table[0], bootstrap, known)
        else:
            averages[name] = average(metric, complete, bootstrap)
            curves[name] = mean_curve(averages[name], bootstrap, is_share=metric.is_share)
    numbers: dict[str, Estimate] = {}
    for name, metric in NUMBERS.items():
        if not metric.is_defined(complete):
            continue
        if metric.over in ("lowest", "highest"):
            numbers[name] = estimate_extreme(curves[metric.curve], metric.over, confidence)
        elif not metric.is_share:
            mean = mean_curve(averages[metric.curve].mean_over(complete.moved), bootstrap)
            ends = mean.lower[0], mean.upper[0]
            numbers[name] = estimate(mean.values[0], ends, confidence, mean.method)
        else:
            numbers[name] = estimate_share(metric.of_images(complete), bootstrap)
    return Metrics(
        responses.movement,
        responses.output,
        responses.num_images,
        complete.shifts,
        tuple(shift for shift in responses.shifts if shift not in set(complete.shifts)),
        curves,
        numbers,
        confidence,
        epsilon=responses.epsilon,
    )


def average(metric: CurveMetric, responses: Responses, bootstrap: ImageBootstrap) -> ImageAverage:
    """Return the average of a metric over images at each shift.

    A resample in which all norms of a ratio are 0 is replaced by the sample of all images.
    """
    table = metric.table(responses)
    assert table is not None
    values = table[0].astype(float)
    norms = table[1]
    means = values.mean(axis=1)
    draws = bootstrap.means(values)
    if norms is None:
        return ImageAverage(means, draws, values - means[:, None])
    scale = norms.mean(axis=1)
    scales = bootstrap.means(norms)
    ratios = means / scale
    draws = np.where(scales > 0, draws / np.where(scales > 0, scales, 1.0), ratios)
    roots = np.sqrt(ratios)
    influence = (values - ratios[:, None] * norms) / scale[:, None]
    # The derivative of √r is 1 / 2√r. If r is 0, no image has an error.
    influence /= 2 * np.where(roots > 0, roots, 1.0)[:, None]
    return ImageAverage(roots, np.sqrt(draws), influence)
