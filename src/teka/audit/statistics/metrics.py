"""Metrics of an audit: label, meaning and computation of each number."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from teka.audit.measure.responses import SINGLE_PRECISION, Responses
from teka.audit.model_call import rounding_bound
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShifts
from teka.audit.statistics.estimate import Curve, Estimate

Table = tuple[Tensor, Tensor | None]
# Errors up to this multiple of the difference between two identical calls may be noise.
NOISE_FACTOR = 10.0


@dataclass(frozen=True)
class CurveMetric:
    """Metric at every shift: a mean over images, or the root of a ratio of sums over images.

    Args:
        label: Short name in tables and charts.
        of: Function that returns the value of each image at each shift, with shape (S, N). For a
            ratio it returns both the values and the norms. It returns None if undefined.
        is_share: Whether the values lie within [0, 1], higher is better, and percent are shown.
        is_ratio: Whether the metric is the root of a ratio of sums.
        known_at_zero: Whether the metric is 1 at the zero shift by definition.
        largest: Largest possible value.
    """

    label: str
    of: Callable[[Responses], Any]
    is_share: bool = False
    is_ratio: bool = False
    known_at_zero: bool = False
    largest: float = sys.float_info.max

    def known(self, responses: Responses) -> int | None:
        """Return the row of the shift at which the metric is 1 by definition, or None."""
        return responses.zero if self.known_at_zero else None

    @property
    def power(self) -> float:
        """Power of the mean or ratio that gives the metric: 0.5 for a ratio, else 1."""
        return 0.5 if self.is_ratio else 1.0

    def table(self, responses: Responses) -> Table | None:
        """Return the value of each image at each shift, and for a ratio also its norm.

        Returns:
            A pair of tensors of shape (S, N). The second is None unless the metric is a ratio.
            None if the responses do not define the metric.
        """
        values = self.of(responses)
        return values if values is None or self.is_ratio else (values, None)

    def values(self, responses: Responses) -> Float[Tensor, " shifts"] | None:
        """Return the metric at each shift, or None if the responses do not define it.

        All images must have been evaluated at every shift.
        """
        table = self.table(responses)
        if table is None:
            return None
        sums = table[0].to(torch.float64).sum(dim=1)
        return (
            sums / (responses.num_images if table[1] is None else table[1].sum(dim=1))
        ) ** self.power


@dataclass(frozen=True)
class NumberMetric:
    """Metric that summarizes a curve over all shifts in one number.

    Args:
        label: Short name in tables.
        meaning: Explanation in a few words.
        curve: Name of the curve in `CURVES`.
        over: How the curve is summarized: its value at the shift "zero"; the "lowest" or the
            "highest" value; the share of images that succeed at "every" shift; the "mean" over
            nonzero shifts; the "rest", which is 1 − mean; or the "mean of correct", the mean over
            images that are classified correctly without a shift.
    """

    label: str
    meaning: str
    curve: str
    over: str

    @property
    def is_share(self) -> bool:
        """True if the metric is a share, which is shown in percent."""
        return CURVES[self.curve].is_share

    @property
    def is_extreme(self) -> bool:
        """True if the metric is the lowest or the highest value of its curve."""
        return self.over in ("lowest", "highest")

    def has_cases(self, responses: Responses) -> bool:
        """Return True if the responses contain the shifts and images that the metric needs."""
        correct = responses.correct
        if self.over == "mean of correct" and (
            correct is None or not correct[responses.zero].any()
        ):
            return False
        return bool(responses.moved) or self.over in ("zero", "lowest", "every")

    def of_images(
        self, responses: Responses
    ) -> tuple[Shaped[Tensor, " images"], Float[Tensor, " images"] | None]:
        """Return the value of each image, and for some metrics the weight of each image.

        Unless the metric is an extreme, it is the (weighted) mean of these values.
        """
        if self.over == "every":
            is_correct = responses.correct_at_every_shift
            assert is_correct is not None
            return is_correct, None
        table = CURVES[self.curve].of(responses)
        if self.over == "zero":
            return table[responses.zero], None
        mean = table[responses.moved].to(torch.float64).mean(dim=0)
        if self.over == "mean of correct":
            assert responses.correct is not None
            return mean, responses.correct[responses.zero].to(torch.float64)
        return 1 - mean if self.over == "rest" else mean, None


_PROBABILITY = (
    "change of the probability of the class answered for the unshifted image, |pₛ(c) − p₀(c)|"
)
_DIVERGENCE = "Kullback–Leibler divergence KL(p₀ ‖ pₛ) of the answers, in nats"
_OVERLAP = "intersection over union with the classes or boxes moved along"
_ERROR = "‖f(Tₛx) − Tₛf(x)‖ / ‖Tₛf(x)‖, with norms over all images; for classes Tₛf(x) = f(x)"

CURVES = {
    "accuracy": CurveMetric("correct (%)", lambda r: r.correct, True, largest=1.0),
    "loss": CurveMetric("cross-entropy (nats)", lambda r: r.loss),
    "agreement": CurveMetric(
        "answered as unshifted (%)", lambda r: r.agreement, True, largest=1.0, known_at_zero=True
    ),
    "probability_change": CurveMetric(
        "mean |Δp| of the class answered", lambda r: r.probability_change, largest=1.0
    ),
    "divergence": CurveMetric("KL(p₀ ‖ pₛ) (nats)", lambda r: r.divergence),
    "overlap": CurveMetric("IoU (%)", lambda r: r.overlap, True, largest=1.0, known_at_zero=True),
    "retrieval": CurveMetric(
        "found again (%)", lambda r: r.retrieved, True, largest=1.0, known_at_zero=True
    ),
    "cosine_distance": CurveMetric("1 − cosine", lambda r: r.cosine_distance),
    "rank": CurveMetric("rank of itself", lambda r: r.rank),
    "error": CurveMetric("relative error", lambda r: r.errors, is_ratio=True),
}
"""Metrics at every shift, by the names under which they are saved."""

NUMBERS = {
    "accuracy": NumberMetric(
        "unshifted", "share of the images answered correctly, unshifted", "accuracy", "zero"
    ),
    "minimum_accuracy": NumberMetric(
        "worst shift",
        "share answered correctly at the one shift where it is lowest",
        "accuracy",
        "lowest",
    ),
    "worst_shift_accuracy": NumberMetric(
        "every shift", "share answered correctly at every shift", "accuracy", "every"
    ),
    "consistency": NumberMetric(
        "consistency",
        "share of images and nonzero shifts with the prediction of the unshifted image",
        "agreement",
        "mean",
    ),
    "consistency_when_right": NumberMetric(
        "consistency when correct",
        "the same for images that are classified correctly without a shift",
        "agreement",
        "mean of correct",
    ),
    "flip_rate": NumberMetric(
        "flip rate",
        "share of images and shifts with a changed prediction: 1 − consistency",
        "agreement",
        "rest",
    ),
    "probability_change": NumberMetric(
        "mean |Δp|", f"mean over the shifts of the {_PROBABILITY}", "probability_change", "mean"
    ),
    "divergence": NumberMetric(
        "KL (nats)", f"mean over the shifts of the {_DIVERGENCE}", "divergence", "mean"
    ),
    "overlap": NumberMetric(
        "mean IoU", f"mean over the shifts of the {_OVERLAP}", "overlap", "mean"
    ),
    "minimum_overlap": NumberMetric(
        "IoU at the worst shift",
        f"lowest mean over images of the {_OVERLAP}, at one shift",
        "overlap",
        "lowest",
    ),
    "retrieval": NumberMetric(
        "found again",
        "share of images and shifts whose features are nearest to their own unshifted",
        "retrieval",
        "mean",
    ),
    "rank": NumberMetric(
        "rank of itself",
        "mean rank of the image unshifted among all images, by cosine, 1 the nearest",
        "rank",
        "mean",
    ),
    "cosine_distance": NumberMetric(
        "1 − cosine",
        "mean over the shifts of 1 − the cosine to the features unshifted",
        "cosine_distance",
        "mean",
    ),
    "mean_error": NumberMetric("mean error", f"mean over the shifts of {_ERROR}", "error", "mean"),
    "maximum_error": NumberMetric(
        "largest error", "the same at the shift where it is largest", "error", "highest"
    ),
}
"""Metrics of a set of shifts, by the names under which they are saved.

