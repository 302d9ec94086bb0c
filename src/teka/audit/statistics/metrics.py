"""Every number of an audit, defined once: what it is, what to call it, and how it follows from the responses."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement
from teka.audit.statistics.estimate import Curve, Estimate

Table = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class CurveMetric:
    """A number at every shift: a mean over images, or the root of a ratio of sums over images.

    `of` has the value of each image at each shift, (S, N), or both tables of a ratio, or None where it is not defined.
    Shares of images are written in percent. At the zero shift it may be known to be 1 by definition, and it cannot
    exceed `largest`.
    """

    label: str
    meaning: str
    of: Callable[[Responses], Any]
    is_share: bool = False
    better: str = "lower"
    is_ratio: bool = False
    known_at_zero: bool = False
    largest: float = sys.float_info.max

    @property
    def power(self) -> float:
        """The power of the mean, or of the ratio of sums, that it is."""
        return 0.5 if self.is_ratio else 1.0

    def table(self, responses: Responses) -> Table | None:
        """Value, and norm of a ratio, of each image at each shift, (S, N); None where it is not defined."""
        found = self.of(responses)
        return found if found is None or self.is_ratio else (found, None)

    def values(self, responses: Responses) -> Float[Tensor, " shifts"] | None:
        """The number at each shift; None where the responses, complete at every shift, do not define it."""
        table = self.table(responses)
        if table is None:
            return None
        sums = table[0].to(torch.float64).sum(dim=1)
        return (sums / (responses.num_images if table[1] is None else table[1].sum(dim=1))) ** self.power


@dataclass(frozen=True)
class NumberMetric:
    """A number made of a curve, named, explained and judged as one, and whether two models are compared in it.

    `over` says what of the curve it is: at the shift "zero"; the "lowest" or the "highest"; the share of images that
    succeed at "every" shift; the "mean" over all shifts but zero, or one less the mean, "rest"; or the "mean of
    correct", of the images that are answered correctly unshifted.
    """

    label: str
    meaning: str
    curve: str
    over: str
    better: str = "lower"
    is_compared: bool = False

    @property
    def is_share(self) -> bool:
        """Whether it is a share, written in percent."""
        return CURVES[self.curve].is_share

    @property
    def is_extreme(self) -> bool:
        """Whether it is the lowest or the highest of its curve."""
        return self.over in ("lowest", "highest")

    def has_cases(self, responses: Responses) -> bool:
        """Whether there are shifts and images for it among the responses, of which some define its curve."""
        correct = responses.correct
        if self.over == "mean of correct" and (correct is None or not correct[responses.zero].any()):
            return False
        return bool(responses.moved) or self.over in ("zero", "lowest", "every")

    def of_images(self, responses: Responses) -> tuple[Shaped[Tensor, " images"], Float[Tensor, " images"] | None]:
        """The value of each image, of which the number is the mean, and the images' weights where they have any.

        For what the responses define, and what is no extreme and no ratio.
        """
        if self.over == "every":
            everywhere = responses.correct_at_every_shift
            assert everywhere is not None
            return everywhere, None
        table = CURVES[self.curve].of(responses)
        if self.over == "zero":
            return table[responses.zero], None
        mean = table[responses.moved].to(torch.float64).mean(dim=0)
        if self.over == "mean of correct":
            assert responses.correct is not None
            return mean, responses.correct[responses.zero].to(torch.float64)
        return 1 - mean if self.over == "rest" else mean, None

    def value(self, responses: Responses) -> float | None:
        """The number; None where the responses, complete at every shift, do not define it."""
        curve = CURVES[self.curve].values(responses)
        if curve is None or not self.has_cases(responses):
            return None
        if self.is_extreme or CURVES[self.curve].is_ratio:
            if self.over == "mean":
                return curve[responses.moved].mean().item()
            return (curve.min() if self.over == "lowest" else curve.max()).item()
        values, weights = self.of_images(responses)
        values = values.to(torch.float64)
        return (values.mean() if weights is None else (values * weights).sum() / weights.sum()).item()


_PROBABILITY = "change of the probability of the class answered for the unshifted image, |pₛ(c) − p₀(c)|"
_DIVERGENCE = "Kullback–Leibler divergence KL(p₀ ‖ pₛ) of the answers, in nats"
_ERROR = "‖f(Tₛx) − Tₛf(x)‖ / ‖Tₛf(x)‖, with norms over all images; for classes Tₛf(x) = f(x)"

CURVES = {
    "accuracy": CurveMetric(
        "correct (%)", "share of the images answered correctly", lambda r: r.correct, True, "higher", largest=1.0
    ),
    "loss": CurveMetric("cross-entropy (nats)", "mean cross-entropy of the label, in nats", lambda r: r.loss),
    "agreement": CurveMetric(
        "answered as unshifted (%)",
        "share of the images answered as the unshifted image",
        lambda r: r.agreement,
        True,
        "higher",
        known_at_zero=True,
        largest=1.0,
    ),
    "probability_change": CurveMetric(
        "mean |Δp| of the class answered", f"mean {_PROBABILITY}", lambda r: r.probability_change, largest=1.0
    ),
    "divergence": CurveMetric("KL(p₀ ‖ pₛ) (nats)", f"mean {_DIVERGENCE}", lambda r: r.divergence),
    "error": CurveMetric("relative error", _ERROR, lambda r: r.errors, is_ratio=True),
}
"""The numbers at every shift, by the name under which they are saved."""

NUMBERS = {
    "accuracy": NumberMetric(
        "unshifted", "share of the images answered correctly, unshifted", "accuracy", "zero", "higher", True
    ),
    "minimum_accuracy": NumberMetric(
        "worst shift", "share answered correctly at the one shift where it is lowest", "accuracy", "lowest", "higher"
    ),
    "worst_shift_accuracy": NumberMetric(
        "every shift", "share answered correctly at every shift", "accuracy", "every", "higher", True
    ),
    "consistency": NumberMetric(
        "consistency",
        "share of images and shifts, but zero, answered as the unshifted image",
        "agreement",
        "mean",
        "higher",
        True,
    ),
    "consistency_when_right": NumberMetric(
        "consistency when correct",
        "the same of images that are answered correctly when unshifted",
        "agreement",
        "mean of correct",
        "higher",
    ),
    "flip_rate": NumberMetric(
        "flip rate", "share of images and shifts answered otherwise: 1 − consistency", "agreement", "rest"
    ),
    "probability_change": NumberMetric(
        "mean |Δp|", f"mean over the shifts of the {_PROBABILITY}", "probability_change", "mean", is_compared=True
    ),
    "divergence": NumberMetric(
        "KL (nats)", f"mean over the shifts of the {_DIVERGENCE}", "divergence", "mean", is_compared=True
    ),
    "mean_error": NumberMetric("mean error", f"mean over the shifts of {_ERROR}", "error", "mean", is_compared=True),
    "maximum_error": NumberMetric("largest error", "the same at the shift where it is largest", "error", "highest"),
}
"""The numbers of a set of shifts, by the name under which they are saved; means are over all shifts but zero."""


@dataclass(frozen=True)
class Metrics:
    """Every number that an audit gives of one mode; those that are not defined are left out.

    Args:
        movement: How the images were moved.
        output: "logits", "features" or "dense".
        num_images: Number of images N.
        shifts: The shifts at which every image was evaluated; of images, (dy, dx).
        skipped_shifts: Those at which not, because time ran out or a search had no need of them.
        curves: The numbers at each shift that `CURVES` defines.
        numbers: The numbers that `NUMBERS` defines. The share correct at every shift speaks of the skipped ones too,
            where the answers at hand decide every image.
        confidence: Confidence of the intervals.
    """

    movement: Movement
    output: str
    num_images: int
    shifts: tuple[tuple[int | float, ...], ...]
    skipped_shifts: tuple[tuple[int | float, ...], ...]
    curves: dict[str, Curve]
    numbers: dict[str, Estimate]
    confidence: float


@dataclass(frozen=True)
class SeedMetrics:
    """Averages over seeds, and how far the seeds are apart.

    The metrics are averages over seeds, with intervals for other seeds and other images, or a warning why not; the
    deviations are those of K > 1 seeds, with K − 1 in the denominator.
    """

    num_seeds: int
    metrics: Metrics
    by_seed: dict[str, tuple[float, ...]]
    deviations: dict[str, float]
    warning: str | None = None
