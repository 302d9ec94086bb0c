"""From a model and images to what it answered at every shift, and whether it is correct at each."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from teka.audit.images import ImageSet, Size
from teka.audit.measure.measurement import Device, Measurement
from teka.audit.measure.responses import Responses
from teka.audit.model_call import Model, ModelError, tensor_hash, weights_hash
from teka.audit.model_output import CLASSIFIERS
from teka.audit.movement import Movement
from teka.audit.shifts import SubpixelShifts
from teka.checks import check_callable, check_number, check_path, check_sizes
from teka.codec import encode
from teka.errors import require, wrong_value
from teka.files import write_bytes

FORMAT = "2"
BUDGET = "a positive number of seconds, or None"
# Seconds between two writes: at least these, and this many times what the last one took.
SECONDS_BETWEEN, TIMES_BETWEEN = 5.0, 20.0
SAME_MODEL = (
    1e-3  # relative difference of answers up to which a model counts as the one of the checkpoint
)
Progress = Callable[[int, int, float], None]


class Checkpoint:
    """A safetensors file, in a folder that exists, with the state of a measurement and what it is of, part by part."""

    def __init__(self, path: str | Path, identity: Mapping[str, str]) -> None:
        require("safetensors.torch", "checkpoints need", "teka[audit]")
        import safetensors.torch

        self._library = safetensors
        self.path = check_path("checkpoint", path)
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise wrong_value("checkpoint", str(path), "a file in a folder that exists")
        self._identity = {"format": FORMAT, **identity}
        self._written = time.perf_counter()
        self._pause = SECONDS_BETWEEN

    def read(self) -> tuple[dict[str, Tensor], dict[str, float | int]] | None:
        """The tensors and numbers that were written, or None if there is no file."""
        if not self.path.exists():
            return None
        try:
            with self._library.safe_open(str(self.path), framework="pt") as file:
                notes = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
            numbers = json.loads(notes.get("numbers", ""))
            identity = json.loads(notes.get("identity", ""))
            if not (isinstance(numbers, dict) and isinstance(identity, dict)):
                raise ValueError("its notes are no mappings")
        except (self._library.SafetensorError, ValueError, RecursionError) as error:
            raise wrong_value(
                "checkpoint", str(self.path), f"a whole file of a measurement ({error})"
            ) from error
        if notes.get("sha256") != _content_hash(tensors, numbers):
            raise wrong_value(
                "checkpoint", str(self.path), "a file that is as it was written; it is damaged"
            )
        parts = self._identity.keys() | identity.keys()
        other = sorted(part for part in parts if identity.get(part) != self._identity.get(part))
        if other:
            expected = f"the state of this measurement; it has another {', '.join(other)}: take another file"
            raise wrong_value("checkpoint", str(self.path), expected)
        return tensors, numbers

    def write(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float | int]) -> None:
        """Write the state, whole or not at all."""
        start = time.perf_counter()
        notes = {"identity": json.dumps(self._identity), "numbers": json.dumps(dict(numbers))}
        notes["sha256"] = _content_hash(tensors, numbers)
        content = self._library.torch.save(
            {name: tensor.cpu() for name, tensor in tensors.items()}, metadata=notes
        )
        write_bytes(self.path, content)
        self._written = time.perf_counter()
        self._pause = max(SECONDS_BETWEEN, TIMES_BETWEEN * (self._written - start))

    @property
    def due(self) -> bool:
        """Whether it is time to write again: at most every 5 seconds, and at most a twentieth of the time."""
        return time.perf_counter() - self._written >= self._pause


def _content_hash(tensors: Mapping[str, Tensor], numbers: Mapping[str, float | int]) -> str:
    digest = hashlib.sha256(json.dumps(dict(numbers), sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensor_hash(tensors[name])}\n".encode())
    return digest.hexdigest()


class Deadline:
    """The time of a measurement, from its making on: what it may take, and what is left."""

    def __init__(
        self, budget_seconds: float | int | None = None, progress: Progress | None = None
    ) -> None:
        if budget_seconds is not None:
            check_number(
                "budget_seconds", budget_seconds, BUDGET, low=0, high=math.inf, exclude=(0,)
            )
        if progress is not None:
            check_callable("progress", progress)
        self._budget, self._progress = (
            math.inf if budget_seconds is None else budget_seconds,
            progress,
        )
        self._since = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._since

    @property
    def left(self) -> float:
        """Seconds until the budget is spent, not below 0; infinite without one."""
        return max(self._budget - self.seconds, 0.0)

    def report(self, asked: int, done: int, total: int) -> None:
        """Tell the caller how far it is; what was done without asking, say as an image failed, counts as done only."""
        if self._progress is not None:
            self._progress(done, total, min(self.seconds / asked * (total - done), self.left))


def measure_responses(
    function: Model,
    images: ImageSet,
    shifts: SubpixelShifts,
    movement: Movement,
    *,
    labels: Shaped[Tensor, "images *labels"] | None = None,
    output: str = "auto",
    stride: Size | None = None,
    batch_size: int = 256,
    device: Device = None,
    budget_seconds: float | int | None = None,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
) -> Responses:
    """Ask a model for every image at every shift.

    Images and shifts are folded together into full batches, so that N images at S shifts take ⌈N S / batch_size⌉ calls.
    The shifts go from coarse to fine (`shift_order`), so that a budget that ends leaves a coarse set of them, and
    `evaluated` False for the others. The responses are on the CPU.

    A dense output of stride r is compared with T_{s/r} f(x), which is exact only at whole cells: shifts by other than
    multiples of r are refused, but in mode `fourier`, where the map is moved by the same interpolation, and in mode
    `bilinear` at stride 1. In modes without circular edges only cells whose content came from inside are compared.

    Args:
        function: Images (B, C, *S) to an output of one of the kinds of `teka.audit.model_output.KINDS`: logits (B, K),
            probabilities, classes (B,), features (B, …), maps (B, C', *S'), or to what has one of these in a field.
        images: Images (N, C, *S).
        shifts: The set of shifts, with the zero shift. Repeats count once.
        movement: How the images are moved.
        labels: Their classes (N,), integers from 0 to K − 1, or for several labels of an image (N, K) of 0 and 1; or
            None. Only the predictions of classifiers are compared with them.
        output: The kind of the output, a name of `teka.audit.model_output.KINDS`, or "auto": maps whose sizes divide
            those of the images and are not all 1 are dense; whole numbers (B,) are classes; with labels (N, K) an
            output (B, K) has a logit or a probability for each label; any other (B, K), or (B,) for two classes, has
            logits, or probabilities if it lies in [0, 1] and sums to 1; all else is features. Axes of size 1 say
            nothing: (B, K, 1, 1) is (B, K).
        stride: Pixels for a cell of a dense output that does not cover the images; None divides the sizes.
        batch_size: Images for one call.
        device: Where the images are moved and the model gets them; None leaves them where they are.
        budget_seconds: Time after which no further call begins; the first one is always made.
        progress: Called after each call with the entries done (images times shifts), their total and the seconds left.
        checkpoint: A file for the state, written now and then, at the end and when the measurement is stopped. If it is
            there, the measurement resumes from it, after one more call to check that the model is the same.


    Raises:
        ModelError: The model raised, or gave NaN, infinity or what is no such output.
        ValueError: A module in training mode; images, labels, shifts, a movement or a checkpoint that do not fit; an
            output that is not what it was said to be; a batch size or a budget that is not positive.
        ImportError: A checkpoint, and safetensors is not installed.
    """
    check_sizes({"batch_size": batch_size})
    deadline = Deadline(budget_seconds, progress)
    measurement = Measurement(
        function, images, shifts, movement, labels, output, stride, device, batch_size
    )
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
    return _ask(measurement, deadline, batch_size, keeper)


def _ask(
    measurement: Measurement,
    deadline: Deadline,
    batch_size: int,
    keeper: Checkpoint | None,
    *,
    until: bool = False,
) -> Responses:
    """Ask in batches, of each image every shift, or the shifts `until` it is wrong; and keep the state, if asked to."""
    start, asked = 0 if keeper is None else _restore(measurement, keeper, batch_size), 0
    num_shifts, total = len(measurement.moved.shifts), len(measurement.moved)
    alive = torch.ones(measurement.moved.num_images, dtype=torch.bool)
    try:
        while len(entries := _next_entries(alive, start, num_shifts, batch_size)) and not (
            asked and not deadline.left
        ):
            measurement.answer(entries)
            start, asked = int(entries[-1]) + 1, asked + len(entries)
            if until:
                alive[entries[measurement.wrong(entries)] % len(alive)] = False
            deadline.report(
                asked, total - num_shifts * int(alive.sum()) + _before(alive, start), total
            )
            if keeper is not None and keeper.due:
                _keep(measurement, keeper, deadline)
        return measurement.responses(deadline.seconds)
    except ModelError as error:
        error.responses = measurement.sound_responses(deadline.seconds)
        raise
    finally:
        if keeper is not None and asked:
            _keep(measurement, keeper, deadline)


def _keep(measurement: Measurement, keeper: Checkpoint, deadline: Deadline) -> None:
    responses = measurement.sound_responses(deadline.seconds)
    if responses is not None:
        numbers = {
            name: getattr(responses, name) for name in ("calls", "seconds", "forward_seconds")
        }
        keeper.write(measurement.tensors(), numbers)


def _restore(measurement: Measurement, keeper: Checkpoint, batch_size: int) -> int:
    stored = keeper.read()
    if stored is None:
        return 0
    tensors, numbers = stored
    difference = measurement.restore(tensors, batch_size)
    if not difference <= SAME_MODEL:
        expected = "the state of this model; its answers to the unshifted images differ by"
        raise wrong_value(
            "checkpoint", str(keeper.path), f"{expected} {difference:.2g} of their norm"
        )
    measurement.calls += int(numbers["calls"])
    measurement.seconds_before = numbers["seconds"]
    measurement.forward_seconds += numbers["forward_seconds"]
    return measurement.noted


def search_worst(
    function: Model,
    images: ImageSet,
    labels: Shaped[Tensor, "images *labels"],
    shifts: SubpixelShifts,
    movement: Movement,
    *,
    batch_size: int = 256,
    device: Device = None,
    budget_seconds: float | int | None = None,
    progress: Progress | None = None,
) -> Responses:
    """Ask a classifier for every image at shift after shift, until it is wrong once; the far corners come first.

    An image answered wrongly is not shown again, but for shifts in the batch that it failed in. The mean of
    `correct.all(dim=0)` is the worst-shift accuracy over the whole set, exactly as `measure_responses` gives it, or a
    lower bound where time ran out. Arguments, errors and result are as of `measure_responses`; `progress` gets the
    seconds left if no further image failed, and `evaluated` is False where an image was not shown.
    """
    check_sizes({"batch_size": batch_size})
    deadline = Deadline(budget_seconds, progress)
    if labels is None:
        raise wrong_value("labels", None, "the class of each image")
    measurement = Measurement(
        function, images, shifts, movement, labels, "auto", None, device, batch_size, CLASSIFIERS
    )
    return _ask(measurement, deadline, batch_size, None, until=True)


def _next_entries(
    alive: Bool[Tensor, " images"], start: int, num_shifts: int, number: int
) -> Int[Tensor, " entries"]:
    """The entries from `start` on, at most so many, of the images that are still asked for."""
    images, before = alive.nonzero().flatten(), _before(alive, start)
    places = torch.arange(before, max(before, min(before + number, num_shifts * len(images))))
    return (
        places // len(images) * len(alive) + images[places % len(images)] if len(places) else places
    )


def _before(alive: Bool[Tensor, " images"], start: int) -> int:
    """How many of the entries before `start` are of images that are still asked for."""
    rank, image = divmod(start, len(alive))
    return rank * int(alive.sum()) + int(alive[:image].sum())
