"""Every image at every shift, made batch by batch on the device."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from teka.audit.movement import Movement
from teka.audit.shifts import shift_order
from teka.errors import wrong_shape, wrong_value

# Up to this size, what belongs to all images (they themselves, their outputs) stays on the device.
RESIDENT_BYTES = 2**30


class Segment(NamedTuple):
    """The images of a batch with the shift of some rank in the order of measurement, and their rows in the batch."""

    rank: int
    images: slice | Int[Tensor, " segment"]
    rows: slice


class MovedImages:
    """Every image at every shift, in the order of measurement: by shifts from coarse to fine, then by images.

    Entry p of these N · S is image p mod N at shift p div N, the first N are the unshifted images. The images
    (N, C, *S) go to the device once if they fit into 1 GiB there, and else batch by batch; they are moved on the
    device, or where they are if it is None.
    """

    def __init__(
        self,
        images: Shaped[Tensor, "images channels *sizes"],
        shifts: Iterable[int | float | Sequence[int | float]],
        movement: Movement,
        device: torch.device | str | None = None,
    ) -> None:
        if images.ndim < 3 or images.numel() == 0:
            expected = "(images, channels, one or more spatial sizes), none of them empty"
            raise wrong_shape("images", images.shape, expected)
        self.movement = movement
        self.num_images = len(images)
        images = images.detach()
        self._images, self._device = images, images.device if device is None else torch.device(device)
        one = movement.place(images[:1])
        self._placed: Tensor | None = None
        chunk = max(1, RESIDENT_BYTES // (one.numel() * one.element_size()))
        if chunk >= len(images):
            self._placed = movement.place(images.to(self._device))
        wanted = tuple(shifts)
        # In chunks, for all images on their canvases may not fit into memory.
        for start in range(0, len(images), chunk):
            self.given_shifts = movement.check(self._place(slice(start, start + chunk)), wanted)
        if all(map(any, self.given_shifts)):
            expected = "a set with the zero shift, to which the others are compared"
            raise wrong_value("shifts", self.given_shifts, expected)
        self.order = shift_order(self.given_shifts)
        self.shifts: tuple[tuple[int | float, ...], ...] = tuple([self.given_shifts[index] for index in self.order])

    def __len__(self) -> int:
        return self.num_images * len(self.shifts)

    def segments(self, entries: Int[Tensor, " batch"]) -> list[Segment]:
        """The parts of a batch of ascending entries that have the same shift."""
        first, last = int(entries[0]) // self.num_images, int(entries[-1]) // self.num_images
        bounds = torch.searchsorted(entries, torch.arange(first, last + 2) * self.num_images).tolist()
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
        parts = [self.movement.move(self._place(one.images), self.shifts[one.rank]) for one in segments]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def where(self, segments: Sequence[Segment]) -> str:
        """The shifts and images of a batch in words."""
        named = []
        for one in (segments[0], segments[-1]):
            images = one.images
            first, last = (images.start, images.stop - 1) if isinstance(images, slice) else images[[0, -1]].tolist()
            named.append(f"shift {self.shifts[one.rank]}, images {first} to {last}")
        return f"at {named[0]}" if len(segments) == 1 else f"in a batch from {named[0]} on, to {named[1]}"

    def _place(self, images: slice | Tensor) -> Tensor:
        source = self._images if self._placed is None else self._placed
        chosen = source[images if isinstance(images, slice) else images.to(source.device)]
        return self.movement.place(chosen.to(self._device)) if self._placed is None else chosen
