"""Trace of one forward pass: the tensors of a model, their layouts, noise and border effects."""

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, is_dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit.images import RealImages
from teka.audit.layers.layouts import Layout, LayoutRecognizer
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
        index: Index of this call of the module within the forward pass, from 1.
        side: "input" or "output".
        inside: The call of the innermost module that was running, or None.
    """

    module: str
    index: int
    side: str
    inside: "ModuleCall | None"

    @property
    def name(self) -> str:
        """Name for display, with the index of the call from the second on."""
        name = self.module or "(model)"
        return name if self.index == 1 else f"{name} (call {self.index})"


See = Callable[[ModuleCall, nn.Module, Tensor | None], None]


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
                before, after = partial(self._before, name), partial(self._after, name)
                handle = module.register_forward_pre_hook(before, with_kwargs=True)
                hooks.callback(handle.remove)
                # With always_call, a call also ends if the module raises and the model continues.
                handle = module.register_forward_hook(after, always_call=True)
                hooks.callback(handle.remove)
            self.push(hooks.pop_all())

    def run(self, batch: Tensor, what: str) -> None:
        """Run the model on a batch, which `what` describes for error messages."""
        self._num_rows = len(batch)
        self._num_calls = dict.fromkeys(self._modules, 0)
        self._running: list[ModuleCall] = []
        try:
            with calling(), _eager():
                self._model(batch)
        except EXTERNAL_ERRORS as error:
            message = f"raised {type(error).__name__} for {what}: {error_message(error)}"
            raise ModelError(f"the model {message}") from error

    def _before(self, name: str, module: nn.Module, arguments: tuple, options: dict) -> None:
        self._num_calls[name] += 1
        inside = self._running[-1] if self._running else None
        call = ModuleCall(name, self._num_calls[name], "input", inside)
        self._running.append(call)
        self._see(call, module, _choose_tensor((arguments, options), self._num_rows))

    def _after(self, name: str, module: nn.Module, _arguments: tuple, output: object) -> None:
        call = self._running.pop()
        call = ModuleCall(name, call.index, "output", call.inside)
        self._see(call, module, _choose_tensor(output, self._num_rows))


def _choose_tensor(value: object, num_rows: int) -> Tensor | None:
    """Return the first floating-point tensor with a row for each image, or else the first tensor.

    The value may be nested.
    """
    tensors = list(_find_tensors(value))
    for tensor in tensors:
        has_rows = tensor.ndim > 1 and len(tensor) == num_rows and tensor.numel()
        if tensor.is_floating_point() and has_rows:
            return tensor
    return tensors[0] if tensors else None


def _find_tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    for part in value if isinstance(value, list | tuple) else ():
        yield from _find_tensors(part)


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
        call: The call of the module.
        module: The module.
        tensor: Index of the tensor in `ModelTrace.tensors`, or None.
        reason: Why the tensor was not recognized, or "".
        is_new: Whether the tensor did not occur before.
    """

    call: ModuleCall
    module: nn.Module
    tensor: int | None
    reason: str
    is_new: bool


