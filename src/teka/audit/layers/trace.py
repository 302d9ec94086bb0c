"""The first pass over a model: which tensors it makes, how they lie, how noisy they are, how far the edge is felt."""

import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, is_dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit.images import RealImages
from teka.audit.layers.layouts import Layout, LayoutRecognizer, pads_edge
from teka.audit.model_call import Model, ModelError, calling
from teka.errors import EXTERNAL_ERRORS, error_message

COPIES = 4  # images as they are, once more, and with the edge overwritten: top and bottom, left and right
# A cell has felt the edge if it changed by more than so many roundings of the largest number of its layer, or by more
# than FELT_AT_MOST of it, which rounding in half precision may reach.
FELT_ROUNDINGS = 64
FELT_AT_MOST = 1e-2


def _eager() -> AbstractContextManager[object]:
    """Return a context in which compiled modules run eagerly, so that their hooks are called."""
    # Nothing is compiled before this module, which is slow to import, has been loaded.
    is_loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_loaded else nullcontext()


@dataclass(frozen=True)
class ModuleCall:
    """A module that got its input, or gave its output ("input" or "output"), at its so-manieth call of a pass."""

    module: str
    call: int
    side: str
    inside: tuple[str, int] | None  # the innermost module that was running, and its call


See = Callable[[ModuleCall, nn.Module, Tensor | None], None]


def call_name(module: str, call: int) -> str:
    """What to call a module: its name, with its number where the same pass called it before."""
    name = module or "(model)"
    return name if call == 1 else f"{name} (call {call})"


class CallTracer(ExitStack):
    """Hooks on modules, until the block ends, that hand every visit, its module and its tensor to a function."""

    def __init__(self, model: Model, modules: Mapping[str, nn.Module], see: See) -> None:
        super().__init__()
        self._model, self._modules, self._see = model, modules, see
        with ExitStack() as hooks:  # where a module takes none, none is left behind
            for name, module in modules.items():
                hooks.callback(
                    module.register_forward_pre_hook(
                        partial(self._before, name), with_kwargs=True
                    ).remove
                )
                # A part that raises is over too, if the model goes on without it.
                after = module.register_forward_hook(partial(self._after, name), always_call=True)
                hooks.callback(after.remove)
            self.push(hooks.pop_all())

    def run(self, batch: Tensor, what: str) -> None:
        """Ask the model for a batch of what is said in words."""
        self._num_rows = len(batch)
        self._calls = dict.fromkeys(self._modules, 0)
        self._running: list[tuple[str, int]] = []
        try:
            with calling(), _eager():
                self._model(batch)
        except EXTERNAL_ERRORS as error:
            raise ModelError(
                f"the model raised {type(error).__name__} for {what}: {error_message(error)}"
            ) from error

    def _before(self, name: str, module: nn.Module, arguments: tuple, options: dict) -> None:
        self._calls[name] += 1
        inside = self._running[-1] if self._running else None
        self._running.append((name, self._calls[name]))
        found = _choose_tensor((arguments, options), self._num_rows)
        self._see(ModuleCall(name, self._calls[name], "input", inside), module, found)

    def _after(self, name: str, module: nn.Module, _arguments: tuple, output: object) -> None:
        _, call = self._running.pop()
        inside = self._running[-1] if self._running else None
        self._see(
            ModuleCall(name, call, "output", inside), module, _choose_tensor(output, self._num_rows)
        )


def _choose_tensor(value: object, num_rows: int) -> Tensor | None:
    # The first floating tensor with a row for each image, however nested; or the first of all.
    first, waiting = None, [value]
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, Tensor):
            if (
                part.is_floating_point()
                and part.ndim > 1
                and part.shape[0] == num_rows
                and part.numel()
            ):
                return part
            first = part if first is None else first
        elif isinstance(part, Mapping):
            waiting[:0] = part.values()
        elif isinstance(part, list | tuple):
            waiting[:0] = part
        elif is_dataclass(part) and not isinstance(part, type):
            waiting[:0] = vars(part).values()
    return first


@dataclass(frozen=True)
class TracedTensor:
    """A tensor that a model makes, whichever modules give and get it."""

    layout: Layout
    shape: tuple[int, ...]  # without the batch
    noise: float  # ‖y' − y‖ / ‖y‖ of two copies of the same images
    border: tuple[
        tuple[int, int], ...
    ]  # cells that the edge can reach, before and after; () for a vector
    epsilon: float  # rounding of its dtype


@dataclass(frozen=True)
class TraceEvent:
    """One visit of the survey, in the order of execution: the tensor's index, or why it could not be recognised."""

    visit: ModuleCall
    kind: str
    slot: int | None
    reason: str
    is_new: bool  # no visit before had this tensor
    pads_edge: bool


