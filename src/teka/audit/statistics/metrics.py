"""Every number of an audit, defined once: what it is, what to call it, and how it follows from the responses."""

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
NOISE_FACTOR = 10.0  # errors up to this many times the difference of two equal calls may be noise


@dataclass(frozen=True)
class CurveMetric:
    """A number at every shift: a mean over images, or the root of a ratio of sums over images."""

    label: str
    of: Callable[
        [Responses], Any
    ]  # value of each image at each shift, (S, N), both tables of a ratio, or None
    is_share: bool = False  # within [0, 1], the higher the better, and written in percent; of booleans one of images
    is_ratio: bool = False
    known_at_zero: bool = False  # to be 1, by definition
    largest: float = sys.float_info.max

    def known(self, responses: Responses) -> int | None:
        """The row at which it is 1 by definition."""
        return responses.zero if self.known_at_zero else None

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
        return (
            sums / (responses.num_images if table[1] is None else table[1].sum(dim=1))
        ) ** self.power


@dataclass(frozen=True)
class NumberMetric:
    """A number made of a curve, named and explained as one.

    `over` says what of the curve it is: at the shift "zero"; the "lowest" or the "highest"; the share of images that
    succeed at "every" shift; the "mean" over all shifts but zero, or one less the mean, "rest"; or the "mean of
    correct", of the images that are answered correctly unshifted.
    """

    label: str
    meaning: str
    curve: str
    over: str

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
        if self.over == "mean of correct" and (
            correct is None or not correct[responses.zero].any()
        ):
            return False
        return bool(responses.moved) or self.over in ("zero", "lowest", "every")

    def of_images(
        self, responses: Responses
    ) -> tuple[Shaped[Tensor, " images"], Float[Tensor, " images"] | None]:
        """The value of each image, of which the number is the mean unless it is extreme; and some numbers' weights."""
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
"""The numbers at every shift, by the name under which they are saved."""

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
        "share of images and shifts, but zero, answered as the unshifted image",
        "agreement",
        "mean",
    ),
    "consistency_when_right": NumberMetric(
        "consistency when correct",
        "the same of images that are answered correctly when unshifted",
        "agreement",
        "mean of correct",
    ),
    "flip_rate": NumberMetric(
        "flip rate",
        "share of images and shifts answered otherwise: 1 − consistency",
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
"""The numbers of a set of shifts, by the name under which they are saved; means are over all shifts but zero."""


@dataclass(frozen=True)
class Metrics:
    """Every number of one mode, of `CURVES` and `NUMBERS`, that is defined, over the shifts complete for all images."""

    movement: Movement
    output: str
    num_images: int
    shifts: CheckedShifts
    skipped_shifts: CheckedShifts
    curves: dict[str, Curve]
    numbers: dict[str, Estimate]
    confidence: float
    epsilon: float = SINGLE_PRECISION  # the machine epsilon of the outputs

    @property
    def is_exact(self) -> bool:
        """Return True if no shift changes the output by more than rounding of its dtype."""
        largest = self.numbers.get("maximum_error")
        return largest is not None and largest.value <= rounding_bound(self.epsilon)

    def is_within_noise(self, repeat: float) -> bool:
        """Return True if two calls on the same images differ by more than rounding, and shifts hardly by more."""
        largest = self.numbers.get("maximum_error")
        return (
            largest is not None
            and repeat > rounding_bound(self.epsilon)
            and largest.value <= NOISE_FACTOR * repeat
        )


@dataclass(frozen=True)
class SeedMetrics:
    """Averages over seeds, for other seeds and images unless there is a warning, and the seeds' standard deviations."""

    num_seeds: int
    metrics: Metrics
    by_seed: dict[str, tuple[float, ...]]
    deviations: dict[str, float]
    warning: str | None = None
