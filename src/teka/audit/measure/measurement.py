"""A measurement in progress: the model, the images at their shifts, and the answers so far."""

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from teka.audit.images import ImageSet, Size, check_images
from teka.audit.measure import outputs
from teka.audit.measure.responses import WITH_ZERO, Responses
from teka.audit.model_call import Model, ModelError, call_model, check_evaluation_mode
from teka.audit.model_output import (
    CLASSIFIERS,
    OUTPUT_CHOICES,
    OUTPUTS,
    WITH_PROBABILITIES,
    arrange,
    infer_kind,
)
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShifts, SubpixelShifts, read_steps, shift_order
from teka.checks import check_callable, check_device, check_instance, check_name, check_stride
from teka.errors import wrong_argument, wrong_value
from teka.memory import check_memory

# Up to this size, what belongs to all images (they themselves, their outputs) stays on the device.
RESIDENT_BYTES = 2**30
# Maps of so many bytes are compared at once on a CPU: what each step makes of them is in the cache for the next.
CACHED_BYTES = 2**20
Device = torch.device | str | None
# Outputs wait until there are so many numbers or calls of them, or for so long: with few numbers it is calls of torch
# that take the time.
WAITING_NUMBERS, WAITING_CALLS, WAITING_SECONDS = 2**16, 16, 0.5
ENTRY_BYTES = 8 * 8  # that a response to an image at a shift takes at most
OF_PROBABILITIES = ("loss", "probability_change", "divergence")


class Segment(NamedTuple):
    """The images of a batch with the shift of some rank in the order of measurement, and their rows in the batch."""

    rank: int
    images: slice | Int[Tensor, " segment"]
    rows: slice


