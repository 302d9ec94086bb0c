"""From what models answered to every number of an audit, with intervals: of one model, and over seeds."""

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
    """Every number that the responses define, with intervals and bands of a confidence; `Metrics` says what each is.

    Shares of images at one shift have Wilson's interval; shares over images and shifts the BCa interval and magnitudes
    that of bootstrap-t, over images, of so many resamples drawn by the seed; bands hold at all shifts together. Shifts
    at which not every image was evaluated are left out, but for the worst-shift accuracy: one wrong answer decides an
    image.

    Raises:
        ValueError: Responses that are not complete at the zero shift, a confidence outside (0, 1), too few resamples.
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
            found = average(table[0], resamples, table[1])
            curves[name] = intervals.magnitude_curve(
                found, resamples, confidence, metric.power, metric.largest
            )
            averages[name] = found.square_root() if metric.is_ratio else found

    def estimated(metric: NumberMetric) -> Estimate:
        if metric.is_extreme:
            return intervals.extreme_of(curves[metric.curve], metric.over, confidence)
        if not metric.is_share:
            mean, largest = (
                _mean_over_shifts(complete, averages[metric.curve]),
                CURVES[metric.curve].largest,
            )
            return intervals.estimate_magnitudes(mean, resamples, confidence, largest)[0]
        values, weights = metric.of_images(responses if metric.over == "every" else complete)
        if values.dtype == torch.bool:
            ends = intervals.wilson_interval(int(values.sum()), len(values), confidence)
            return Estimate(float(values.double().mean()), *ends, confidence, intervals.WILSON)
        # Images that are correct unshifted are a sample of all such images, and are resampled among themselves.
        chosen = values if weights is None else values[weights > 0]
        drawn = resamples if weights is None else ImageResamples(len(chosen), settings)
        return intervals.estimate_mean_share(average(chosen[None], drawn), confidence)

    defined = {
        name: one
        for name, one in NUMBERS.items()
        if one.curve in curves and one.has_cases(complete)
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
    """Average every number over seeds, with intervals for what other seeds and other images would give.

    `teka.audit.statistics.intervals.two_level_curve` has the formulae. With fewer than 3 seeds the intervals are for
    these seeds and other images, and a warning says so. The other arguments are as of `summarize`.

    Raises:
        ValueError: No responses; other images, labels, shifts, movement or output for one seed; or as of `summarize`.
    """
    settings = BootstrapSettings(confidence, num_resamples, seed)
    responses = check_sequence("responses", responses, "a list of responses")
    if not responses:
        raise wrong_argument("responses", "no seed", "the responses of one seed or more")
    for one in responses:
        check_instance("responses", one, Responses)
    for index, other in enumerate(responses):
        check_same_images(f"responses[{index}]", responses[0], other)
        if other.output != responses[0].output:
            raise wrong_value(
                f"responses[{index}].output",
                other.output,
                f"that of the first, {responses[0].output!r}",
            )
    common = take_common(responses)
    resamples = ImageResamples(common[0].num_images, settings)
    curves: dict[str, Curve] = {}
    averages: dict[str, list[ImageAverage]] = {}
    for name, metric in CURVES.items():
        tables = [table for each in common if (table := metric.table(each)) is not None]
        if len(tables) == len(common):
            found = [average(values, resamples, norms) for values, norms in tables]
            averages[name] = found = (
                [each.square_root() for each in found] if metric.is_ratio else found
            )
            known = metric.known(common[0])
            curves[name] = intervals.two_level_curve(
                found, settings, largest=metric.largest, known=known
            )
    numbers: dict[str, Estimate] = {}
    by_seed: dict[str, tuple[float, ...]] = {}
    for name, metric in NUMBERS.items():
        if metric.curve in curves and all(metric.has_cases(each) for each in common):
            pairs = zip(common, averages[metric.curve], strict=True)
            found = [average_of(metric, each, resamples, curve) for each, curve in pairs]
            line = intervals.two_level_curve(found, settings, largest=CURVES[metric.curve].largest)
            numbers[name] = Estimate(
                line.values[0], line.lower[0], line.upper[0], confidence, line.method
            )
            by_seed[name] = tuple(each.values.item() for each in found)
    deviations = {name: stdev(values) for name, values in by_seed.items() if len(values) > 1}
    few = f"{len(responses)} of at least {MINIMUM_SEEDS} seeds: intervals are for these seeds and other images"
    metrics = _metrics(responses[0], common[0], curves, numbers, confidence)
    return SeedMetrics(
        len(responses),
        metrics,
        by_seed,
        deviations,
        few if len(responses) < MINIMUM_SEEDS else None,
    )


def average_of(
    metric: NumberMetric, responses: Responses, drawn: ImageResamples, curve: ImageAverage
) -> ImageAverage:
    """A number that the responses define, of one row, with its draws; `curve` is the average that it is made of."""
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
    """The mean of a curve over all shifts but zero."""
    weights = torch.zeros(1, len(responses.shifts), dtype=torch.float64)
    weights[0, responses.moved] = 1 / len(responses.moved)
    return curve.combine(weights)


def _metrics(responses: Responses, complete: Responses, *found: Any) -> Metrics:
    done = set(complete.shifts)
    skipped = tuple(shift for shift in responses.shifts if shift not in done)
    measured = responses.movement, responses.output, responses.num_images, complete.shifts, skipped
    return Metrics(*measured, *found, epsilon=responses.epsilon)
