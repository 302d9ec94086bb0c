"""From what a model answered to every number of an audit, with intervals."""

import sys
from dataclasses import replace

import torch

from teka.audit.measure.responses import Responses
from teka.audit.statistics.estimate import BootstrapSettings, Curve, Estimate
from teka.audit.statistics.image_average import average, average_ratio, square_root
from teka.audit.statistics.image_values import agreement, errors, moved_rows, right_at_every_shift
from teka.audit.statistics.intervals import (
    estimate_magnitude,
    estimate_mean_share,
    estimate_share,
    highest_of,
    lowest_of,
    magnitude_curve,
    share_curve,
)
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.resampling import ImageResamples

_Parts = tuple[dict[str, Curve], dict[str, Estimate]]


def summarize(responses: Responses, *, confidence: float = 0.95, num_resamples: int = 1000, seed: int = 0) -> Metrics:
    """Every number that the responses define, with intervals and bands; `Metrics` says what each is.

    Shares of images at one shift have Wilson's interval; averages over images or shifts have the BCa interval of a
    bootstrap over images; bands hold at all shifts together. Shifts at which not every image was evaluated are left
    out, but for the worst-shift accuracy: one wrong answer decides an image.

    Args:
        responses: What the model answered, complete at the zero shift.
        confidence: Of every interval and every band, between 0 and 1.
        num_resamples: Resamples of the bootstrap.
        seed: Their seed.

    Raises:
        ValueError: Responses that are not complete at the zero shift, a confidence outside (0, 1), or too few resamples
            for it.
    """
    settings = BootstrapSettings(confidence, num_resamples, seed)
    complete = responses.take_complete()
    resamples = ImageResamples(complete.num_images, settings)
    curves: dict[str, Curve] = {}
    numbers: dict[str, Estimate] = {}
    for more_curves, more_numbers in (
        _rightness(responses, complete, resamples, settings),
        _stability(complete, resamples, settings),
        _error(complete, resamples, settings),
    ):
        curves.update(more_curves)
        numbers.update(more_numbers)
    skipped = (shift for shift, done in zip(responses.shifts, responses.complete.tolist(), strict=True) if not done)
    return Metrics(
        responses.movement,
        responses.output,
        responses.num_images,
        complete.shifts,
        tuple(skipped),
        curves,
        numbers,
        confidence,
    )


def _rightness(
    responses: Responses, complete: Responses, resamples: ImageResamples, settings: BootstrapSettings
) -> _Parts:
    """What needs labels: accuracy and loss."""
    curves: dict[str, Curve] = {}
    numbers: dict[str, Estimate] = {}
    if complete.correct is not None:
        curves["accuracy"] = share_curve(complete.correct, settings)
        numbers["accuracy"] = estimate_share(complete.correct[complete.zero], settings.confidence)
        numbers["minimum_accuracy"] = lowest_of(curves["accuracy"], settings.confidence)
        numbers["worst_shift_accuracy"] = estimate_share(right_at_every_shift(responses), settings.confidence)
    if complete.loss is not None:
        curves["loss"] = magnitude_curve(
            average(complete.loss.to(torch.float64), resamples), resamples, settings.confidence
        )
    return curves, numbers


def _stability(complete: Responses, resamples: ImageResamples, settings: BootstrapSettings) -> _Parts:
    """What compares the answers at a shift with those without."""
    curves: dict[str, Curve] = {}
    numbers: dict[str, Estimate] = {}
    moved = moved_rows(complete)
    if complete.predictions is not None:
        agrees = agreement(complete)
        curves["agreement"] = share_curve(agrees, settings, known=complete.zero)
        if moved:
            shares = agrees[moved].to(torch.float64).mean(dim=0)
            consistency = estimate_mean_share(average(shares[None], resamples), settings.confidence)
            numbers["consistency"] = consistency
            numbers["flip_rate"] = replace(
                consistency, value=1 - consistency.value, lower=1 - consistency.upper, upper=1 - consistency.lower
            )
            right = complete.correct[complete.zero] if complete.correct is not None else None
            if right is not None and bool(right.any()):
                # Images that are right unmoved are a sample of all such images, and are resampled among themselves.
                of_right = average(shares[right][None], ImageResamples(int(right.sum()), settings))
                numbers["consistency_when_right"] = estimate_mean_share(of_right, settings.confidence)
    for name, table, largest in (
        ("probability_change", complete.probability_change, 1.0),
        ("divergence", complete.divergence, sys.float_info.max),
    ):
        if table is not None:
            values = table.to(torch.float64)
            curves[name] = magnitude_curve(average(values, resamples), resamples, settings.confidence, largest=largest)
            if moved:
                mean = average(values[moved].mean(dim=0)[None], resamples)
                numbers[name] = estimate_magnitude(mean, settings.confidence)
    return curves, numbers


def _error(complete: Responses, resamples: ImageResamples, settings: BootstrapSettings) -> _Parts:
    """How far the outputs are from moving along, or from staying."""
    squares = errors(complete)
    if squares is None:
        return {}, {}
    square = average_ratio(*squares, resamples)
    curve = magnitude_curve(square, resamples, settings.confidence, power=0.5)
    moved = moved_rows(complete)
    if not moved:
        return {"error": curve}, {}
    weights = torch.zeros(1, len(complete.shifts), dtype=torch.float64)
    weights[0, moved] = 1 / len(moved)
    mean = estimate_magnitude(square_root(square).combine(weights), settings.confidence)
    return {"error": curve}, {"mean_error": mean, "maximum_error": highest_of(curve, settings.confidence)}
