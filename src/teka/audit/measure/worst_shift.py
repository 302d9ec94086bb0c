"""Search for the shift with the lowest accuracy that evaluates only part of the images."""

import math
import time
from dataclasses import dataclass

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from teka.audit.images import ImageSet
from teka.audit.measure.measure_responses import Progress
from teka.audit.measure.measurement import Device, Measurement
from teka.audit.model_call import Model
from teka.audit.model_output import CLASSIFIERS
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShift, CheckedShifts, SubpixelShifts
from teka.audit.statistics.estimate import check_confidence, scipy_special
from teka.checks import check_callable, check_number, check_sizes
from teka.errors import wrong_value

FIRST_IMAGES = 32  # images of the first round; each further round doubles the number


@dataclass(frozen=True)
class WorstShift:
    """Shift at which a classifier has the lowest accuracy, and the certainty of this result.

    Args:
        shift: The worst shift.
        accuracy: Accuracy on all images at this shift.
        floor: Lower bound of the accuracy at all shifts, with the given confidence.
        candidates: Shifts that contain the worst shift, with the given confidence.
        confidence: Confidence level of `floor` and `candidates` together.
        share: Evaluated share of all images at all shifts.
        num_images: Number of images.
        num_shifts: Number of shifts.

    >>> import torch
    >>> from teka.audit import Movement, find_worst_shift
    >>> images = torch.zeros(40, 1, 5, 5)
    >>> images[:, :, 2, 2] = 1.0
    >>> def is_center_bright(batch):
    ...     return torch.stack([batch[:, 0, 2, 2], 1 - batch[:, 0, 2, 2]], dim=1)
    >>> labels = torch.zeros(40, dtype=torch.int64)
    >>> shifts = [(0, 0), (0, 1)]
    >>> worst = find_worst_shift(is_center_bright, images, labels, shifts, Movement("zero"))
    >>> worst.shift, worst.accuracy, worst.candidates
    ((0, 1), 0.0, ((0, 1),))
    """

    shift: CheckedShift
    accuracy: float
    floor: float
    candidates: CheckedShifts
    confidence: float
    share: float
    num_images: int
    num_shifts: int

    @property
    def words(self) -> str:
        """Summary of the result in sentences."""
        where = f"({', '.join(f'{step:+g}' if step else '0' for step in self.shift)})".replace(
            "-", "−"
        )
        confidence = f"{100 * self.confidence:g} %"
        num_others = len(self.candidates) - 1
        doubt = f"With a confidence of {confidence} it is this one"
        if num_others:
            doubt += f" or one of {num_others} others that do not differ significantly"
        return (
            f"The worst of {self.num_shifts:,} shifts is (dy, dx) = {where}: "
            f"{100 * self.accuracy:.1f} % of {self.num_images:,} images are classified correctly "
            f"there. {doubt}, and the accuracy is at least {100 * self.floor:.1f} % everywhere. "
            f"The search evaluated {100 * self.share:.1f} % of all images at all shifts."
        )


def find_worst_shift(
    function: Model,
    images: ImageSet,
    labels: Shaped[Tensor, "images *labels"],
    shifts: SubpixelShifts,
    movement: Movement,
    *,
    share: float = 0.2,
    confidence: float = 0.95,
    seed: int = 0,
    batch_size: int = 256,
    device: Device = None,
    progress: Progress | None = None,
) -> WorstShift:
    """Find the shift with the lowest accuracy by evaluating only part of the images.

    The search takes rounds of 32, 64, 128, … images in random order, the same at all remaining
    shifts. After each round, it removes the shifts that are better than the currently worst one by
    McNemar's exact one-sided test, at the level α / 2 S R for S shifts and R rounds. The worst
    shift is therefore kept with a probability of at least 1 − α / 2. The lowest lower bound of
    Clopper and Pearson at this level over the remaining shifts is a lower bound of the accuracy at
    all shifts. Both hold for images drawn without replacement, because the number of successes is
    then a sum of independent variables (Vatutin and Mikhailov 1982), whose tails binomial tails
    bound (Hoeffding 1956).

    >>> import torch
    >>> from teka.audit import Movement, find_worst_shift
    >>> images = torch.rand(40, 1, 4, 4)
    >>> labels = images.flatten(1).argmax(dim=1)
    >>> shifts = [(0, 0), (0, 1)]
    >>> model = torch.nn.Flatten().eval()
    >>> find_worst_shift(model, images, labels, shifts, Movement("circular")).shift
    (0, 1)

    Args:
        function: Classifier from images (B, C, *S) to outputs, as for `measure_responses`.
        images: Images (N, C, *S).
        labels: Classes (N,).
        shifts: The shifts, including zero.
        movement: How the images are shifted.
        share: Maximum share of all images at all shifts to evaluate. The first round, and all
            images at the worst shift, are always evaluated.
        confidence: Confidence level 1 − α of the candidates and the lower bound together.
        seed: Seed of the order of the images.
        batch_size: Number of images per call.
        device: Device on which images are shifted and passed to the model.
        progress: Function that is called after each call with the number of entries done, the
            number allowed, and the estimated seconds left.

    Raises:
        ValueError: `share` or `confidence` is out of range, or `measure_responses` rejects an
            argument.
    """
    check_sizes({"batch_size": batch_size})
    check_confidence(confidence)
    check_number("share", share, "a number above 0 and at most 1", low=0, high=1, exclude=(0,))
    check_sizes({"seed": seed}, least=0)
    if progress is not None:
        check_callable("progress", progress)
    if labels is None:
        raise wrong_value("labels", None, "the class of each image")
    measurement = Measurement(
        function, images, shifts, movement, labels, "auto", None, device, batch_size, CLASSIFIERS
    )
    search = _Search(measurement, batch_size, share, (1 - confidence) / 2, seed, progress)
    while search.grow():
        search.drop()
    return search.result(confidence)


