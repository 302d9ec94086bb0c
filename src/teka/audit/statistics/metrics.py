"""Metrics of an audit, such as accuracy and consistency, with confidence intervals."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from teka.audit.measure.responses import SINGLE_PRECISION, Responses
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShifts
from teka.audit.statistics.intervals import (
    BootstrapAverage,
    Curve,
    Estimate,
    ImageBootstrap,
    create_estimate,
    estimate_extreme,
    estimate_mean_curve,
    estimate_share,
    estimate_share_curve,
)
from teka.checks import check_instance
from teka.precision import rounding_error_bound


@dataclass(frozen=True)
class CurveMetric:
    """Metric that has a value at every shift, such as the accuracy.

    The value is a mean over the images. The relative error is an exception: it is the ratio
    √(Σ error / Σ norm) of two sums over the images.

    Args:
        label: Short name in tables and charts.
        read: Function that takes `Responses` and returns the values of all images at all shifts, an
            array (S, N). For a ratio, it returns two arrays: errors and norms. If the model's
            outputs do not define the metric, it returns None.
        is_share: Whether the values are shares. Shares lie within [0, 1], are shown in percent, and
            are better if they are higher.
        is_one_at_zero: Whether a metric that counts images is 1 at the zero shift by definition.
    """

    label: str
    read: Callable[[Responses], Any]
    is_share: bool = False
    is_one_at_zero: bool = False

    def values_and_norms(self, responses: Responses) -> tuple[ndarray, ndarray | None] | None:
        """Return the value of each image at each shift, and the norm by which it is divided.

        Both are arrays (S, N). The norms are None unless the metric is a ratio. The result is None
        if the model's outputs do not define the metric.
        """
        values = self.read(responses)
        if values is None:
            return None
        if isinstance(values, tuple):
            return values[0].numpy(), values[1].numpy()
        return values.numpy(), None


@dataclass(frozen=True)
class SummaryMetric:
    """Metric that summarizes the values of a `CurveMetric` at all shifts in one number.

    Args:
        label: Short name in tables.
        meaning: Short explanation.
        curve: Name of the summarized metric in `CURVES`.
        over: Method of the summary:

            - "zero" for the value at the zero shift
            - "lowest" or "highest" for the lowest or highest value at any shift
            - "every" for the share of images that are successes at every shift
            - "mean" for the mean over all nonzero shifts
            - "correct" for the same mean, over the images that are classified correctly unshifted
    """

    label: str
    meaning: str
    curve: str
    over: str

    @property
    def is_share(self) -> bool:
        """True if the metric is a share of images or shifts, which is displayed in percent."""
        return CURVES[self.curve].is_share

    def is_defined(self, responses: Responses) -> bool:
        """Return True if the model's outputs define the metric."""
        if self.over == "correct":
            is_correct = responses.correct
            if is_correct is None or not is_correct[responses.zero].any():
                return False
        has_shifts = bool(responses.moved) or self.over in ("zero", "lowest", "every")
        return has_shifts and CURVES[self.curve].read(responses) is not None

    def values_per_image(self, responses: Responses) -> ndarray:
        """Return the value of each image, such as its share of shifts with the same prediction.

        If the metric is a share, the mean of these values is the metric. For the summary "correct",
        only images that are classified correctly without a shift have a value. The summaries
        "lowest" and "highest" are not supported, because they are not means over images.
        """
        values: Any = CURVES[self.curve].values_and_norms(responses)
        table, norms = values
        if norms is not None:
            table = np.sqrt(table / norms.mean(axis=1, keepdims=True))
        if self.over == "every":
            return table.all(axis=0)
        if self.over == "zero":
            return table[responses.zero]
        means = table[responses.moved].astype(np.float64).mean(axis=0)
        if self.over == "correct":
            assert responses.correct is not None
            return means[responses.correct[responses.zero].numpy()]
        return means


