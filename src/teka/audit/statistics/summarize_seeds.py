"""From what models of several seeds answered to numbers with intervals for other seeds and other images."""

import sys
from collections.abc import Sequence

import torch

from teka.audit.measure.responses import Responses
from teka.audit.statistics.estimate import BootstrapSettings, Curve, Estimate
from teka.audit.statistics.image_values import check_same_images, take_common
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.resampling import ImageResamples
from teka.audit.statistics.seed_metrics import SeedMetrics
from teka.audit.statistics.seed_values import seed_values
from teka.audit.statistics.two_levels import MINIMUM_SEEDS, two_level_curve
from teka.errors import wrong_value

_WITHIN_ONE = (
    "accuracy",
    "minimum_accuracy",
    "worst_shift_accuracy",
    "agreement",
    "consistency",
    "consistency_when_right",
    "flip_rate",
    "probability_change",
)


def summarize_seeds(
    responses: Sequence[Responses], *, confidence: float = 0.95, num_resamples: int = 1000, seed: int = 0
) -> SeedMetrics:
    """Average every number over seeds, with intervals for what other seeds and other images would give.

    `teka.audit.statistics.two_levels` has the formulae. With fewer than 3 seeds the intervals are for these seeds and
    other images, and a warning says so.

    Args:
        responses: What the model of each seed answered to the same images at the same shifts.
        confidence: Of every interval and every band, between 0 and 1.
        num_resamples: Resamples of the bootstrap.
        seed: Their seed.

    Raises:
        ValueError: No responses; other images, labels, shifts, movement or kind of output for one seed than for the
            first; a zero shift that is not complete; a confidence outside (0, 1); or too few resamples for it.
    """
    settings = BootstrapSettings(confidence, num_resamples, seed)
    if not responses:
        raise wrong_value("responses", "no seed", "the responses of one seed or more")
    first = responses[0]
    for index, other in enumerate(responses):
        check_same_images(f"responses[{index}]", first, other)
        if other.output != first.output:
            raise wrong_value(f"responses[{index}].output", other.output, f"that of the first, {first.output!r}")
    common = take_common(responses)
    resamples = ImageResamples(first.num_images, settings)
    parts = [seed_values(each, resamples) for each in common]
    curves: dict[str, Curve] = {}
    numbers: dict[str, Estimate] = {}
    by_seed: dict[str, tuple[float, ...]] = {}

    def averaged(name: str, level: int, known: int | None = None) -> Curve:
        seeds = [part[level][name] for part in parts]
        largest = 1.0 if name in _WITHIN_ONE else sys.float_info.max
        return two_level_curve(seeds, first.num_images, settings, largest=largest, known=known)

    for name in parts[0][0]:
        if all(name in part[0] for part in parts):
            curves[name] = averaged(name, 0, common[0].zero if name == "agreement" else None)
    for name in parts[0][1]:
        if all(name in part[1] for part in parts):
            numbers[name] = _first(averaged(name, 1), confidence)
            by_seed[name] = tuple(part[1][name].values.item() for part in parts)
    done = set(common[0].shifts)
    metrics = Metrics(
        first.movement,
        first.output,
        first.num_images,
        common[0].shifts,
        tuple(shift for shift in first.shifts if shift not in done),
        curves,
        numbers,
        confidence,
    )
    deviations = {
        name: torch.tensor(values, dtype=torch.float64).std().item()
        for name, values in by_seed.items()
        if len(values) > 1
    }
    warning = None
    if len(responses) < MINIMUM_SEEDS:
        warning = f"{len(responses)} of at least {MINIMUM_SEEDS} seeds: intervals are for these seeds and other images"
    return SeedMetrics(len(responses), metrics, by_seed, deviations, warning)


def _first(curve: Curve, confidence: float) -> Estimate:
    """A number, as a curve of one row."""
    return Estimate(curve.values[0], curve.lower[0], curve.upper[0], confidence, curve.method)
