"""Measurement of a model on shifted images, batch by batch."""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor

from teka.audit.images import ImageSet, Size, check_images
from teka.audit.measure import outputs
from teka.audit.measure.responses import WITH_ZERO, Responses
from teka.audit.model_call import Model, ModelError, call_model
from teka.audit.model_output import CLASSIFIERS, OUTPUT_CHOICES, arrange, infer_kind
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShifts, SubpixelShifts, read_steps, shift_order
from teka.checks import (
    check_callable,
    check_device,
    check_evaluation_mode,
    check_instance,
    check_name,
    check_stride,
)
from teka.errors import wrong_value
from teka.memory import check_memory

CHECKED_IMAGES = 256  # number of images whose shifts are checked at once
Device = torch.device | str | None
ENTRY_BYTES = 8 * 8  # upper bound of the memory for one image at one shift
Batch = tuple[tuple[int, ...], slice]  # indices of shifts, and the images that get each of them


def split_batches(shifts: CheckedShifts, num_images: int, batch_size: int) -> list[Batch]:
    """Split all images at all shifts into batches, with the shifts from coarse to fine.

    A batch has all images at several shifts, or some of the images at one shift.
    """
    order = shift_order(shifts)
    num_shifts = max(1, batch_size // num_images)
    return [
        (order[first : first + num_shifts], slice(image, min(image + batch_size, num_images)))
        for first in range(0, len(order), num_shifts)
        for image in range(0, num_images, batch_size)
    ]


class Measurement:
    """Measurement of a model on shifted images, which collects the results batch by batch.

    The constructor takes and checks arguments of `measure_responses`. The first call of the model
    determines the kind and shape of the output.
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
        check_images(images, least=1)
        self._device = images.device if device is None else check_device("device", device)
        self._function = function
        self._images = images.detach()
        self._movement = movement
        steps = read_steps("shifts", shifts)
        # Check in chunks, because all padded images together may not fit into memory.
        for chunk in self._images.split(CHECKED_IMAGES):
            self.shifts = movement.check(movement.place(chunk.to(self._device)), steps)
        if all(map(any, self.shifts)):
            raise wrong_value("shifts", self.shifts, WITH_ZERO)
        self.batches = split_batches(self.shifts, len(images), int(batch_size))
        self._zero = self.batches[0][0][0]
        entries = len(self.shifts) * len(images)
        size = math.prod(movement.seen_size(images.shape[2:])) * images.shape[1]
        num_bytes = min(int(batch_size), entries) * size * images.element_size()
        check_memory("batch_size", batch_size, num_bytes, "moved images")
        check_memory("shifts", len(self.shifts), entries * ENTRY_BYTES, "responses")
        self._output = output
        self._stride = None if stride is None else check_stride(stride, images.ndim - 2)
        self._labels = None if labels is None else outputs.check_labels(labels, len(images))
        self._epsilon = torch.finfo(images.dtype).eps if images.is_floating_point() else 0.0
        self._references = torch.empty(0)
        self._tables = {"evaluated": torch.zeros(len(self.shifts), len(images), dtype=torch.bool)}

    def evaluate(self, batch: Batch) -> None:
        """Evaluate the model on a batch in one call, and compare its outputs with the expectation.

        Batches with the zero shift must be evaluated before others.
        """
        shifts, images = batch
        output = self._call(batch)
        evaluated = self._tables["evaluated"]
        for shift, part in zip(shifts, output.unflatten(0, (len(shifts), -1)), strict=True):
            not_finite = outputs.not_finite(part)
            if not_finite.any():
                raise ModelError(
                    f"the output of the model holds NaN or infinity at shift {self.shifts[shift]} "
                    f"for {int(not_finite.sum())} of {len(part)} images"
                )
            if shift == self._zero:
                self._references[images] = part.cpu()
            for name, values in self._errors(part, shift, images).items():
                if name not in self._tables:
                    empty = 0.0 if values.is_floating_point() else -1
                    dtype = torch.float64 if values.is_floating_point() else torch.int64
                    self._tables[name] = torch.full(evaluated.shape, empty, dtype=dtype)
                table = self._tables[name]
                table[shift, images] = values.to(table)
            evaluated[shift, images] = True

    def is_evaluated(self, batch: Batch) -> bool:
        """Return True if a batch was evaluated."""
        shifts, images = batch
        return bool(self._tables["evaluated"][list(shifts), images].all())

    @property
    def num_evaluated(self) -> int:
        """Number of evaluated pairs of image and shift."""
        return int(self._tables["evaluated"].sum())

    @property
    def num_entries(self) -> int:
        """Number of all pairs of image and shift."""
        return self._tables["evaluated"].numel()

    def tensors(self) -> dict[str, Tensor]:
        """Return all results so far, by name, for a checkpoint."""
        return {"references": self._references, **self._tables}

    def restore(self, tensors: Mapping[str, Tensor]) -> float:
        """Resume from saved results, and evaluate the model on the first unshifted images again.

        Returns:
            Relative difference ‖now − then‖ / ‖then‖ between the outputs of the model and the saved
            outputs, or infinity if they differ in shape or dtype.
        """
        images = self.batches[0][1]
        output = self._call(((self._zero,), images)).cpu()
        references = tensors["references"]
        if references.shape != self._references.shape or references.dtype != output.dtype:
            return math.inf
        self._references = references
        self._tables = {name: tensors[name] for name in tensors if name != "references"}
        is_known = self._tables["evaluated"][self._zero, images]
        now = output[is_known].float()
        then = references[images][is_known].float()
        return float((now - then).norm() / then.norm().clamp(min=torch.finfo(torch.float32).tiny))

    def responses(self) -> Responses:
        """Return the results so far."""
        return Responses(
            self._movement,
            self.shifts,
            self._output,
            labels=self._labels,
            num_values=self._references.shape[1] if self._output in CLASSIFIERS else None,
            epsilon=self._epsilon,
            **self._tables,
        )

    def _call(self, batch: Batch) -> Tensor:
        """Return the output of the model for a batch of shifted images."""
        shifts, images = batch
        placed = self._movement.place(self._images[images].to(self._device))
        # Concatenate even a single shift, because the model may write into its input.
        moved = torch.cat([self._movement.move(placed, self.shifts[shift]) for shift in shifts])
        first, *others = shifts
        more = f" and {len(others)} more" if others else ""
        where = f"at shift {self.shifts[first]}{more}, images {images.start} to {images.stop - 1}"
        output, kind = call_model(self._function, moved, where)
        if len(self._tables) == 1:
            self._begin(output, kind, moved.shape[2:])
        output = arrange(output, self._output)
        if output.shape[1:] != self._references.shape[1:] or output.dtype != self._references.dtype:
            shape = (len(moved), *self._references.shape[1:])
            raise ModelError(
                f"the output of the model {where} is {output.dtype} of shape "
                f"{tuple(output.shape)}, expected {self._references.dtype} of shape {shape}, as at "
                "first"
            )
        return output

    def _begin(self, output: Tensor, kind: str, seen_size: Sequence[int]) -> None:
        """Determine kind and format of all outputs by the first one."""
        label_axes = 0 if self._labels is None else self._labels.ndim
        asked = kind if self._output == "auto" else self._output
        self._output, self._stride = infer_kind(output, seen_size, asked, self._stride, label_axes)
        output = arrange(output, self._output)
        if self._stride is not None:
            outputs.check_dense_shifts(
                self.shifts, output.shape[2:], self._stride, seen_size, self._movement
            )
        self._seen_size = tuple(seen_size)
        if output.is_floating_point():
            self._epsilon = max(self._epsilon, torch.finfo(output.dtype).eps)
        self._labels = outputs.fit_labels(self._labels, self._output, output.shape[1])
        self._references = torch.zeros(len(self._images), *output.shape[1:], dtype=output.dtype)

    def _errors(self, output: Tensor, shift: int, images: slice) -> outputs.Tables:
        """Compare the outputs for images at one shift with the expected ones."""
        reference = self._references[images].to(output.device)
        if self._output == "boxes":
            return outputs.box_errors(output, reference, self.shifts[shift], self._seen_size)
        if self._stride is None:
            errors = outputs.vector_errors(output, reference, self._output)
            if self._output == "features" and output.ndim == 2:
                own = torch.arange(images.start, images.stop)
                errors |= outputs.feature_distances(output.cpu(), self._references, own)
            return errors
        compared = outputs.align_maps(
            output, reference, self.shifts[shift], self._stride, self._movement
        )
        errors = outputs.squared_errors(*compared)
        if self._output == "segmentation":
            predicted, expected = (maps.argmax(dim=1) for maps in compared)
            errors["overlap"] = outputs.class_overlap(predicted, expected, output.shape[1])
        return errors