class _Search:
    """State of the search: remaining shifts, and the outcomes of the images evaluated so far."""

    def __init__(
        self,
        measurement: Measurement,
        batch_size: int,
        share: float,
        tail: float,
        seed: int,
        progress: Progress | None,
    ) -> None:
        self._measurement = measurement
        self._batch_size = batch_size
        self._progress = progress
        self._num_images = measurement.moved.num_images
        self._num_shifts = len(measurement.moved.shifts)
        self._order = torch.randperm(
            self._num_images, generator=torch.Generator().manual_seed(int(seed))
        )
        self._left = torch.arange(self._num_shifts)
        self._wrong = torch.zeros(self._num_shifts, self._num_images, dtype=torch.bool)
        rounds = 1 + max(0, math.ceil(math.log2(self._num_images / FIRST_IMAGES)))
        self._level = tail / (self._num_shifts * rounds)
        self._allowed = share * len(measurement.moved)
        self._seen = 0
        self._asked = 0
        self._since = time.perf_counter()

    def grow(self) -> bool:
        """Double the number of images at the remaining shifts, and return False if not possible."""
        more = min(max(FIRST_IMAGES, 2 * self._seen), self._num_images)
        # Include the remaining images at the worst shift, which are evaluated at the end.
        entries = len(self._left) * (more - self._seen) + self._num_images - more
        if (
            len(self._left) == 1
            or more == self._seen
            or (self._seen and self._asked + entries > self._allowed)
        ):
            return False
        self._ask(self._left, self._order[self._seen : more])
        self._seen = more
        return True

    def drop(self) -> None:
        """Remove the shifts that are significantly better than the currently worst one."""
        wrong = self._wrong[self._left][:, self._order[: self._seen]]
        worst = wrong[wrong.sum(dim=1).argmax()]
        only_worst = (worst & ~wrong).sum(dim=1)
        only_other = (wrong & ~worst).sum(dim=1)
        together = only_worst + only_other
        # P[X ≤ n₂] with X ~ B(n, ½): probability of so few images wrong at the other shift only.
        p_values = torch.from_numpy(
            scipy_special().bdtr(only_other.double().numpy(), together.numpy(), 0.5)
        )
        self._left = self._left[(p_values > self._level) | (together == 0)]

    def result(self, confidence: float) -> WorstShift:
        """Return the worst of the remaining shifts, after evaluating all images at this shift."""
        seen = self._order[: self._seen]
        counts = self._wrong[self._left][:, seen].sum(dim=1)
        worst = self._left[counts.argmax()]
        # Lower end of the exact interval of a binomial share.
        right = (self._seen - int(counts.max()), int(counts.max()) + 1)
        floor = float(scipy_special().betaincinv(*right, self._level)) if right[0] else 0.0
        self._ask(worst[None], self._order[self._seen :])
        accuracy = 1 - float(self._wrong[worst].double().mean())
        # The floor is exact if all images were evaluated at every remaining shift.
        if self._seen == self._num_images or len(self._left) == 1:
            floor = accuracy
        else:
            floor = min(floor, accuracy)
        moved, measurement = self._measurement.moved, self._measurement
        candidates = tuple(moved.shifts[rank] for rank in self._left.tolist())
        share = measurement.noted / len(moved)
        sizes = self._num_images, self._num_shifts
        return WorstShift(
            moved.shifts[worst], accuracy, floor, candidates, confidence, share, *sizes
        )

    def _ask(self, ranks: Int[Tensor, " shifts"], images: Int[Tensor, " images"]) -> None:
        chosen = torch.zeros(self._num_images, dtype=torch.bool)
        chosen[images] = True
        # Include the unshifted images first, because other outputs are compared with them.
        needed = torch.cat([torch.zeros(1, dtype=torch.int64), ranks]).unique()
        entries = (needed[:, None] * self._num_images + chosen.nonzero()[:, 0]).flatten()
        entries = entries[~self._measurement.evaluated(entries)]
        for part in entries.split(int(self._batch_size)) if len(entries) else ():
            self._measurement.answer(part)
            self._wrong.view(-1)[part] = self._measurement.wrong(part)
            self._asked += len(part)
            if self._progress is not None:
                seconds = time.perf_counter() - self._since
                left = seconds / self._asked * max(0.0, self._allowed - self._asked)
                self._progress(self._asked, round(max(self._allowed, self._asked)), left)