Means are over all shifts except zero.
"""


@dataclass(frozen=True)
class Metrics:
    """All metrics of one mode of an audit that the model's outputs define, with intervals.

    Only shifts at which all images were evaluated are included.

    Args:
        movement: How the images were moved.
        output: Kind of output of the model.
        num_images: Number of images.
        shifts: Shifts at which all images were evaluated.
        skipped_shifts: Shifts at which some images were not evaluated.
        curves: Metrics at every shift, by their names in `CURVES`.
        numbers: Metrics over all shifts, by their names in `NUMBERS`.
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
        """True if no shift changes the output by more than the rounding error of its dtype."""
        largest = self.numbers.get("maximum_error")
        return largest is not None and largest.value <= rounding_bound(self.epsilon)

    def is_within_noise(self, repeat: float) -> bool:
        """Return True if the errors may be noise of a model that is not deterministic.

        Args:
            repeat: Relative difference of the outputs between two calls on the same images.
        """
        largest = self.numbers.get("maximum_error")
        return (
            largest is not None
            and repeat > rounding_bound(self.epsilon)
            and largest.value <= NOISE_FACTOR * repeat
        )


@dataclass(frozen=True)
class SeedMetrics:
    """Metrics averaged over training seeds, with intervals for other seeds and images.

    Args:
        num_seeds: Number of seeds.
        metrics: Averages over the seeds.
        by_seed: Value of each seed, by the name of the metric.
        deviations: Standard deviation between seeds, by the name of the metric.
        warning: Note that the intervals do not cover other seeds, or None.
    """

    num_seeds: int
    metrics: Metrics
    by_seed: dict[str, tuple[float, ...]]
    deviations: dict[str, float]
    warning: str | None = None
