"""The shift at which a classifier is right least often, found without asking for every image at every shift."""

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

FIRST_IMAGES = 32  # of the first round; each further one doubles them


@dataclass(frozen=True)
class WorstShift:
    """Where a classifier is right least often, of these images, and how sure that is.

    >>> import torch
    >>> from teka.audit import Movement, find_worst_shift
    >>> images = torch.zeros(40, 1, 5, 5)
    >>> images[:, :, 2, 2] = 1.0
    >>> lit = lambda batch: torch.stack([batch[:, 0, 2, 2], 1 - batch[:, 0, 2, 2]], dim=1)  # 0 where the middle is
    >>> labels = torch.zeros(40, dtype=torch.int64)
    >>> found = find_worst_shift(lit, images, labels, [(0, 0), (0, 1)], Movement("zero"))
    >>> found.shift, found.accuracy, found.candidates
    ((0, 1), 0.0, ((0, 1),))
    """

    shift: CheckedShift
    accuracy: float  # there, of all images
    floor: float  # below which the accuracy is at no shift, with the confidence
    candidates: CheckedShifts  # among which the worst shift is, with the confidence
    confidence: float
    share: float  # asked for, of all images at all shifts
    num_images: int
    num_shifts: int

    @property
    def words(self) -> str:
        """What was found, in sentences."""
        where = f"({', '.join(f'{step:+g}' if step else '0' for step in self.shift)})".replace(
            "-", "−"
        )
        sure, rest = f"{100 * self.confidence:g} %", len(self.candidates) - 1
        if rest:
            doubt = f"With a confidence of {sure} it is this one or one of {rest} more that are not told apart from it"
        else:
            doubt = f"With a confidence of {sure} it is this one"
        return (
            f"The worst of {self.num_shifts:,} shifts is (dy, dx) = {where}: {100 * self.accuracy:.1f} % of "
            f"{self.num_images:,} images are answered correctly there. {doubt}, and fewer than "
            f"{100 * self.floor:.1f} % are correct at none. Asked for {100 * self.share:.1f} % of all images at all "
            "shifts."
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
    """Find the shift of lowest accuracy with at most a share of the calls that all images at all shifts take.

    Rounds of 32, 64, 128, … images in random order, the same at every shift that is left. After each round a shift goes
    that is better than the worst one so far by McNemar's exact one-sided test, of the images that only one of the two
    is right of, at level α / 2 S R for S shifts and R rounds. So the worst shift is never lost, with a probability of
    at least 1 − α / 2. The lowest of Clopper's and Pearson's lower bounds at that level, over the shifts that are left,
    is a floor for all. Both hold for images drawn without replacement: the number of successes among them is a sum of
    independent ones (Vatutin and Mikhailov 1982), which binomial tails bound (Hoeffding 1956).

    Args:
        function: Images (B, C, *S) to the output of a classifier, as of `measure_responses`.
        images: Images (N, C, *S).
        labels: Their classes (N,).
        shifts: The set of shifts, with the zero shift.
        movement: How the images are moved.
        share: Of the entries, images times shifts, that are asked for at most; the first round and all images at the
            shift that is found are always asked for.
        confidence: 1 − α, of the candidates and the floor together.
        seed: Of the order of the images.
        batch_size: Images for one call.
        device: Where the images are moved and the model gets them.
        progress: Called after each call with the entries done, those allowed and the seconds left.

    Raises:
        ValueError: As `measure_responses`; a share or a confidence outside (0, 1).
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
    """Which shifts are left, by their rank, and what was answered of the first images in random order."""

    def __init__(
        self,
        measurement: Measurement,
        batch_size: int,
        share: float,
        tail: float,
        seed: int,
        progress: Progress | None,
    ) -> None:
        self._measurement, self._batch_size, self._progress = measurement, batch_size, progress
        self._num_images, self._num_shifts = (
            measurement.moved.num_images,
            len(measurement.moved.shifts),
        )
        self._order = torch.randperm(
            self._num_images, generator=torch.Generator().manual_seed(int(seed))
        )
        self._left = torch.arange(self._num_shifts)
        self._wrong = torch.zeros(self._num_shifts, self._num_images, dtype=torch.bool)
        rounds = 1 + max(0, math.ceil(math.log2(self._num_images / FIRST_IMAGES)))
        self._level = tail / (self._num_shifts * rounds)
        self._allowed, self._seen, self._asked = share * len(measurement.moved), 0, 0
        self._since = time.perf_counter()

    def grow(self) -> bool:
        """Ask for twice as many images at the shifts that are left, unless that is too much or there are no more."""
        more = min(max(FIRST_IMAGES, 2 * self._seen), self._num_images)
        # With those that are then still to be asked for at the shift that is found.
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
        """Take away the shifts that are better than the worst so far."""
        wrong = self._wrong[self._left][:, self._order[: self._seen]]
        worst = wrong[wrong.sum(dim=1).argmax()]
        only_worst, only_other = (worst & ~wrong).sum(dim=1), (wrong & ~worst).sum(dim=1)
        together = only_worst + only_other
        # P[X ≤ n₂] of X ~ B(n, ½): so few images that only this shift is wrong of.
        p_values = torch.from_numpy(
            scipy_special().bdtr(only_other.double().numpy(), together.numpy(), 0.5)
        )
        self._left = self._left[(p_values > self._level) | (together == 0)]

    def result(self, confidence: float) -> WorstShift:
        """The worst of the shifts that are left, asked of all images."""
        seen = self._order[: self._seen]
        counts = self._wrong[self._left][:, seen].sum(dim=1)
        found = self._left[counts.argmax()]
        # The lower bound of what is right, the exact one of a binomial share.
        right = (self._seen - int(counts.max()), int(counts.max()) + 1)
        floor = float(scipy_special().betaincinv(*right, self._level)) if right[0] else 0.0
        self._ask(found[None], self._order[self._seen :])
        accuracy = 1 - float(self._wrong[found].double().mean())
        # All images were asked for at every shift that is left.
        floor = (
            accuracy
            if self._seen == self._num_images or len(self._left) == 1
            else min(floor, accuracy)
        )
        moved, measurement = self._measurement.moved, self._measurement
        candidates = tuple(moved.shifts[rank] for rank in self._left.tolist())
        share = measurement.noted / len(moved)
        sizes = self._num_images, self._num_shifts
        return WorstShift(
            moved.shifts[found], accuracy, floor, candidates, confidence, share, *sizes
        )

    def _ask(self, ranks: Int[Tensor, " shifts"], images: Int[Tensor, " images"]) -> None:
        chosen = torch.zeros(self._num_images, dtype=torch.bool)
        chosen[images] = True
        # Unshifted first, which the others are compared with.
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