_OVERLAP = "intersection over union with the shifted output for the original image"
_ERROR = "‖f(Tₛx) − Tₛf(x)‖ / ‖Tₛf(x)‖ for the model f and a shift Tₛ of the images x"

CURVES = {
    "accuracy": CurveMetric("accuracy (%)", lambda r: r.correct, is_share=True),
    "agreement": CurveMetric(
        "same prediction as unshifted (%)",
        lambda r: r.agreement,
        is_share=True,
        is_one_at_zero=True,
    ),
    "probability_change": CurveMetric("mean |Δp|", lambda r: r.probability_change),
    "overlap": CurveMetric("IoU (%)", lambda r: r.overlap, is_share=True),
    "retrieval": CurveMetric(
        "nearest to itself (%)",
        lambda r: None if r.rank is None else r.rank == 1,
        is_share=True,
        is_one_at_zero=True,
    ),
    "cosine_distance": CurveMetric("1 − cosine", lambda r: r.cosine_distance),
    "error": CurveMetric("relative error", lambda r: r.errors),
}
"""Metrics that have a value at every shift. The keys are their names in saved reports."""

NUMBERS = {
    "accuracy": SummaryMetric(
        "unshifted", "share of unshifted images that are classified correctly", "accuracy", "zero"
    ),
    "minimum_accuracy": SummaryMetric(
        "worst shift",
        "share of images classified correctly at the shift with the lowest accuracy",
        "accuracy",
        "lowest",
    ),
    "worst_shift_accuracy": SummaryMetric(
        "every shift", "share of images classified correctly at every shift", "accuracy", "every"
    ),
    "consistency": SummaryMetric(
        "consistency",
        "share of shifted images with the same prediction as the unshifted image",
        "agreement",
        "mean",
    ),
    "consistency_when_correct": SummaryMetric(
        "consistency when correct",
        "consistency of the images that are classified correctly without a shift",
        "agreement",
        "correct",
    ),
    "probability_change": SummaryMetric(
        "mean |Δp|",
        "mean change of the probability of the class that is predicted without a shift",
        "probability_change",
        "mean",
    ),
    "overlap": SummaryMetric(
        "mean IoU", f"{_OVERLAP}, averaged over the shifts", "overlap", "mean"
    ),
    "minimum_overlap": SummaryMetric(
        "IoU at the worst shift",
        f"{_OVERLAP}, averaged over the images, at the worst shift",
        "overlap",
        "lowest",
    ),
    "retrieval": SummaryMetric(
        "nearest to itself",
        "share of shifted images whose features are nearest to those of their unshifted version",
        "retrieval",
        "mean",
    ),
    "cosine_distance": SummaryMetric(
        "1 − cosine",
        "mean cosine distance between the features of an image with and without a shift",
        "cosine_distance",
        "mean",
    ),
    "mean_error": SummaryMetric(
        "mean error", f"relative error {_ERROR}, averaged over the shifts", "error", "mean"
    ),
    "maximum_error": SummaryMetric(
        "largest error", f"relative error {_ERROR}, at the worst shift", "error", "highest"
    ),
}
"""Metrics that summarize all shifts in one number. The keys are their names in saved reports.

Means over shifts do not include the zero shift.
"""


@dataclass(frozen=True)
class Metrics:
    """All metrics of a model in one mode of shifting, with confidence intervals.

    Only metrics that suit the kind of the model's output are present. Only shifts at which the
    model was evaluated on all images are included.

    Args:
        movement: How the images were shifted.
        output: Kind of the model's output.
        num_images: Number of images.
        shifts: Shifts at which all images were evaluated.
        skipped_shifts: Shifts at which some images were not evaluated.
        curves: Metrics that have a value at every shift, by their names in `CURVES`.
        numbers: Metrics that are one number, by their names in `NUMBERS`.
        confidence: Confidence level of the intervals.
        epsilon: Machine epsilon of the outputs.
    """

    movement: Movement
    output: str
    num_images: int
    shifts: CheckedShifts
    skipped_shifts: CheckedShifts
    curves: dict[str, Curve]
    numbers: dict[str, Estimate]
    confidence: float
    epsilon: float = SINGLE_PRECISION

    @property
    def is_exact(self) -> bool:
        """True if the model is equivariant or invariant up to the rounding errors of its dtype."""
        largest = self.numbers.get("maximum_error")
        return largest is not None and largest.value <= rounding_error_bound(self.epsilon)


