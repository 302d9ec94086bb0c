"""Trace of one forward pass: the tensors of a model, their layouts, noise and border effects."""

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

# Copies of the images: twice unchanged, with top and bottom overwritten, with left and right
# overwritten.
COPIES = 4
# A cell depends on the edge if it changes by more than this number of roundings of the largest
# value of its layer, or by more than FELT_AT_MOST of it, which half precision may reach.
FELT_ROUNDINGS = 64
FELT_AT_MOST = 1e-2


def _eager() -> AbstractContextManager[object]:
    """Return a context in which compiled modules run eagerly, so that their hooks are called."""
    # If torch._dynamo, which is slow to import, is not loaded, then nothing can be compiled.
    is_loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_loaded else nullcontext()


@dataclass(frozen=True)
class ModuleCall:
    """Input or output of a module at one of its calls within a forward pass.

    Args:
        module: Name of the module.
        call: Index of this call of the module within the forward pass, from 1.
        side: "input" or "output".
        inside: Name and call of the innermost module that was running, or None.
    """

    module: str
    call: int
    side: str
    inside: tuple[str, int] | None


See = Callable[[ModuleCall, nn.Module, Tensor | None], None]


def call_name(module: str, call: int) -> str:
    """Return the name of a module for display, with the index of the call from the second on."""
    name = module or "(model)"
    return name if call == 1 else f"{name} (call {call})"


class CallTracer(ExitStack):
    """Forward hooks on modules that pass every input and output tensor to a function.

    The hooks are removed at the end of the context.

    Args:
        model: Function that runs the model.
        modules: Modules by name.
        see: Function of the call, the module and its tensor (or None).
    """

    def __init__(self, model: Model, modules: Mapping[str, nn.Module], see: See) -> None:
        super().__init__()
        self._model, self._modules, self._see = model, modules, see
        with ExitStack() as hooks:  # removes all hooks if one module does not support them
            for name, module in modules.items():
                hooks.callback(
                    module.register_forward_pre_hook(
                        partial(self._before, name), with_kwargs=True
                    ).remove
                )
                # With always_call, a call also ends if the module raises and the model continues.
                after = module.register_forward_hook(partial(self._after, name), always_call=True)
                hooks.callback(after.remove)
            self.push(hooks.pop_all())

    def run(self, batch: Tensor, what: str) -> None:
        """Run the model on a batch, which `what` describes for error messages."""
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
        tensor = _choose_tensor((arguments, options), self._num_rows)
        self._see(ModuleCall(name, self._calls[name], "input", inside), module, tensor)

    def _after(self, name: str, module: nn.Module, _arguments: tuple, output: object) -> None:
        _, call = self._running.pop()
        inside = self._running[-1] if self._running else None
        self._see(
            ModuleCall(name, call, "output", inside), module, _choose_tensor(output, self._num_rows)
        )


def _choose_tensor(value: object, num_rows: int) -> Tensor | None:
    # Choose the first floating-point tensor with a row for each image, at any nesting depth, or
    # else the first tensor.
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
    """Tensor of a model, independent of the modules that return or receive it.

    Args:
        layout: How the tensor is arranged over the image.
        shape: Shape without the batch axis.
        noise: ‖y' − y‖ / ‖y‖ for two copies of the same images.
        border: Number of cells that the edge of the image affects, before and after along each
            axis; () for a vector.
        epsilon: Machine epsilon of the dtype.
    """

    layout: Layout
    shape: tuple[int, ...]
    noise: float
    border: tuple[tuple[int, int], ...]
    epsilon: float


@dataclass(frozen=True)
class TraceEvent:
    """Input or output of a module in the traced forward pass, in the order of execution.

    Args:
        visit: The call of the module.
        kind: Class of the module.
        slot: Index of the tensor in `ModelTrace.slots`, or None.
        reason: Why the tensor was not recognized, or "".
        is_new: Whether the tensor did not occur before.
        pads_edge: Whether the module pads its input.
    """

    visit: ModuleCall
    kind: str
    slot: int | None
    reason: str
    is_new: bool
    pads_edge: bool


class ModelTrace:
    """Record of all tensors in a forward pass on the images of `trace_batch`.

    Args:
        num_images: Number of images without their copies.
        seen_size: Spatial size of the images.
    """

    def __init__(self, num_images: int, seen_size: tuple[int, int]) -> None:
        self.slots: list[TracedTensor] = []
        self.stops: list[TraceEvent] = []
        self.flattened: dict[str, None] = {}
        self._num_images = num_images
        self.seen_size = seen_size
        self._recogniser = LayoutRecognizer(seen_size)
        self._seen: dict[int, tuple[weakref.ref, int | None, int | str]] = {}
        self._inputs: dict[tuple[str, int], tuple[int | None, tuple[int, ...]]] = {}

    @property
    def feels_all_sides(self) -> bool:
        """True if every side of the edge affects every map.

        A pooling layer may ignore the last pixels of an odd size.
        """
        return all(depth for slot in self.slots for sides in slot.border for depth in sides)

    def see(self, visit: ModuleCall, module: nn.Module, tensor: Tensor | None) -> None:
        """Record one input or output. The arguments are those of `CallTracer`."""
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
        """Return the index of the tensor or why it has none, and whether the tensor is new."""
        # Tensors that are made in inference mode have no version.
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
                return "it has the shape of its input, which could not be recognized"
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
    """Return four copies of images, two of which have noise at the edge.

    Args:
        images: Images (B, C, H, W).
        width: Number of pixels that are overwritten at both ends of an axis.

    Returns:
        The images twice, then with noise at top and bottom, then with noise at left and right.
    """
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
    """Return how many cells at each side depend on the edge, before and after along both axes."""
    felt_above = max(epsilon, min(FELT_ROUNDINGS * epsilon, FELT_AT_MOST)) * copies[0].abs().max()
    felt = ((copies[2:] - copies[0]).abs() > felt_above).flatten(1, 2).any(dim=1)
    depths = []
    for axis, length in enumerate(felt.shape[1:]):
        places = felt[axis].any(dim=1 - axis).nonzero().flatten()
        # On a torus, the first side also affects the last cells. Use the nearer side.
        first, last = places[places < length / 2], places[places >= length / 2]
        depths.append(
            (int(first[-1]) + 1 if len(first) else 0, length - int(last[0]) if len(last) else 0)
        )
    return tuple(depths)
