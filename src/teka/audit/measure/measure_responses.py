"""From a model and images to what it answered at every shift, and whether it is correct at each."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from teka.audit.function import ModelError, tensor_hash, weights_hash
from teka.audit.measure.checkpoint import Checkpoint
from teka.audit.measure.measurement import Measurement
from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement
from teka.checks import check_sizes
from teka.codec import encode
from teka.errors import wrong_value

# Relative difference of answers up to which a model counts as the one of the checkpoint.
SAME_MODEL = 1e-3


class Deadline:
    """The time of a measurement, from its making on: what it may take, and what is left."""

    def __init__(
        self, budget_seconds: float | int | None = None, progress: Callable[[int, int, float], None] | None = None
    ) -> None:
        if budget_seconds is not None and not budget_seconds > 0:
            raise wrong_value("budget_seconds", budget_seconds, "a positive number of seconds, or None")
        self._budget, self._progress = budget_seconds, progress
        self._since = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._since

    @property
    def passed(self) -> bool:
        """Whether the budget is spent."""
        return self._budget is not None and self.seconds >= self._budget

    def report(self, asked: int, done: int, total: int) -> None:
        """Tell the caller how far it is: the rest takes as long as each of those asked for since the beginning.

        Entries that are done without asking, at earlier starts or since an image failed, count as done only.
        """
        if self._progress is None:
            return
        left = self.seconds / asked * (total - done)
        if self._budget is not None:
            left = min(left, max(self._budget - self.seconds, 0.0))
        self._progress(done, total, left)


def measure_responses(
    function: Callable[[Tensor], object],
    images: Shaped[Tensor, "images channels *sizes"],
    shifts: Iterable[int | float | Sequence[int | float]],
    movement: Movement,
    *,
    labels: Shaped[Tensor, " images"] | None = None,
    output: str = "auto",
    stride: int | Sequence[int] | None = None,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    budget_seconds: float | int | None = None,
    progress: Callable[[int, int, float], None] | None = None,
    checkpoint: str | Path | None = None,
) -> Responses:
    """Ask a model for every image at every shift.

    Images and shifts are folded together into full batches, so that N images at S shifts take ⌈N S / batch_size⌉ calls.
    The images go to the device once and are moved there; the model runs in inference mode. The shifts go from coarse to
    fine (`shift_order`), so that a budget that ends leaves a coarse set of them.

    A dense output of stride r is compared with T_{s/r} f(x), which is exact only at whole cells: shifts by other than
    multiples of r are refused, but in mode `fourier`, where the map is moved by the same interpolation, and in mode
    `bilinear` at stride 1. In modes without circular edges only cells whose content came from inside are compared.

    Args:
        function: The model, images (B, C, *S) to logits (B, K), features (B, …) or dense maps (B, C', *S'), or to an
            object that has them as `.logits`.
        images: Images (N, C, *S).
        shifts: The set of shifts, with the zero shift. Repeats count once.
        movement: How the images are moved.
        labels: Their classes (N,), integers from 0 to K − 1, or None. Only logits are compared with them.
        output: "logits", "features", "dense", or "auto": (B, K) with K ≥ 2 are logits; maps whose sizes divide those of
            the images and are not all 1 are dense; all else is features.
        stride: Pixels for one cell of a dense output, one number or one for each axis; None divides the sizes. Only
            maps that do not cover the images, as of convolutions without padding, need it.
        batch_size: Images for one call.
        device: Where the images are moved and the model gets them; None leaves them where they are.
        budget_seconds: Time after which no further call begins; the first one is always made.
        progress: Called after each call with the entries done (images times shifts), their total and the seconds left.
        checkpoint: A file for the state, written now and then, at the end and when the measurement is stopped. If it is
            there, the measurement resumes from it, after one more call to check that the model is the same.

    Returns:
        The responses, on the CPU; `evaluated` is False where time ran out.

    Raises:
        ModelError: The model raised, or gave NaN, infinity or what is no such output; a ValueError that has what was
            measured before as `.responses`.
        ValueError: A module in training mode; no images; labels of the wrong shape, type or range; shifts or a movement
            that do not fit; an output that is not what it was said to be; a batch size below 1; a budget that is not
            positive; a checkpoint of another model, other data or other settings.
        ImportError: A checkpoint, and safetensors is not installed.
    """
    check_sizes({"batch_size": batch_size})
    deadline = Deadline(budget_seconds, progress)
    measurement = Measurement(function, images, shifts, movement, labels, output, stride, device)
    keeper = None
    if checkpoint is not None:
        identity = {
            "weights": weights_hash(function),
            "images": tensor_hash(images),
            "labels": "none" if labels is None else tensor_hash(labels),
            "shifts": json.dumps(measurement.moved.given_shifts),
            "movement": json.dumps(encode(movement)),
            "output": json.dumps([output, stride]),
        }
        keeper = Checkpoint(checkpoint, identity)
    done = begun = 0 if keeper is None else _restore(measurement, keeper, batch_size)
    total = len(measurement.moved)
    try:
        while done < total and (done == begun or not deadline.passed):
            stop = min(done + batch_size, total)
            measurement.answer(torch.arange(done, stop))
            done = stop
            deadline.report(done - begun, done, total)
            if keeper is not None and keeper.due:
                _keep(measurement, keeper, deadline)
        return measurement.responses(deadline.seconds)
    except ModelError as error:
        error.responses = measurement.sound_responses(deadline.seconds)
        raise
    finally:
        if keeper is not None and done > begun:
            _keep(measurement, keeper, deadline)


def _keep(measurement: Measurement, keeper: Checkpoint, deadline: Deadline) -> None:
    responses = measurement.sound_responses(deadline.seconds)
    if measurement.table is not None and responses is not None:
        numbers = {name: getattr(responses, name) for name in ("calls", "seconds", "forward_seconds")}
        keeper.write(measurement.table.tensors(), numbers)


def _restore(measurement: Measurement, keeper: Checkpoint, batch_size: int) -> int:
    stored = keeper.read()
    if stored is None:
        return 0
    tensors, numbers = stored
    table, difference = measurement.restore(tensors, batch_size)
    if not difference <= SAME_MODEL:
        expected = f"of this model; its answers to the unshifted images differ by {difference:.2g} of their norm"
        raise wrong_value("checkpoint", str(keeper.path), f"the state {expected}")
    measurement.calls += int(numbers["calls"])
    measurement.seconds_before = numbers["seconds"]
    measurement.forward_seconds += numbers["forward_seconds"]
    return table.noted


def search_worst(
    function: Callable[[Tensor], object],
    images: Shaped[Tensor, "images channels *sizes"],
    labels: Shaped[Tensor, " images"],
    shifts: Iterable[int | float | Sequence[int | float]],
    movement: Movement,
    *,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    budget_seconds: float | int | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Responses:
    """Ask a classifier for every image at shift after shift, until it is wrong once.

    An image answered wrongly is not shown again, but for shifts in the batch that it failed in. The share of images
    that are correct at every shift, the mean of `correct.all(dim=0)`, is the worst-shift accuracy over the whole set,
    exactly as `measure_responses` gives it. The far corners come first, where most models fail soonest.

    Args:
        function: The classifier, images (B, C, *S) to logits (B, K).
        images: Images (N, C, *S).
        labels: Their classes (N,), integers from 0 to K − 1.
        shifts: As of `measure_responses`.
        movement: As of `measure_responses`.
        device: As of `measure_responses`.
        batch_size: Images for one call; batches are full until the images run out.
        budget_seconds: Time after which no further call begins; the first one is always made. An image that was not
            shown at every shift by then is not correct at all of them in `correct`, so that its share is a lower bound.
        progress: Called after each call with the entries settled (images times shifts), their total and the seconds
            left if no further image failed.

    Returns:
        The responses, on the CPU; `evaluated` is False where an image was not shown.

    Raises:
        ModelError: The classifier raised, or gave NaN, infinity or no logits.
        ValueError: What `measure_responses` refuses.
    """
    check_sizes({"batch_size": batch_size})
    deadline = Deadline(budget_seconds, progress)
    measurement = Measurement(function, images, shifts, movement, labels, "logits", None, device)
    num_shifts, total = len(measurement.moved.shifts), len(measurement.moved)
    right = torch.ones(measurement.moved.num_images, dtype=torch.bool)
    start = shown = 0
    try:
        while len(entries := _next_entries(right, start, num_shifts, batch_size)):
            table = measurement.answer(entries)
            right[entries[table.wrong(entries)] % len(right)] = False
            start, shown = int(entries[-1]) + 1, shown + len(entries)
            deadline.report(shown, total - num_shifts * int(right.sum()) + _before(right, start), total)
            if deadline.passed:
                break
    except ModelError as error:
        error.responses = measurement.sound_responses(deadline.seconds)
        raise
    return measurement.responses(deadline.seconds)


def _next_entries(right: Bool[Tensor, " images"], start: int, num_shifts: int, number: int) -> Int[Tensor, " entries"]:
    """The entries from `start` on, at most so many, of the images that were right so far."""
    alive, before = right.nonzero().flatten(), _before(right, start)
    places = torch.arange(before, max(before, min(before + number, num_shifts * len(alive))))
    return places // len(alive) * len(right) + alive[places % len(alive)] if len(places) else places


def _before(right: Bool[Tensor, " images"], start: int) -> int:
    """How many of the entries before `start` are of images that were right so far."""
    rank, image = divmod(start, len(right))
    return rank * int(right.sum()) + int(right[:image].sum())
