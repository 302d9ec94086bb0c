"""Recording of the tensors inside a model, and of how the edge of the image affects them."""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, is_dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from teka.audit.layers.layouts import Layout, LayoutRecognizer, TokenGrid
from teka.audit.model_call import Model, ModelError, model_code_context, output_difference
from teka.audit.movement import RealImages
from teka.errors import EXTERNAL_ERRORS, error_message

# Number of copies of the images: two unchanged copies, a copy with noise at the top and bottom
# edges, and a copy with noise at the left and right edges.
COPIES = 4
# Largest share of the image's shorter side that is overwritten to find the effect of the edge.
WIDEST_EDGE = 0.25
# The edge affects a cell if the cell changes by more than this number of roundings of the largest
# value of its layer, or by more than this share of the largest value, which matters for bfloat16.
AFFECTED_ROUNDINGS = 64
AFFECTED_SHARE = 1e-2


@dataclass(eq=False)
class TracedTensor:
    """Properties of a tensor that occurs in the forward pass of a model.

    Several modules can receive and return the same tensor.

    Args:
        layout: How the tensor is arranged over the image.
        shape: Shape without the batch axis.
        noise: Relative difference ‖y' − y‖ / ‖y‖ for two copies of the same images.
        border: Number of cells that the edge of the image affects, at the start and at the end of
            each axis; () for a vector.
        epsilon: Machine epsilon of the dtype.
        failure: Why the tensor cannot be compared for shifted images, or "".
    """

    layout: Layout
    shape: tuple[int, ...]
    noise: float
    border: tuple[tuple[int, int], ...]
    epsilon: float
    failure: str = ""


@dataclass(eq=False)
class TraceEvent:
    """Input or output of one call of a module during a forward pass.

    Args:
        module_name: Name of the module.
        module: The module.
        call: Index of this call of the module within the forward pass, from 1.
        caller: Input of the module that called this module, or None.
        input: For an output, the input of the same call.
        shape: Shape (B, …) of the tensor.
        tensor: The traced tensor, or None if it was not recognized.
        reason: Why the tensor was not recognized, or "".
        is_new: Whether the tensor did not occur before.
    """

    module_name: str
    module: nn.Module
    call: int
    caller: "TraceEvent | None"
    input: "TraceEvent | None" = None
    shape: tuple[int, ...] = ()
    tensor: TracedTensor | None = None
    reason: str = ""
    is_new: bool = False

    @property
    def identifier(self) -> tuple[str, int, bool]:
        """Name, call and direction of the event. They identify it in another forward pass."""
        return self.module_name, self.call, self.is_output

    @property
    def is_output(self) -> bool:
        """Return True if the tensor is an output of the module."""
        return self.input is not None

    @property
    def input_tensor(self) -> TracedTensor | None:
        """Tensor that the module received in the call that returned this output.

        It is None if the event is an input itself, or if the tensor was not recognized.
        """
        return None if self.input is None else self.input.tensor

    @property
    def name(self) -> str:
        """Name of the module in reports, such as "relu", or "relu (call 2)" for its second call."""
        name = self.module_name or "(model)"
        return name if self.call == 1 else f"{name} (call {self.call})"