def summarize(
    responses: Responses, *, confidence: float = 0.95, num_resamples: int = 1000, seed: int = 0
) -> Metrics:
    """Compute the metrics of a model, such as accuracy and consistency, with confidence intervals.

    The kind of the model's output determines which metrics exist. Shares of images have Wilson
    intervals, and averages have bootstrap intervals over the images. Metrics that have a value at
    every shift also have a confidence band that covers the values at all shifts. Shifts at which
    some images were not evaluated are left out.

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
        responses: Errors and predictions of the model at all shifts, from `measure_responses`.
        confidence: Confidence level of intervals and bands.
        num_resamples: Number of bootstrap resamples of the images.
        seed: Seed of the resamples.

    Raises:
        ValueError: Some images were not evaluated at the zero shift, `confidence` is not between
            0 and 1, or `num_resamples` is too small.
    """
    check_instance("responses", responses, Responses)
    bootstrap = ImageBootstrap(responses.num_images, confidence, num_resamples, seed)
    complete = responses.select_complete_shifts()
    curves = {}
    averages = {}
    for name, metric in CURVES.items():
        table = metric.values_and_norms(complete)
        if table is None:
            continue
        if table[0].dtype == bool:
            known = complete.zero if metric.is_one_at_zero else None
            curves[name] = estimate_share_curve(table[0], bootstrap, known)
        else:
            averages[name] = average_over_images(table, bootstrap)
            curves[name] = estimate_mean_curve(averages[name], bootstrap, is_share=metric.is_share)
    numbers = {}
    for name, metric in NUMBERS.items():
        if not metric.is_defined(complete):
            continue
        if metric.over in ("lowest", "highest"):
            numbers[name] = estimate_extreme(curves[metric.curve], metric.over, confidence)
        elif not metric.is_share:
            average = averages[metric.curve].average_over_shifts(complete.moved)
            mean = estimate_mean_curve(average, bootstrap)
            ends = mean.lower[0], mean.upper[0]
            numbers[name] = create_estimate(mean.values[0], ends, confidence, mean.method)
        else:
            numbers[name] = estimate_share(metric.values_per_image(complete), bootstrap)
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


def average_over_images(values_and_norms: Any, bootstrap: ImageBootstrap) -> BootstrapAverage:
    """Average a metric over all images and over the images of each resample, at each shift.

    If all norms in a resample are 0, a ratio is undefined, and the ratio over all images is used
    instead.

    Args:
        values_and_norms: Values and norms of all images, from `CurveMetric.values_and_norms`.
        bootstrap: Bootstrap over the images.
    """
    values, norms = values_and_norms
    values = values.astype(float)
    means = values.mean(axis=1)
    draws = bootstrap.resample_means(values)
    if norms is None:
        return BootstrapAverage(means, draws, values - means[:, None])
    scale = norms.mean(axis=1)
    scales = bootstrap.resample_means(norms)
    ratios = means / scale
    draws = np.where(scales > 0, draws / np.where(scales > 0, scales, 1.0), ratios)
    roots = np.sqrt(ratios)
    influence = (values - ratios[:, None] * norms) / scale[:, None]
    # The derivative of √r is 1 / 2√r. If r is 0, no image has an error.
    influence /= 2 * np.where(roots > 0, roots, 1.0)[:, None]
    return BootstrapAverage(roots, np.sqrt(draws), influence)
