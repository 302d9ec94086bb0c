"""Measurement in progress: the model, the shifted images, and the outputs so far."""

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from teka.audit.images import ImageSet, Size, check_images
from teka.audit.measure import outputs
from teka.audit.measure.responses import WITH_ZERO, Responses
from teka.audit.model_call import Model, ModelError, call_model, check_evaluation_mode
from teka.audit.model_output import (
    CLASSIFIERS,
    OUTPUT_CHOICES,
    WITH_PROBABILITIES,
    arrange,
    infer_kind,
)
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShifts, SubpixelShifts, read_steps, shift_order
from teka.checks import check_callable, check_device, check_instance, check_name, check_stride
from teka.errors import wrong_argument, wrong_value
from teka.memory import check_memory

# Images and outputs up to this size stay on the device.
RESIDENT_BYTES = 2**30
# Size of maps that are compared at once on a CPU, so that intermediate results stay in the cache.
CACHED_BYTES = 2**20
Device = torch.device | str | None
# Small outputs are collected up to these limits before they are processed, because the overhead
# of PyTorch calls would dominate otherwise.
WAITING_NUMBERS = 2**16
WAITING_CALLS = 16
WAITING_SECONDS = 0.5
ENTRY_BYTES = 8 * 8  # upper bound of the memory for one image at one shift


class Segment(NamedTuple):
    """Images of a batch that have the same shift.

    Args:
        rank: Index of the shift in the order of measurement.
        images: Indices of the images.
        rows: Their rows in the batch.
    """

    rank: int
    images: slice | Int[Tensor, " segment"]
    rows: slice