class ModelTrace:
    """Record of all tensors in a forward pass on the images of `trace_batch`.

    Args:
        num_images: Number of images without their copies.
        seen_size: Spatial size of the images.
    """

    def __init__(self, num_images: int, seen_size: tuple[int, int]) -> None:
        self.tensors: list[TracedTensor] = []
        self.events: list[TraceEvent] = []
        self.flattened: dict[str, None] = {}
        self.seen_size = seen_size
        self._num_images = num_images
        self._recognizer = LayoutRecognizer(seen_size)
        # Index or reason of each tensor, with its version, by its id.
        self._known: dict[int, tuple[weakref.ref, int | None, int | str]] = {}
        # Index of the tensor and shape of each module's latest input.
        self._inputs: dict[str, tuple[int | None, tuple[int, ...]]] = {}

    @property
    def feels_all_sides(self) -> bool:
        """True if every side of the edge affects every map.

        A pooling layer may ignore the last pixels of an odd size.
        """
        return all(depth for tensor in self.tensors for sides in tensor.border for depth in sides)

    def see(self, call: ModuleCall, module: nn.Module, tensor: Tensor | None) -> None:
        """Record one input or output. The arguments are those of `CallTracer`."""
        found, is_new = ("no tensor", False) if tensor is None else self._find(call, module, tensor)
        index, reason = (found, "") if isinstance(found, int) else (None, found)
        self.events.append(TraceEvent(call, module, index, reason, is_new))
        if call.side == "input":
            self._inputs[call.module] = index, () if tensor is None else tuple(tensor.shape)
            return
        before = self._inputs[call.module][0]
        has_weights = any(True for _ in module.parameters(recurse=False))
        if index is not None and before is not None and has_weights:
            names = self.tensors[before].layout.name, self.tensors[index].layout.name
            if names == ("flattened", "vector"):
                self.flattened[call.module] = None

    def _find(self, call: ModuleCall, module: nn.Module, tensor: Tensor) -> tuple[int | str, bool]:
        """Return the index of the tensor or why it has none, and whether the tensor is new."""
        # Tensors that are made in inference mode have no version.
        version = None if tensor.is_inference() else tensor._version
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == version:
            return known[2], False
        found = self._measure(call, module, tensor)
        self._known[id(tensor)] = (weakref.ref(tensor), version, found)
        return found, isinstance(found, int)

    def _measure(self, call: ModuleCall, module: nn.Module, tensor: Tensor) -> int | str:
        shape = tuple(tensor.shape)
        if not tensor.is_floating_point():
            return f"its values are {tensor.dtype}, not real floating-point numbers"
        if tensor.ndim < 2 or len(tensor) != COPIES * self._num_images:
            return f"its first axis is not the batch; the others are {shape[1:]}"
        source, source_shape = None, ()
        if call.side == "output":
            index, source_shape = self._inputs[call.module]
            source = None if index is None else self.tensors[index].layout
            if source is None and source_shape == shape:
                return "it has the shape of its input, which could not be recognized"
        layout = self._recognizer.recognize(module, shape, call.side, source, source_shape)
        if isinstance(layout, str):
            return layout
        copies = layout.arrange(tensor.detach()).unflatten(0, (COPIES, self._num_images))
        if not copies.isfinite().all():
            return "it holds NaN or infinity"
        copies = copies.to(torch.promote_types(tensor.dtype, torch.float32))
        epsilon = torch.finfo(tensor.dtype).eps
        norm = copies[0].norm()
        noise = float((copies[1] - copies[0]).norm() / norm) if norm else 0.0
        border = _border(copies, epsilon) if layout.grid else ()
        self.tensors.append(TracedTensor(layout, shape[1:], noise, border, epsilon))
        return len(self.tensors) - 1


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
    rows, columns = images.clone(), images.clone()
    for edge in (slice(None, width), slice(-width, None)):
        rows[:, :, edge] = noise[:, :, edge]
        columns[..., edge] = noise[..., edge]
    return torch.cat([images, images, rows, columns])


def _border(
    copies: Float[Tensor, "copies batch channels height width"], epsilon: float
) -> tuple[tuple[int, int], ...]:
    """Return how many cells at each side depend on the edge, before and after along both axes."""
    felt_above = max(epsilon, min(FELT_ROUNDINGS * epsilon, FELT_AT_MOST)) * copies[0].abs().max()
    felt = ((copies[2:] - copies[0]).abs() > felt_above).flatten(1, 2).any(dim=1)
    depths = []
    for axis, length in enumerate(felt.shape[1:]):
        cells = felt[axis].any(dim=1 - axis).nonzero().flatten().tolist()
        # On a torus, the first side also affects the last cells. Use the nearer side.
        before = max((cell + 1 for cell in cells if cell < length / 2), default=0)
        after = max((length - cell for cell in cells if cell >= length / 2), default=0)
        depths.append((before, after))
    return tuple(depths)