def trace_calls(
    model: Model,
    modules: Mapping[str, nn.Module],
    on_event: Callable[[TraceEvent, Tensor | None], None],
    batch: Tensor,
    description: str,
) -> None:
    """Run a model, and call `on_event` for every input and output of its modules.

    Args:
        model: Function that runs the model.
        modules: Modules by name. They have hooks during this call.
        on_event: Function that gets the event and its tensor, or None if there is no tensor.
        batch: Batch of images.
        description: Description of the batch for error messages.

    Raises:
        ModelError: The model raised an error.
    """
    num_calls = Counter()
    running = []

    def report(event: TraceEvent, value: object) -> None:
        tensor = _choose_tensor(value, len(batch))
        event.shape = () if tensor is None else tuple(tensor.shape)
        on_event(event, tensor)

    def before(name: str, module: nn.Module, arguments: tuple, options: dict) -> None:
        num_calls[name] += 1
        caller = running[-1] if running else None
        running.append(TraceEvent(name, module, num_calls[name], caller))
        report(running[-1], (arguments, options))

    def after(name: str, module: nn.Module, _arguments: tuple, output: object) -> None:
        started = running.pop()
        report(TraceEvent(name, module, started.call, started.caller, started), output)

    with ExitStack() as hooks:
        for name, module in modules.items():
            hook = partial(before, name)
            hooks.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
            # With always_call, a call also ends if the module raises and the model continues.
            hook = partial(after, name)
            hooks.enter_context(module.register_forward_hook(hook, always_call=True))
        # Compiled modules call their hooks only if they run eagerly. Without torch._dynamo, no
        # module is compiled. It is not imported here, because the import is slow.
        if "torch._dynamo" in sys.modules:
            hooks.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            with model_code_context():
                model(batch)
        except EXTERNAL_ERRORS as error:
            raise ModelError(
                f"the model raised {type(error).__name__} for {description}: {error_message(error)}"
            ) from error


def _choose_tensor(value: object, batch_size: int) -> Tensor | None:
    """Choose the tensor that represents the inputs or outputs of a module.

    It is the first floating-point tensor whose first axis is the batch. If there is none, it is the
    first tensor.
    """
    tensors = list(_find_tensors(value))
    for tensor in tensors:
        is_batch = tensor.ndim > 1 and len(tensor) == batch_size and tensor.numel()
        if tensor.is_floating_point() and is_batch:
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


