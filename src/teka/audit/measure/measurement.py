"""A measurement in progress: the time it may take, the model, the images at their shifts, and the answers so far."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from teka.audit.function import ModelError, call_model, check_evaluation_mode
from teka.audit.measure.moved_images import MovedImages
from teka.audit.measure.outputs import OUTPUT_CHOICES, check_stride, infer_output
from teka.audit.measure.response_table import ResponseTable
from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement
from teka.errors import unknown_name, wrong_shape, wrong_value


class Deadline:
    """The time of a measurement, from its making on: what it may take, and what is left.

    Args:
        budget_seconds: Time that the measurement may take, or None.
        progress: Called with the entries done, their total and the seconds left, or None.

    Raises:
        ValueError: A budget that is no positive number.
    """

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


class Measurement:
    """A measurement in progress: the model, the images at their shifts, and the answers so far.

    The arguments are those of `measure_responses`, and what it refuses before the first call is refused here.
    """

    def __init__(
        self,
        function: Callable[[Tensor], object],
        images: Shaped[Tensor, "images channels *sizes"],
        shifts: Iterable[int | float | Sequence[int | float]],
        movement: Movement,
        labels: Shaped[Tensor, " images"] | None,
        output: str,
        stride: int | Sequence[int] | None,
        device: torch.device | str | None,
    ) -> None:
        check_evaluation_mode("function", function)
        if output not in OUTPUT_CHOICES:
            raise unknown_name("output", output, OUTPUT_CHOICES)
        self.moved = MovedImages(images, shifts, movement, device)
        self._function, self._output = function, output
        self._stride = check_stride(stride, images.ndim - 2)
        self._labels = None if labels is None else check_labels(labels, len(images))
        self.table: ResponseTable | None = None
        self.calls, self.seconds_before, self.forward_seconds = 0, 0.0, 0.0

    def answer(self, entries: Int[Tensor, " batch"]) -> ResponseTable:
        """Ask the model for ascending entries in one call, and take its answers into the table.

        Raises:
            ModelError: The model raised, or gave what cannot be measured, in this call or in one of the last 16.
            ValueError: The first output is not what it was said to be, or has no counterpart at some shift.
        """
        output, seen_size = self._call(entries)
        if self.table is None:
            self.table = self._begin(output, seen_size)
        self.table.add(entries, output)
        return self.table

    def restore(self, tensors: Mapping[str, Tensor], batch_size: int) -> tuple[ResponseTable, float]:
        """Resume from what `ResponseTable.tensors` gave, and ask the model once more for the first images, one batch.

        Returns the table, and ‖now − then‖ / ‖then‖ over these answers.
        """
        entries = torch.arange(min(batch_size, self.moved.num_images))
        output, seen_size = self._call(entries)
        self.table = self._begin(output, seen_size)
        self.table.load(tensors)
        known = min(self.table.noted, len(entries))
        now, then = output[:known].float(), self.table.references[:known].to(output.device).float()
        norm = torch.linalg.vector_norm(then)
        return self.table, float(torch.linalg.vector_norm(now - then) / norm.clamp(min=torch.finfo(norm.dtype).tiny))

    def responses(self, seconds: float) -> Responses:
        """The answers so far; to the seconds since this start those of earlier ones are added.

        Raises:
            ModelError: NaN or infinity in what the last calls gave.
        """
        assert self.table is not None
        self.table.flush()
        return self.table.responses(self.calls, self.seconds_before + seconds, self.forward_seconds)

    def sound_responses(self, seconds: float) -> Responses | None:
        """The answers before the first that could not be measured, or None if there is none."""
        if self.table is None:
            return None
        with suppress(ModelError):
            self.table.flush()
        return self.responses(seconds) if self.table.noted else None

    def _call(self, entries: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        segments = self.moved.segments(entries)
        batch = self.moved.batch(segments)
        start = time.perf_counter()
        output = call_model(self._function, batch, lambda: self.moved.where(segments))
        if output.device.type == "cuda":
            torch.cuda.synchronize(output.device)
        self.forward_seconds += time.perf_counter() - start
        self.calls += 1
        return output, tuple(batch.shape[2:])

    def _begin(self, output: Tensor, seen_size: tuple[int, ...]) -> ResponseTable:
        kind = infer_output(output.shape, seen_size, self._output, self._stride)
        return ResponseTable(self.moved, self._labels, kind, seen_size, output)


def check_labels(labels: Tensor, num_images: int) -> Tensor:
    """The labels in int64 on the CPU, one class for each image."""
    if tuple(labels.shape) != (num_images,):
        raise wrong_shape("labels", labels.shape, f"({num_images},), one label for each image")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise wrong_value("labels.dtype", labels.dtype, "an integer dtype")
    if (labels < 0).any():
        raise wrong_value("labels", int(labels.min()), "classes of at least 0")
    return labels.to("cpu", torch.int64)
