"""A measurement in progress: the model, what its output is, the images at their shifts, and the answers so far."""

import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from teka.audit.function import ModelError, call_model, check_evaluation_mode
from teka.audit.measure.moved_images import MovedImages
from teka.audit.measure.response_table import ResponseTable
from teka.audit.measure.responses import OUTPUTS, Responses
from teka.audit.movement import Movement
from teka.checks import check_name
from teka.errors import wrong_shape, wrong_value

OUTPUT_CHOICES = ("auto", *OUTPUTS)


def infer_output(
    shape: Sequence[int], seen_size: Sequence[int], output: str = "auto", stride: int | Sequence[int] | None = None
) -> tuple[str, tuple[int, ...] | None]:
    """The kind of an output of some shape (the batch first), of images of the spatial size that the model gets.

    For "auto", (B, K) with K ≥ 2 is logits; (B, C', *S') with as many spatial axes as the images is dense if its sizes
    divide those of the images and are not all 1, or if a stride is given; all else is features.
    """
    sizes, is_logits = tuple(shape[2:]), len(shape) == 2 and shape[1] >= 2
    is_map = len(shape) == 2 + len(seen_size)
    divides = is_map and not any(map(operator.mod, seen_size, sizes))
    if output == "auto":
        if is_map and (stride is not None or (divides and max(sizes) > 1)):
            output = "dense"
        else:
            output = "logits" if is_logits else "features"
    if output == "dense":
        if not is_map:
            axes = ", ".join(["size"] * len(seen_size))
            expected = f"(batch, channels, {axes}), since the output is said to be dense"
            raise wrong_shape("the output of the model", shape, expected)
        if stride is None and not divides:
            expected = f"sizes that divide {tuple(seen_size)}, those of the images; or give stride"
            raise wrong_shape("the output of the model", shape, expected)
        whole = tuple([seen // size for size, seen in zip(sizes, seen_size, strict=True)])
        return "dense", check_stride(stride, len(sizes)) or whole
    if stride is not None:
        raise wrong_value("stride", stride, f"None, since an output of shape {tuple(shape)} is not a dense one")
    if output == "logits" and not is_logits:
        raise wrong_shape("the output of the model", shape, "(batch, classes) with two or more classes, of logits")
    return output, None


def check_stride(stride: int | Sequence[int] | None, num_axes: int) -> tuple[int, ...] | None:
    """The stride with one number for every axis, or None."""
    if stride is None:
        return None
    strides = tuple(stride) if isinstance(stride, Sequence) else (stride,) * num_axes
    if len(strides) != num_axes or any(isinstance(one, bool) or not isinstance(one, int) or one < 1 for one in strides):
        raise wrong_value("stride", stride, f"a whole number of at least 1, or one for each of {num_axes} axes")
    return strides


class Measurement:
    """Its arguments are those of `measure_responses`; what that refuses before the first call is refused here."""

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
        check_name("output", output, OUTPUT_CHOICES)
        self.moved = MovedImages(images, shifts, movement, device)
        self._function, self._output = function, output
        self._stride = check_stride(stride, images.ndim - 2)
        self._labels = None if labels is None else check_labels(labels, len(images))
        self.table: ResponseTable | None = None
        self.calls, self.seconds_before, self.forward_seconds = 0, 0.0, 0.0

    def answer(self, entries: Int[Tensor, " batch"]) -> ResponseTable:
        """Ask the model for ascending entries in one call, and take its answers into the table."""
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
        """The answers so far; to the seconds since this start those of earlier ones are added."""
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
        name, stride = infer_output(output.shape, seen_size, self._output, self._stride)
        return ResponseTable(self.moved, self._labels, name, stride, seen_size, output)


def check_labels(labels: Tensor, num_images: int) -> Tensor:
    """The labels in int64 on the CPU, one class for each image."""
    if tuple(labels.shape) != (num_images,):
        raise wrong_shape("labels", labels.shape, f"({num_images},), one label for each image")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise wrong_value("labels.dtype", labels.dtype, "an integer dtype")
    if (labels < 0).any():
        raise wrong_value("labels", int(labels.min()), "classes of at least 0")
    return labels.to("cpu", torch.int64)
