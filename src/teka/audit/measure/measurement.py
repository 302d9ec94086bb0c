"""Measurement in progress: the model, the shifted images, and the outputs so far."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Shaped
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
from teka.audit.shifts import CheckedShift, CheckedShifts, SubpixelShifts, read_steps, shift_order
from teka.checks import check_callable, check_device, check_instance, check_name, check_stride
from teka.errors import wrong_argument, wrong_value
from teka.memory import check_memory

CHECKED_IMAGES = 256  # number of images whose shifts are checked at once
# Size of maps that are compared at once on a CPU, so that intermediate results stay in the cache.
CACHED_BYTES = 2**20
Device = torch.device | str | None
ENTRY_BYTES = 8 * 8  # upper bound of the memory for one image at one shift


class Segment(NamedTuple):
    """Images of a batch that have the same shift.

    Args:
        rank: Index of the shift in the order of measurement.
        images: Indices of the images.
        rows: Their rows in the batch.
    """

    rank: int
    images: slice
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
        self._device = device
        shifts = read_steps("shifts", shifts)
        # Check in chunks, because all padded images together may not fit into memory.
        for start in range(0, len(images), CHECKED_IMAGES):
            chunk = self._place(slice(start, start + CHECKED_IMAGES))
            self.given_shifts = movement.check(chunk, shifts)
        if all(map(any, self.given_shifts)):
            raise wrong_value("shifts", self.given_shifts, WITH_ZERO)
        self.order = shift_order(self.given_shifts)
        self.shifts: CheckedShifts = tuple([self.given_shifts[index] for index in self.order])

    def __len__(self) -> int:
        return self.num_images * len(self.shifts)

    def segments(self, entries: range) -> list[Segment]:
        """Split a batch of consecutive entries into parts with the same shift."""
        segments = []
        start = entries.start
        while start < entries.stop:
            rank, image = divmod(start, self.num_images)
            size = min(entries.stop - start, self.num_images - image)
            row = start - entries.start
            segments.append(Segment(rank, slice(image, image + size), slice(row, row + size)))
            start += size
        return segments

    def batch(self, segments: Sequence[Segment]) -> Shaped[Tensor, "batch channels *seen"]:
        """Return the shifted images of a batch on the device, as a tensor that may be modified."""
        return torch.cat(
            [
                self.movement.move(self._place(segment.images), self.shifts[segment.rank])
                for segment in segments
            ]
        )

    def where(self, segments: Sequence[Segment]) -> str:
        """Describe the shifts and images of a batch, for error messages."""
        first, last = (
            f"shift {self.shifts[rank]}, images {images.start} to {images.stop - 1}"
            for rank, images, _ in (segments[0], segments[-1])
        )
        return f"at {first}" if len(segments) == 1 else f"in a batch from {first} on, to {last}"

    def _place(self, images: slice) -> Tensor:
        return self.movement.place(self._images[images].to(self._device))


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
        self._epsilon = torch.finfo(images.dtype).eps if images.is_floating_point() else 0.0
        self._references = torch.empty(0)
        self._tables = {"evaluated": torch.zeros(len(self.moved), dtype=torch.bool)}

    def evaluate(self, entries: range) -> None:
        """Evaluate the model on a batch in one call, and compare its output with the expected one.

        Args:
            entries: Indices of images at shifts, which continue those of the batch before.
        """
        output = self._call(entries)
        not_finite = outputs.not_finite(output)
        num_valid = len(entries)
        if not_finite.any():
            num_valid = int(not_finite.to(torch.uint8).argmax())
        for segment in self.moved.segments(entries[:num_valid]):
            self._compare(segment, output[segment.rows])
        if num_valid < len(entries):
            named = [
                f"at shift {self.moved.shifts[segment.rank]} "
                f"for {count} of {len(not_finite[segment.rows])} images"
                for segment in self.moved.segments(entries)
                if (count := int(not_finite[segment.rows].sum()))
            ]
            more = f" and at {len(named) - 3} more shifts" if len(named) > 3 else ""
            raise ModelError(
                f"the output of the model holds NaN or infinity {', '.join(named[:3])}{more}"
            )

    @property
    def num_evaluated(self) -> int:
        """Number of entries that were evaluated."""
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
        entries = range(min(batch_size, self.moved.num_images))
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
        known = min(self.num_evaluated, len(entries))
        now, then = output[:known].float().cpu(), self._references[:known].float()
        return float((now - then).norm() / then.norm().clamp(min=torch.finfo(torch.float32).tiny))

    def responses(self) -> Responses:
        """Return the results so far."""
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
            epsilon=self._epsilon,
            **tables,
        )

    def _call(self, entries: range) -> Tensor:
        segments = self.moved.segments(entries)
        batch = self.moved.batch(segments)
        output, kind = call_model(self._function, batch, lambda: self.moved.where(segments))
        if len(self._tables) == 1:
            self._begin(output, kind, batch.shape[2:])
        output = arrange(output, self._output)
        if output.shape[1:] != self._references.shape[1:] or output.dtype != self._references.dtype:
            found = f"{self.moved.where(segments)} is {output.dtype} of shape {tuple(output.shape)}"
            shape = (len(entries), *self._references.shape[1:])
            expected = f"{self._references.dtype} of shape {shape}, as at first"
            raise ModelError(f"the output of the model {found}, expected {expected}")
        return output

    def _begin(self, output: Tensor, kind: str, seen_size: Sequence[int]) -> None:
        """Determine kind and format of all outputs by the first one."""
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
        self._labels = outputs.fit_labels(self._labels, self._output, output.shape[1])
        names = ["error_squared", "norm_squared"]
        ranks = []
        if self._output in ("segmentation", "boxes"):
            names.append("overlap")
        if self._output == "features" and output.ndim == 2:
            names.append("cosine_distance")
            ranks = ["rank"]
        if self._output in CLASSIFIERS:
            ranks = ["predictions"]
        if self._output in WITH_PROBABILITIES:
            names.append("probability_change")
        self._tables |= {name: torch.zeros(len(moved), dtype=torch.float64) for name in names}
        self._tables |= {name: torch.full((len(moved),), -1) for name in ranks}
        self._references = torch.zeros(moved.num_images, *output.shape[1:], dtype=output.dtype)

    def _compare(self, segment: Segment, output: Tensor) -> None:
        """Note the errors of the outputs of a segment."""
        if segment.rank == 0:
            self._references[segment.images] = output.cpu()
        num_rows = max(1, CACHED_BYTES // output[0].nbytes) if output.is_cpu else len(output)
        entry = segment.rank * self.moved.num_images + segment.images.start
        image = segment.images.start
        for part in output.split(num_rows):
            images = torch.arange(image, image + len(part))
            entries = slice(entry, entry + len(part))
            for name, values in self._errors(part, images, self.moved.shifts[segment.rank]).items():
                self._tables[name][entries] = values.cpu().to(self._tables[name].dtype)
            self._tables["evaluated"][entries] = True
            entry += len(part)
            image += len(part)

    def _errors(self, output: Tensor, images: Tensor, shift: CheckedShift) -> outputs.Tables:
        """Return the errors of the outputs for images at one shift."""
        reference = self._references[images].to(output.device)
        if self._output == "boxes":
            return outputs.box_errors(output, reference, shift, self._seen_size)
        if self._stride is None:
            errors = outputs.vector_errors(output, reference, self._output)
            if "rank" in self._tables:
                errors |= outputs.feature_distances(output.cpu(), self._references, images)
            return errors
        compared = outputs.compared_maps(
            output, reference, shift, self._stride, self.moved.movement
        )
        errors = outputs.squares(*compared)
        if self._output == "segmentation":
            found, expected = (each.argmax(dim=1) for each in compared)
            errors["overlap"] = outputs.class_overlap(found, expected, output.shape[1])
        return errors