class MovedImages:
    """Sequence of all images at all shifts, with the shifts ordered from coarse to fine.

    Entry p is image p mod N at shift p div N.

    Args:
        images: Images (N, C, *S).
        shifts: The shifts, including zero.
        movement: How the images are shifted.
        device: Device on which the images are shifted. Default: that of the images.
    """

    def __init__(
        self, images: ImageSet, shifts: SubpixelShifts, movement: Movement, device: Device = None
    ) -> None:
        check_images(images, least=1)
        self.movement = movement
        self.num_images = len(images)
        self._images = images.detach()
        self._device = images.device if device is None else torch.device(device)
        chunk = max(1, RESIDENT_BYTES // movement.place(self._images[:1]).nbytes)
        wanted: Any = read_steps("shifts", shifts)
        self._placed = (
            movement.place(self._images.to(self._device)) if chunk >= len(images) else None
        )
        # Check in chunks, because all padded images together may not fit into memory.
        for start in range(0, len(images), chunk):
            self.given_shifts = movement.check(self._place(slice(start, start + chunk)), wanted)
        if all(map(any, self.given_shifts)):
            raise wrong_value("shifts", self.given_shifts, WITH_ZERO)
        self.order = shift_order(self.given_shifts)
        self.shifts: CheckedShifts = tuple([self.given_shifts[index] for index in self.order])

    def __len__(self) -> int:
        return self.num_images * len(self.shifts)

    def segments(self, entries: Int[Tensor, " batch"]) -> list[Segment]:
        """Split a batch of ascending entries into parts with the same shift."""
        first, last = int(entries[0]) // self.num_images, int(entries[-1]) // self.num_images
        bounds = torch.searchsorted(
            entries, torch.arange(first, last + 2) * self.num_images
        ).tolist()
        segments = []
        for rank, (start, stop) in enumerate(itertools.pairwise(bounds), first):
            if start < stop:
                images = entries[start:stop] - rank * self.num_images
                low, high = int(images[0]), int(images[-1])
                # A slice gives a view, which needs no copy.
                chosen = slice(low, high + 1) if high - low + 1 == stop - start else images
                segments.append(Segment(rank, chosen, slice(start, stop)))
        return segments

    def batch(self, segments: Sequence[Segment]) -> Shaped[Tensor, "batch channels *seen"]:
        """Return the shifted images of a batch on the device, as a tensor that may be modified."""
        parts = [
            self.movement.move(self._place(segment.images), self.shifts[segment.rank])
            for segment in segments
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def where(self, segments: Sequence[Segment]) -> str:
        """Describe the shifts and images of a batch, for error messages."""
        descriptions = []
        for segment in (segments[0], segments[-1]):
            images = segment.images
            if isinstance(images, slice):
                first, last = images.start, images.stop - 1
            else:
                first, last = images[[0, -1]].tolist()
            descriptions.append(f"shift {self.shifts[segment.rank]}, images {first} to {last}")
        if len(segments) == 1:
            return f"at {descriptions[0]}"
        return f"in a batch from {descriptions[0]} on, to {descriptions[1]}"

    def _place(self, images: slice | Tensor) -> Tensor:
        source = self._images if self._placed is None else self._placed
        chosen = source[images if isinstance(images, slice) else images.to(source.device)]
        return self.movement.place(chosen.to(self._device)) if self._placed is None else chosen


class Measurement:
    """Measurement of a model on shifted images, which collects its outputs batch by batch.

    The arguments are those of `measure_responses`. They are checked before the first call, and
    the first call determines the kind and shape of the output.
    """

    def __init__(
        self,
        function: Model,
        images: ImageSet,
        shifts: SubpixelShifts,
        movement: Movement,
        labels: Shaped[Tensor, "images *labels"] | None,
        output: str,
        stride: Size | None,
        device: Device,
        batch_size: int,
    ) -> None:
        check_callable("function", function)
        check_evaluation_mode("function", function)
        check_name("output", output, OUTPUT_CHOICES)
        check_instance("movement", movement, Movement)
        if device is not None:
            device = check_device("device", device)
        self.moved = MovedImages(images, shifts, movement, device)
        entries = len(self.moved)
        size = math.prod(movement.seen_size(images.shape[2:])) * images.shape[1]
        num_bytes = min(int(batch_size), entries) * size * images.element_size()
        check_memory("batch_size", batch_size, num_bytes, "moved images")
        check_memory("shifts", len(self.moved.shifts), entries * ENTRY_BYTES, "responses")
        self._function = function
        self._output = output
        self._stride = None if stride is None else check_stride(stride, images.ndim - 2)
        self._labels = None if labels is None else outputs.check_labels(labels, len(images))
        self.calls = 0
        self.seconds_before = 0.0
        self.forward_seconds = 0.0
        self._epsilon = torch.finfo(images.dtype).eps if images.is_floating_point() else 0.0
        self._references = torch.empty(0)
        self._tables = {"evaluated": torch.zeros(len(self.moved), dtype=torch.bool)}
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._noted_at = time.perf_counter()

    def answer(self, entries: Int[Tensor, " batch"]) -> None:
        """Evaluate the model on a batch in one call.

        Small outputs are collected and processed later.

        Args:
            entries: Indices of images at shifts, ascending within and between batches.
        """
        output = self._call(entries)
        # A copy, because the function may use one buffer for all its outputs.
        large = output.numel() >= WAITING_NUMBERS
        self._waiting.append((entries, output if large else output.clone()))
        waited = time.perf_counter() - self._noted_at
        if large or len(self._waiting) >= WAITING_CALLS or waited >= WAITING_SECONDS:
            self._flush()

    @property
    def noted(self) -> int:
        """Number of entries whose outputs were processed."""
        return int(self._tables["evaluated"].sum())

    def tensors(self) -> dict[str, Tensor]:
        """Return all results so far, to be saved in a file."""
        return {"references": self._references, **self._tables}

    def restore(self, tensors: Mapping[str, Tensor], batch_size: int) -> float:
        """Resume from saved results, and check the model on the first batch.

        Returns:
            Relative difference ‖now − then‖ / ‖then‖ between the outputs of the first batch now
            and those that were saved.
        """
        entries = torch.arange(min(batch_size, self.moved.num_images))
        output = self._call(entries)
        for name, tensor in self.tensors().items():
            stored = tensors.get(name)
            if stored is None or stored.shape != tensor.shape or stored.dtype != tensor.dtype:
                raise wrong_argument(
                    f"{name} of the checkpoint",
                    "missing or of another shape",
                    f"{tuple(tensor.shape)}",
                )
            tensor.copy_(stored)
        known = min(self.noted, len(entries))
        now, then = output[:known].float(), self._references[:known].to(output.device).float()
        return float((now - then).norm() / then.norm().clamp(min=torch.finfo(torch.float32).tiny))

    def responses(self, seconds: float) -> Responses:
        """Return the results so far.

        Args:
            seconds: Duration of this run. The time of earlier runs is added.
        """
        self._flush()
        order = torch.tensor(self.moved.order).argsort()
        tables = {
            name: values.reshape(len(order), -1)[order] for name, values in self._tables.items()
        }
        return Responses(
            self.moved.movement,
            self.moved.given_shifts,
            self._output,
            labels=self._labels,
            num_values=self._references.shape[1] if self._output in CLASSIFIERS else None,
            calls=self.calls,
            seconds=self.seconds_before + seconds,
            forward_seconds=self.forward_seconds,
            epsilon=self._epsilon,
            **tables,
        )

    def sound_responses(self, seconds: float) -> Responses | None:
        """Return the results before the first invalid output, or None if there are none."""
        with suppress(ModelError):
            self._flush()
        return self.responses(seconds) if self.noted else None

    def _call(self, entries: Tensor) -> Tensor:
        segments = self.moved.segments(entries)
        batch = self.moved.batch(segments)
        start = time.perf_counter()
        output, kind = call_model(self._function, batch, lambda: self.moved.where(segments))
        if output.device.type == "cuda":
            torch.cuda.synchronize(output.device)
        self.forward_seconds += time.perf_counter() - start
        self.calls += 1
        is_first = len(self._tables) == 1
        output = (
            self._begin(output, kind, batch.shape[2:])
            if is_first
            else arrange(output, self._output)
        )
        if output.shape[1:] != self._references.shape[1:] or output.dtype != self._references.dtype:
            found = f"{self.moved.where(segments)} is {output.dtype} of shape {tuple(output.shape)}"
            shape = (len(entries), *self._references.shape[1:])
            expected = f"{self._references.dtype} of shape {shape}, as at first"
            raise ModelError(f"the output of the model {found}, expected {expected}")
        return output

    def _begin(self, output: Tensor, kind: str, seen_size: Sequence[int]) -> Tensor:
        """Determine kind and format of all outputs by the first one, and return it arranged."""
        moved = self.moved
        label_axes = 0 if self._labels is None else self._labels.ndim
        asked = kind if self._output == "auto" else self._output
        self._output, self._stride = infer_kind(output, seen_size, asked, self._stride, label_axes)
        output = arrange(output, self._output)
        if self._stride is not None:
            outputs.check_dense_shifts(
                moved.shifts, output.shape[2:], self._stride, seen_size, moved.movement
            )
        self._seen_size = tuple(seen_size)
        if output.is_floating_point():
            self._epsilon = max(self._epsilon, torch.finfo(output.dtype).eps)
        names = ["error_squared", "norm_squared"]
        ranks = []
        if self._output in ("segmentation", "boxes"):
            names.append("overlap")
        if self._output == "features" and output.ndim == 2:
            names, ranks = [*names, "cosine_distance"], ["rank"]
        self._labels = outputs.fit_labels(self._labels, self._output, output.shape[1])
        if self._output in CLASSIFIERS:
            ranks = ["predictions"]
        if self._output in WITH_PROBABILITIES:
            names.append("probability_change")
        self._tables |= {name: torch.zeros(len(moved), dtype=torch.float64) for name in names}
        self._tables |= {name: torch.full((len(moved),), -1) for name in ranks}
        fits = moved.num_images * output[0].nbytes <= RESIDENT_BYTES
        shape = (moved.num_images, *output.shape[1:])
        self._references = torch.zeros(
            shape, dtype=output.dtype, device=output.device if fits else "cpu"
        )
        return output

    def _flush(self) -> None:
        """Process the outputs that were collected."""
        waiting = self._waiting
        self._waiting = []
        if not waiting:
            return
        entries, output = (
            part[0] if len(part) == 1 else torch.cat(part) for part in zip(*waiting, strict=True)
        )
        lost = outputs.not_finite(output)
        sound = int(lost.to(torch.uint8).argmax()) if lost.any() else len(entries)
        if sound:
            self._note(entries[:sound], output[:sound])
        if sound < len(entries):
            named = [
                f"at shift {self.moved.shifts[part.rank]} "
                f"for {count} of {len(lost[part.rows])} images"
                for part in self.moved.segments(entries)
                if (count := int(lost[part.rows].sum()))
            ]
            more = f" and at {len(named) - 3} more shifts" if len(named) > 3 else ""
            raise ModelError(
                f"the output of the model holds NaN or infinity {', '.join(named[:3])}{more}"
            )

    def _note(self, entries: Tensor, output: Tensor) -> None:
        images, references = entries % self.moved.num_images, self._references
        unshifted = int((entries < self.moved.num_images).sum())
        if unshifted:
            references[images[:unshifted].to(references.device)] = output[:unshifted].to(
                references.device
            )
        if self._stride is None and self._output != "boxes":
            own = images.to(references.device)
            reference = references[own].to(output.device)
            noted = outputs.vector_errors(output, reference, self._output)
            if "rank" in self._tables:
                noted |= outputs.feature_distances(output.to(references.device), references, own)
        else:
            num_rows = max(1, CACHED_BYTES // output[0].nbytes) if output.is_cpu else len(output)
            parts = []
            for segment in self.moved.segments(entries):
                outputs_of_shift = output[segment.rows].split(num_rows)
                references_of_shift = references[segment.images].split(num_rows)
                for part, reference in zip(outputs_of_shift, references_of_shift, strict=True):
                    parts.append(
                        self._moved_errors(part, reference.to(output.device), segment.rank)
                    )
            noted = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        for name, values in noted.items():
            self._tables[name][entries] = values.cpu().to(self._tables[name].dtype)
        self._tables["evaluated"][entries] = True
        self._noted_at = time.perf_counter()

    def _moved_errors(self, output: Tensor, reference: Tensor, rank: int) -> outputs.Tables:
        """Return the errors of maps or boxes, which should shift with the image."""
        shift = self.moved.shifts[rank]
        if self._stride is None:
            return outputs.box_errors(output, reference, shift, self._seen_size)
        compared = outputs.compared_maps(
            output, reference, shift, self._stride, self.moved.movement
        )
        noted = outputs.squares(*compared)
        if self._output == "segmentation":
            found, expected = (each.argmax(dim=1) for each in compared)
            noted["overlap"] = outputs.class_overlap(found, expected, output.shape[1])
        return noted