class ModelTrace:
    """Follows one forward pass of `trace_batch` images, of which there are so many without their copies."""

    def __init__(self, num_images: int, seen_size: tuple[int, int]) -> None:
        self.slots: list[TracedTensor] = []
        self.stops: list[TraceEvent] = []
        self.flattened: dict[str, None] = {}
        self._num_images, self.seen_size, self._recogniser = (
            num_images,
            seen_size,
            LayoutRecognizer(seen_size),
        )
        self._seen: dict[int, tuple[weakref.ref, int | None, int | str]] = {}
        self._inputs: dict[tuple[str, int], tuple[int | None, tuple[int, ...]]] = {}

    @property
    def feels_all_sides(self) -> bool:
        """Whether every map feels every side of the edge; a pool may leave out the last pixels of an odd size."""
        return all(depth for slot in self.slots for sides in slot.border for depth in sides)

    def see(self, visit: ModuleCall, module: nn.Module, tensor: Tensor | None) -> None:
        """Take in one visit; the arguments are those of `CallTracer`."""
        key = (visit.module, visit.call)
        found, is_new = (
            ("no tensor", False) if tensor is None else self._find(visit, module, tensor)
        )
        slot, reason = (found, "") if isinstance(found, int) else (None, found)
        self.stops.append(
            TraceEvent(visit, type(module).__name__, slot, reason, is_new, pads_edge(module))
        )
        if visit.side == "input":
            self._inputs[key] = (slot, () if tensor is None else tuple(tensor.shape))
        elif slot is not None and self.slots[slot].layout.name == "vector":
            before, weights = self._inputs[key][0], list(module.parameters(recurse=False))
            if before is not None and weights and self.slots[before].layout.name == "flattened":
                self.flattened[visit.module] = None

    def _find(self, visit: ModuleCall, module: nn.Module, tensor: Tensor) -> tuple[int | str, bool]:
        """The index of the tensor's slot, or why it has none; and whether the tensor is a new one."""
        # What is made in inference mode has no version.
        version = None if tensor.is_inference() else tensor._version
        handed_on = self._seen.get(id(tensor))
        if handed_on is not None and handed_on[0]() is tensor and handed_on[1] == version:
            return handed_on[2], False
        found = self._measure(visit, module, tensor)
        self._seen[id(tensor)] = (weakref.ref(tensor), version, found)
        return found, isinstance(found, int)

    def _measure(self, visit: ModuleCall, module: nn.Module, tensor: Tensor) -> int | str:
        if not tensor.is_floating_point():
            return f"its values are {tensor.dtype}, not real floating-point numbers"
        if tensor.ndim < 2 or tensor.shape[0] != COPIES * self._num_images:
            return f"its first axis is not the batch; the others are {tuple(tensor.shape[1:])}"
        source, source_shape = None, ()
        if visit.side == "output":
            index, source_shape = self._inputs[visit.module, visit.call]
            source = None if index is None else self.slots[index].layout
            if index is None and source_shape == tuple(tensor.shape):
                return "it has the shape of its input, which could not be recognised"
        layout = self._recogniser.recognize(
            module, tuple(tensor.shape), visit.side, source, source_shape
        )
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
        self.slots.append(TracedTensor(layout, tuple(tensor.shape[1:]), noise, border, epsilon))
        return len(self.slots) - 1


def trace_batch(
    images: RealImages, width: int = 1
) -> Float[Tensor, "copies channels height width"]:
    """The images, again, and with the outermost `width` pixels of both sides of an axis overwritten by noise."""
    generator = torch.Generator().manual_seed(0)
    low, high = map(float, torch.aminmax(images))
    noise = torch.rand(images.shape, generator=generator, dtype=torch.float32).to(images)
    noise = low + ((high - low) or 1.0) * noise
    copies = [images.clone() for _ in range(COPIES)]
    for axis, copy in enumerate(copies[2:], 2):
        for first in (0, copy.shape[axis] - width):
            copy.narrow(axis, first, width).copy_(noise.narrow(axis, first, width))
    return torch.cat(copies)


def _border(
    copies: Float[Tensor, "copies batch channels height width"], epsilon: float
) -> tuple[tuple[int, int], ...]:
    """How many cells deep each side of the edge is felt, before and after along both axes."""
    felt_above = max(epsilon, min(FELT_ROUNDINGS * epsilon, FELT_AT_MOST)) * copies[0].abs().max()
    felt = ((copies[2:] - copies[0]).abs() > felt_above).flatten(1, 2).any(dim=1)
    depths = []
    for axis, length in enumerate(felt.shape[1:]):
        places = felt[axis].any(dim=1 - axis).nonzero().flatten()
        # On a torus the first side is felt at the last cells too: each cell counts for the side that is nearer.
        first, last = places[places < length / 2], places[places >= length / 2]
        depths.append(
            (int(first[-1]) + 1 if len(first) else 0, length - int(last[0]) if len(last) else 0)
        )
    return tuple(depths)
