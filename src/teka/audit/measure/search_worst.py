"""Whether each image is answered rightly at every shift, without asking further once it was not."""

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from teka.audit.measure.measurement import Measurement
from teka.audit.measure.outputs import ModelError
from teka.audit.measure.pace import Pace
from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement
from teka.errors import wrong_value


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
    that are right at every shift, the mean of `correct.all(dim=0)`, is the worst-shift accuracy over the whole set,
    exactly as `measure_responses` gives it. The far corners come first, where most models fail soonest.

    Args:
        function: The classifier, images (B, C, *S) to logits (B, K).
        images: Images (N, C, *S).
        labels: Their classes (N,), integers from 0 to K − 1.
        shifts: The set of shifts, with the zero shift. Repeats count once.
        movement: How the images are moved.
        batch_size: Images for one call; batches are full until the images run out.
        device: Where the images are moved and the classifier gets them; None leaves them where they are.
        budget_seconds: Time after which no further call begins; the first one is always made. An image that was not
            shown at every shift by then is not right at all of them in `correct`, so that its share is a lower bound.
        progress: Called after each call with the entries settled (images times shifts), their total and the seconds
            left if no further image failed.

    Returns:
        The responses, on the CPU; `evaluated` is False where an image was not shown.

    Raises:
        ModelError: The classifier raised, or gave NaN, infinity or no logits.
        ValueError: What `measure_responses` refuses.
    """
    if batch_size < 1:
        raise wrong_value("batch_size", batch_size, "at least 1")
    pace = Pace(budget_seconds, progress)
    measurement = Measurement(function, images, shifts, movement, labels, "logits", None, device)
    num_shifts, total = len(measurement.moved.shifts), len(measurement.moved)
    right = torch.ones(measurement.moved.num_images, dtype=torch.bool)
    start = shown = 0
    try:
        while len(entries := _next_entries(right, start, num_shifts, batch_size)):
            table = measurement.answer(entries)
            right[entries[table.wrong(entries)] % len(right)] = False
            start, shown = int(entries[-1]) + 1, shown + len(entries)
            pace.report(shown, total - num_shifts * int(right.sum()) + _before(right, start), total)
            if pace.expired:
                break
    except ModelError as error:
        error.responses = measurement.sound_responses(pace.seconds)
        raise
    return measurement.responses(pace.seconds)


def _next_entries(right: Bool[Tensor, " images"], start: int, num_shifts: int, number: int) -> Int[Tensor, " entries"]:
    """The entries from `start` on, at most so many, of the images that were right so far."""
    alive, before = right.nonzero().flatten(), _before(right, start)
    places = torch.arange(before, max(before, min(before + number, num_shifts * len(alive))))
    return places // len(alive) * len(right) + alive[places % len(alive)] if len(places) else places


def _before(right: Bool[Tensor, " images"], start: int) -> int:
    """How many of the entries before `start` are of images that were right so far."""
    rank, image = divmod(start, len(right))
    return rank * int(right.sum()) + int(right[:image].sum())
