"""The first pass over a model: which tensors it makes, how they lie, how noisy they are, how far the edge is felt."""

import weakref
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit.layers.layout import Layout
from teka.audit.layers.recogniser import Recogniser, pads_edge
from teka.audit.layers.trace import Visit

# Images as they are, once more, and with the edge overwritten: top and bottom, left and right.
COPIES = 4
# A cell has felt the edge if it changed by more than so many roundings of the largest number of its layer, or by more
# than FELT_AT_MOST of it, which rounding in half precision may reach.
FELT_ROUNDINGS = 64
FELT_AT_MOST = 1e-2


@dataclass(frozen=True)
class Slot:
    """A tensor that a model makes, whichever modules give and get it.

    Args:
        layout: How it lies.
        shape: Its shape without the batch.
        noise: ‖y' − y‖ / ‖y‖ of two copies of the same images.
        border: Cells that the edge can reach, before and after the interior along every axis; () for a vector.
        epsilon: Rounding of its dtype.
    """

    layout: Layout
    shape: tuple[int, ...]
    noise: float
    border: tuple[tuple[int, int], ...]
    epsilon: float


@dataclass(frozen=True)
class Stop:
    """One visit of the survey, in the order of execution.

    Args:
        visit: The visit.
        kind: Class of the module.
        slot: Index of the tensor, or None if it could not be recognised.
        reason: Why it could not be.
        is_new: Whether no visit before had this tensor.
        pads_edge: Whether the module declares that it goes on beyond the edge.
    """

    visit: Visit
    kind: str
    slot: int | None
    reason: str
    is_new: bool
    pads_edge: bool


class Survey:
    """Follows one forward pass of `survey_batch` images.

    Args:
        num_images: Images without their copies.
        seen_size: Height and width of what the model gets.
    """

    def __init__(self, num_images: int, seen_size: tuple[int, int]) -> None:
        self.slots: list[Slot] = []
        self.stops: list[Stop] = []
        self.flattened: dict[str, None] = {}
        self._num_images = num_images
        self._recogniser = Recogniser(seen_size)
        self._seen: dict[int, tuple[weakref.ref, int, int | str]] = {}
        self._inputs: dict[tuple[str, int], tuple[int | None, tuple[int, ...]]] = {}

    @property
    def feels_all_sides(self) -> bool:
        """Whether every map feels every side of the edge; a pool may leave out the last pixels of an odd size."""
        return all(depth for slot in self.slots for sides in slot.border for depth in sides)

    def see(self, visit: Visit, module: nn.Module, tensor: Tensor | None) -> None:
        """Take in one visit; the arguments are those of `Trace`."""
        key = (visit.module, visit.call)
        found, is_new = ("no tensor", False) if tensor is None else self._find(visit, module, tensor)
        slot = found if isinstance(found, int) else None
        reason = found if isinstance(found, str) else ""
        self.stops.append(Stop(visit, type(module).__name__, slot, reason, is_new, pads_edge(module)))
        if visit.side == "input":
            self._inputs[key] = (slot, () if tensor is None else tuple(tensor.shape))
        elif slot is not None and self.slots[slot].layout.name == "vector":
            before = self._inputs[key][0]
            is_parametric = next(module.parameters(recurse=False), None) is not None
            if before is not None and is_parametric and self.slots[before].layout.name == "flattened":
                self.flattened[visit.module] = None

    def _find(self, visit: Visit, module: nn.Module, tensor: Tensor) -> tuple[int | str, bool]:
        """The index of the tensor's slot, or why it has none; and whether the tensor is a new one."""
        handed_on = self._seen.get(id(tensor))
        if handed_on is not None and handed_on[0]() is tensor and handed_on[1] == tensor._version:
            return handed_on[2], False
        found = self._measure(visit, module, tensor)
        self._seen[id(tensor)] = (weakref.ref(tensor), tensor._version, found)
        return found, isinstance(found, int)

    def _measure(self, visit: Visit, module: nn.Module, tensor: Tensor) -> int | str:
        rows = COPIES * self._num_images
        if not tensor.is_floating_point():
            return f"its values are {tensor.dtype}, not real floating-point numbers"
        if tensor.ndim < 2 or tensor.shape[0] != rows:
            return f"its first axis is not the batch; the others are {tuple(tensor.shape[1:])}"
        source, source_shape = None, ()
        if visit.side == "output":
            index, source_shape = self._inputs[visit.module, visit.call]
            source = None if index is None else self.slots[index].layout
            if index is None and source_shape == tuple(tensor.shape):
                return "it has the shape of its input, which could not be recognised"
        layout = self._recogniser.recognise(module, tuple(tensor.shape), visit.side, source, source_shape)
        if isinstance(layout, str):
            return layout
        copies = layout.arrange(tensor.detach()).unflatten(0, (COPIES, self._num_images))
        if not copies.isfinite().all():
            return "it holds NaN or infinity"
        copies = copies.to(torch.promote_types(tensor.dtype, torch.float32))
        epsilon = torch.finfo(tensor.dtype).eps
        size = torch.linalg.vector_norm(copies[0])
        noise = float(torch.linalg.vector_norm(copies[1] - copies[0]) / size) if size else 0.0
        border = _border(copies, epsilon) if layout.grid else ()
        self.slots.append(Slot(layout, tuple(tensor.shape[1:]), noise, border, epsilon))
        return len(self.slots) - 1


def survey_batch(
    images: Float[Tensor, "batch channels height width"], width: int = 1
) -> Float[Tensor, "copies channels height width"]:
    """The images, a second time, and with the outermost pixels of both sides of an axis overwritten by noise.

    Args:
        images: What a model sees of the images at shift zero.
        width: How many pixels deep.
    """
    generator = torch.Generator().manual_seed(0)
    low, high = float(images.min()), float(images.max())
    noise = torch.rand(images.shape, generator=generator, dtype=torch.float32).to(images)
    noise = low + ((high - low) or 1.0) * noise
    copies = [images.clone() for _ in range(COPIES)]
    for axis, copy in enumerate(copies[2:], 2):
        for first in (0, copy.shape[axis] - width):
            copy.narrow(axis, first, width).copy_(noise.narrow(axis, first, width))
    return torch.cat(copies)


def _border(copies: Float[Tensor, "copies batch channels height width"], epsilon: float) -> tuple[tuple[int, int], ...]:
    """How many cells deep each side of the edge is felt, before and after along both axes."""
    felt_above = max(epsilon, min(FELT_ROUNDINGS * epsilon, FELT_AT_MOST)) * copies[0].abs().max()
    felt = ((copies[2:] - copies[0]).abs() > felt_above).flatten(1, 2).any(dim=1)
    depths = []
    for axis, length in enumerate(felt.shape[1:]):
        places = felt[axis].any(dim=1 - axis).nonzero().flatten()
        # On a torus the first side is felt at the last cells too: each cell counts for the side that is nearer.
        first, last = places[places < length / 2], places[places >= length / 2]
        depths.append((int(first[-1]) + 1 if len(first) else 0, length - int(last[0]) if len(last) else 0))
    return tuple(depths)