class ModelTrace:
    """Record of all tensors in a forward pass on unshifted images.

    Args:
        model: Function that runs the model.
        modules: Modules by name.
        images: Unshifted images.
        edge_width: Number of pixels that are overwritten to find the effect of the edge.
    """

    def __init__(
        self, model: Model, modules: Mapping[str, nn.Module], images: RealImages, edge_width: int
    ) -> None:
        self.modules = modules
        self.seen_size = (images.shape[2], images.shape[3])
        self.events: list[TraceEvent] = []
        self.tensors: list[TracedTensor] = []
        self._num_images = len(images)
        self._recognizer = LayoutRecognizer(self.seen_size)
        # The version and the result of `_trace_tensor` for each tensor that still exists.
        self._known = WeakTensorKeyDictionary()
        batch = copy_with_noisy_edges(images, edge_width)
        trace_calls(model, modules, self._on_event, batch, "the images unshifted")

    @property
    def has_border_on_all_sides(self) -> bool:
        """Return True if noise at each side of the images changed every tensor.

        For example, the last row has no effect if a pooling layer ignores it because the number of
        rows is odd.
        """
        return all(depth for tensor in self.tensors for sides in tensor.border for depth in sides)

    @property
    def num_values_per_image(self) -> int:
        """Number of values of all tensors in this trace, for one image."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def grids(self) -> tuple[TokenGrid, ...]:
        """Grids of cells or patches in this model, each with its number of prefix tokens."""
        layouts = [tensor.layout for tensor in self.tensors]
        has_cells = [layout for layout in layouts if max(layout.grid, default=0) > 1]
        return tuple(dict.fromkeys((layout.grid, layout.prefix_tokens) for layout in has_cells))

    def _on_event(self, event: TraceEvent, value: Tensor | None) -> None:
        self.events.append(event)
        if value is None:
            event.reason = "no tensor"
            return
        # Tensors that are made in inference mode have no version.
        version = None if value.is_inference() else value._version
        known = self._known.get(value)
        if known is None or known[0] != version:
            known = self._known[value] = version, self._trace_tensor(event, value)
            event.is_new = isinstance(known[1], TracedTensor)
        result = known[1]
        if isinstance(result, TracedTensor):
            event.tensor = result
        else:
            event.reason = result

    def _trace_tensor(self, event: TraceEvent, value: Tensor) -> TracedTensor | str:
        """Return the properties of a tensor, or the reason why it cannot be compared."""
        shape = event.shape
        if not value.is_floating_point():
            return f"its values are {value.dtype}, not real floating-point numbers"
        if len(shape) < 2 or len(value) != COPIES * self._num_images:
            return f"its first axis is not the batch; the others are {shape[1:]}"
        input_layout = None if event.input_tensor is None else event.input_tensor.layout
        input_shape = () if event.input is None else event.input.shape
        if input_layout is None and input_shape == shape:
            return "its input has the same shape, and the layout of that input is unknown"
        layout = self._recognizer.recognize(
            event.module, shape, event.is_output, input_layout, input_shape
        )
        if isinstance(layout, str):
            return layout
        copies = layout.to_channels_first(value.detach()).unflatten(0, (COPIES, self._num_images))
        if not copies.isfinite().all():
            return "it holds NaN or infinity"
        copies = copies.to(torch.promote_types(value.dtype, torch.float32))
        epsilon = torch.finfo(value.dtype).eps
        noise = output_difference(copies[1], copies[0])
        border = _border_widths(copies, epsilon) if layout.grid else ()
        self.tensors.append(TracedTensor(layout, shape[1:], noise, border, epsilon))
        return self.tensors[-1]


def trace_model(model: Model, modules: Mapping[str, nn.Module], images: RealImages) -> ModelTrace:
    """Record all tensors in a forward pass on unshifted images, and how the edge affects them."""
    edge_width = 1
    while True:
        trace = ModelTrace(model, modules, images, edge_width)
        # A strided layer may ignore the outermost pixels. Then overwrite more pixels to find the
        # effect of the edge.
        edge_width *= 2
        if trace.has_border_on_all_sides or edge_width > WIDEST_EDGE * min(trace.seen_size):
            return trace


def copy_with_noisy_edges(
    images: RealImages, edge_width: int = 1
) -> Float[Tensor, "copies channels height width"]:
    """Return two unchanged copies of the images, and two copies with random pixels at their edges.

    A value inside the model depends on the edge of the image if it differs between these copies.

    Args:
        images: Images (B, C, H, W).
        edge_width: Number of pixels that are overwritten at both ends of an axis.

    Returns:
        The images twice, then with noise at top and bottom, then with noise at left and right.
    """
    generator = torch.Generator().manual_seed(0)
    low, high = map(float, torch.aminmax(images))
    noise = torch.rand(images.shape, generator=generator, dtype=torch.float32).to(images)
    noise = low + ((high - low) or 1.0) * noise
    rows, columns = images.clone(), images.clone()
    for edge in (slice(None, edge_width), slice(-edge_width, None)):
        rows[:, :, edge] = noise[:, :, edge]
        columns[..., edge] = noise[..., edge]
    return torch.cat([images, images, rows, columns])


def _border_widths(
    copies: Float[Tensor, "copies batch channels height width"], epsilon: float
) -> tuple[tuple[int, int], ...]:
    """Return how many cells from each side of a tensor depend on the edge of the image.

    Args:
        copies: Values of a tensor for the copies of `copy_with_noisy_edges`.
        epsilon: Machine epsilon of the model's dtype.
    """
    limit = max(epsilon, min(AFFECTED_ROUNDINGS * epsilon, AFFECTED_SHARE))
    changes = (copies[2:] - copies[0]).abs() > limit * copies[0].abs().max()
    is_affected = changes.flatten(1, 2).any(dim=1)
    depths = []
    for axis, length in enumerate(is_affected.shape[1:]):
        cells = is_affected[axis].any(dim=1 - axis).nonzero().flatten().tolist()
        # On a torus, the first side also affects the last cells. Use the nearer side.
        before = max((cell + 1 for cell in cells if cell < length / 2), default=0)
        after = max((length - cell for cell in cells if cell >= length / 2), default=0)
        depths.append((before, after))
    return tuple(depths)