class MovedImages:
    """Every image at every shift: entry p is image p mod N at shift p div N, of the shifts from coarse to fine."""

    def __init__(
        self, images: ImageSet, shifts: SubpixelShifts, movement: Movement, device: Device = None
    ) -> None:
        check_images(images, least=1)
        self.movement, self.num_images = movement, len(images)
        self._images, self._device = (
            images.detach(),
            images.device if device is None else torch.device(device),
        )
        chunk = max(1, RESIDENT_BYTES // movement.place(self._images[:1]).nbytes)
        wanted: Any = read_steps("shifts", shifts)
        self._placed = (
            movement.place(self._images.to(self._device)) if chunk >= len(images) else None
        )
        # In chunks, for all images on their canvases may not fit into memory.
        for start in range(0, len(images), chunk):
            self.given_shifts = movement.check(self._place(slice(start, start + chunk)), wanted)
        if all(map(any, self.given_shifts)):
            raise wrong_value("shifts", self.given_shifts, WITH_ZERO)
        self.order = shift_order(self.given_shifts)
        self.shifts: CheckedShifts = tuple([self.given_shifts[index] for index in self.order])

    def __len__(self) -> int:
        return self.num_images * len(self.shifts)

    def segments(self, entries: Int[Tensor, " batch"]) -> list[Segment]:
        """The parts of a batch of ascending entries that have the same shift."""
        first, last = int(entries[0]) // self.num_images, int(entries[-1]) // self.num_images
        bounds = torch.searchsorted(
            entries, torch.arange(first, last + 2) * self.num_images
        ).tolist()
        segments = []
        for rank, (start, stop) in enumerate(itertools.pairwise(bounds), first):
            if start < stop:
                images = entries[start:stop] - rank * self.num_images
                low, high = int(images[0]), int(images[-1])
                # A slice is a view, which costs no copy.
                chosen = slice(low, high + 1) if high - low + 1 == stop - start else images
                segments.append(Segment(rank, chosen, slice(start, stop)))
        return segments

    def batch(self, segments: Sequence[Segment]) -> Shaped[Tensor, "batch channels *seen"]:
        """The moved images of a batch, on the device, which the caller may change."""
        parts = [
            self.movement.move(self._place(one.images), self.shifts[one.rank]) for one in segments
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def where(self, segments: Sequence[Segment]) -> str:
        """The shifts and images of a batch in words."""
        named = []
        for one in (segments[0], segments[-1]):
            images = one.images
            first, last = (
                (images.start, images.stop - 1)
                if isinstance(images, slice)
                else images[[0, -1]].tolist()
            )
            named.append(f"shift {self.shifts[one.rank]}, images {first} to {last}")
        return (
            f"at {named[0]}"
            if len(segments) == 1
            else f"in a batch from {named[0]} on, to {named[1]}"
        )

    def _place(self, images: slice | Tensor) -> Tensor:
        source = self._images if self._placed is None else self._placed
        chosen = source[images if isinstance(images, slice) else images.to(source.device)]
        return self.movement.place(chosen.to(self._device)) if self._placed is None else chosen


class Measurement:
    """Its arguments are those of `measure_responses`, checked before the first call; that tells the output's shape."""

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
        among: Sequence[str] = OUTPUTS,
    ) -> None:
        check_callable("function", function)
        check_evaluation_mode("function", function)
        check_name("output", output, OUTPUT_CHOICES)
        check_instance("movement", movement, Movement)
        if device is not None:
            device = check_device("device", device)
        self._among = among
        self.moved = MovedImages(images, shifts, movement, device)
        entries, size = (
            len(self.moved),
            math.prod(movement.seen_size(images.shape[2:])) * images.shape[1],
        )
        num_bytes = min(int(batch_size), entries) * size * images.element_size()
        check_memory("batch_size", batch_size, num_bytes, "moved images")
        check_memory("shifts", len(self.moved.shifts), entries * ENTRY_BYTES, "responses")
        self._function, self._output = function, output
        self._stride = None if stride is None else check_stride(stride, images.ndim - 2)
        self._labels = None if labels is None else outputs.check_labels(labels, len(images))
        self.calls, self.seconds_before, self.forward_seconds = 0, 0.0, 0.0
        self._epsilon = torch.finfo(images.dtype).eps if images.is_floating_point() else 0.0
        self._references, self._tables = (
            torch.empty(0),
            {"evaluated": torch.zeros(len(self.moved), dtype=torch.bool)},
        )
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._noted_at = time.perf_counter()

    def answer(self, entries: Int[Tensor, " batch"]) -> None:
        """Ask the model for entries, which ascend from batch to batch, in one call; small outputs wait to be noted."""
        output = self._call(entries)
        # A copy, because the function may use one buffer for all its outputs.
        large = output.numel() >= WAITING_NUMBERS
        self._waiting.append((entries, output if large else output.clone()))
        waited = time.perf_counter() - self._noted_at
        if large or len(self._waiting) >= WAITING_CALLS or waited >= WAITING_SECONDS:
            self._flush()

    @property
    def noted(self) -> int:
        """Number of entries noted."""
        return int(self._tables["evaluated"].sum())

    def evaluated(self, entries: Int[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
        """Which of these entries are answered already."""
        self._flush()
        return self._tables["evaluated"][entries]

    def wrong(self, entries: Int[Tensor, " batch"]) -> Tensor:
        """Which of these entries were answered wrongly; needs labels and logits."""
        self._flush()
        assert self._labels is not None
        return self._tables["predictions"][entries] != self._labels[entries % self.moved.num_images]

    def tensors(self) -> dict[str, Tensor]:
        """All answers noted, to be written to a file."""
        return {"references": self._references, **self._tables}

    def restore(self, tensors: Mapping[str, Tensor], batch_size: int) -> float:
        """Resume from what `tensors` gave; and ‖now − then‖ / ‖then‖ of the first batch, asked again."""
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
        """The answers so far; to the seconds since this start those of earlier ones are added."""
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
        """The answers before the first that could not be measured, or None if there is none."""
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
            expected = f"{self._references.dtype} of shape {(len(entries), *self._references.shape[1:])}, as at first"
            raise ModelError(f"the output of the model {found}, expected {expected}")
        return output

    def _begin(self, output: Tensor, kind: str, seen_size: Sequence[int]) -> Tensor:
        """Decide by the first output what all of them are, and return it as `arrange` does."""
        moved, label_axes = self.moved, 0 if self._labels is None else self._labels.ndim
        asked = kind if self._output == "auto" else self._output
        given = output, seen_size, asked, self._stride, label_axes, self._among
        self._output, self._stride = infer_kind(*given)
        output = arrange(output, self._output)
        if self._stride is not None:
            outputs.check_dense_shifts(
                moved.shifts, output.shape[2:], self._stride, seen_size, moved.movement
            )
        if self._output == "boxes" and moved.movement.change is not None:
            raise wrong_value(
                "mode", moved.movement.mode, "one that shifts images, for an output of boxes"
            )
        self._seen_size = tuple(seen_size)
        if output.is_floating_point():
            self._epsilon = max(self._epsilon, torch.finfo(output.dtype).eps)
        names, ranks = ["error_squared", "norm_squared"], []
        if self._output in ("segmentation", "boxes"):
            names.append("overlap")
        if self._output == "features" and output.ndim == 2:
            names, ranks = [*names, "cosine_distance"], ["rank"]
        self._labels = outputs.fit_labels(self._labels, self._output, output.shape[1])
        if self._output in WITH_PROBABILITIES:
            names += OF_PROBABILITIES if self._labels is not None else OF_PROBABILITIES[1:]
        if self._output in CLASSIFIERS:
            ranks = ["predictions"]
        self._tables |= {name: torch.zeros(len(moved), dtype=torch.float64) for name in names}
        self._tables |= {name: torch.full((len(moved),), -1) for name in ranks}
        fits = moved.num_images * output[0].nbytes <= RESIDENT_BYTES
        shape = (moved.num_images, *output.shape[1:])
        self._references = torch.zeros(
            shape, dtype=output.dtype, device=output.device if fits else "cpu"
        )
        return output

    def _flush(self) -> None:
        """Note the outputs that wait."""
        waiting, self._waiting = self._waiting, []
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
                f"at shift {self.moved.shifts[one.rank]} for {count} of {len(lost[one.rows])} images"
                for one in self.moved.segments(entries)
                if (count := int(lost[one.rows].sum()))
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
            labels = None if self._labels is None else self._labels[images]
            noted = outputs.vector_errors(output, reference, labels, self._output)
            if "rank" in self._tables:
                noted |= outputs.feature_distances(output.to(references.device), references, own)
        else:
            some = max(1, CACHED_BYTES // output[0].nbytes) if output.is_cpu else len(output)
            parts = [
                self._moved_errors(found, reference.to(output.device), one.rank)
                for one in self.moved.segments(entries)
                for found, reference in zip(
                    output[one.rows].split(some), references[one.images].split(some), strict=True
                )
            ]
            noted = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        for name, values in noted.items():
            self._tables[name][entries] = values.cpu().to(self._tables[name].dtype)
        self._tables["evaluated"][entries] = True
        self._noted_at = time.perf_counter()

    def _moved_errors(self, output: Tensor, reference: Tensor, rank: int) -> outputs.Tables:
        """The tables of what moves along with the images, at the shift of a rank."""
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
