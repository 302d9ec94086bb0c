"""Record of the tensors inside a model, made by forward hooks.

The record also contains how far the edge of the image affects each tensor, and how much the tensor
differs between two copies of the same images.
"""

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

from teka.audit.layers.layouts import Layout, LayoutRecognizer, Shape, TokenGrid
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
# Number of cells that the edge of the image affects, at the start and at the end of each axis.
Borders = tuple[tuple[int, int], ...]


@dataclass(eq=False)
class TracedTensor:
    """Tensor of a forward pass, described by its layout, its noise and its border.

    The values are not stored. Several modules can receive or return the same tensor.

    Args:
        layout: Axes along which the tensor follows the image.
        shape: Shape without the batch axis.
        noise: Relative difference ‖y' − y‖ / ‖y‖ for two copies of the same images.
        border: Number of cells that the edge of the image affects, at the start and at the end of
            each axis, or () for a vector.
        epsilon: Machine epsilon of the dtype.
        failure: Why the tensor cannot be compared for shifted images, or "".
    """

    layout: Layout
    shape: Shape
    noise: float
    border: Borders
    epsilon: float
    failure: str = ""


@dataclass(eq=False)
class TraceEvent:
    """Event of a forward pass: a module receives its input or returns its output.

    Args:
        module_name: Name of the module.
        module: The module.
        call: Index of this call of the module within the forward pass, from 1.
        caller: Input event of the module that called this module, or None.
        input: For an output, the input event of the same call. For an input, None.
        shape: Shape (B, …) of the tensor.
        tensor: Description of the tensor, or None if the tensor cannot be compared.
        reason: Why the tensor cannot be compared, or "".
        is_new: Whether this is the first event with this tensor.
    """

    module_name: str
    module: nn.Module
    call: int
    caller: "TraceEvent | None"
    input: "TraceEvent | None" = None
    shape: Shape = ()
    tensor: TracedTensor | None = None
    reason: str = ""
    is_new: bool = False

    @property
    def identifier(self) -> tuple[str, int, bool]:
        """Key that is the same for the corresponding event in another forward pass.

        It consists of the module's name, the index of the call, and True for an output.
        """
        return self.module_name, self.call, self.is_output

    @property
    def is_output(self) -> bool:
        """Return True if the module returns the tensor, and False if it receives the tensor."""
        return self.input is not None

    @property
    def input_tensor(self) -> TracedTensor | None:
        """For an output, the tensor that the module received in the same call.

        The result is None for an input, and for an output whose input cannot be compared.
        """
        return self.input and self.input.tensor

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
    """Run a model, and call a function for every input and output of its modules.

    Args:
        model: Function that runs the model.
        modules: Modules by name. They have forward hooks while the model runs.
        on_event: Function that is called with each event and its tensor, or with None if the module
            received or returned no tensor.
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
            hooks.enter_context(
                module.register_forward_pre_hook(partial(before, name), with_kwargs=True)
            )
            # With always_call, a call also ends if the module raises and the model continues.
            hooks.enter_context(
                module.register_forward_hook(partial(after, name), always_call=True)
            )
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
    """Choose one tensor among all inputs or all outputs of a module.

    Prefer the first floating-point tensor whose first axis is the batch. If there is none, return
    the first tensor, or None without tensors.
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
    """Record of a forward pass on unshifted images: its events and the tensors that occur in them.

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
        self.seen_size = tuple(images.shape[2:])
        self.events: list[TraceEvent] = []
        self.tensors: list[TracedTensor] = []
        self._num_images = len(images)
        self._recognizer = LayoutRecognizer(self.seen_size)
        # For each tensor that still exists: its version and the result of `_trace_tensor`.
        self._known = WeakTensorKeyDictionary()
        batch = copy_with_noisy_edges(images, edge_width)
        trace_calls(model, modules, self._on_event, batch, "the images unshifted")

    @property
    def has_border_on_all_sides(self) -> bool:
        """Return True if every tensor has a border at each of its sides.

        A border is missing if noise at this side of the images did not change the tensor. For
        example, pooling with stride 2 ignores the last row of an image with an odd height.
        """
        return all(depth for tensor in self.tensors for sides in tensor.border for depth in sides)

    @property
    def num_values_per_image(self) -> int:
        """Total number of values per image in all tensors, which limits the batch size."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def grids(self) -> tuple[TokenGrid, ...]:
        """Grids of the feature maps and tokens, each with the number of prefix tokens before it.

        The shapes of position embeddings are compared with these grids.
        """
        layouts = [tensor.layout for tensor in self.tensors]
        grids = [
            (each.grid, each.prefix_tokens) for each in layouts if max(each.grid, default=0) > 1
        ]
        return tuple(dict.fromkeys(grids))

    def _on_event(self, event: TraceEvent, value: Tensor | None) -> None:
        self.events.append(event)
        if value is None:
            event.reason = "no tensor"
            return
        # Tensors that are made in inference mode have no version.
        version = None if value.is_inference() else value._version
        known_version, result = self._known.get(value) or (None, None)
        if result is None or known_version != version:
            result = self._trace_tensor(event, value)
            self._known[value] = version, result
            event.is_new = isinstance(result, TracedTensor)
        if isinstance(result, TracedTensor):
            event.tensor = result
        else:
            event.reason = result

    def _trace_tensor(self, event: TraceEvent, value: Tensor) -> TracedTensor | str:
        """Describe a tensor that did not occur before, or return why it cannot be compared."""
        shape = event.shape
        if not value.is_floating_point():
            return f"its values are {value.dtype}, not real floating-point numbers"
        if len(shape) < 2 or len(value) != COPIES * self._num_images:
            return f"its first axis is not the batch axis; the other axes have sizes {shape[1:]}"
        input_layout = event.input_tensor and event.input_tensor.layout
        input_shape = event.input.shape if event.input else ()
        if input_layout is None and input_shape == shape:
            return "its shape is that of the module's input, whose layout is unknown"
        layout = self._recognizer.recognize(event.module, shape, input_layout, input_shape)
        if isinstance(layout, str):
            return layout
        copies = layout.to_channels_first(value).unflatten(0, (COPIES, self._num_images))
        if not copies.isfinite().all():
            return "it holds NaN or infinity"
        epsilon = torch.finfo(value.dtype).eps
        noise = output_difference(copies[1], copies[0])
        border = _border_widths(copies, epsilon) if layout.grid else ()
        self.tensors.append(TracedTensor(layout, shape[1:], noise, border, epsilon))
        return self.tensors[-1]


def trace_model(model: Model, modules: Mapping[str, nn.Module], images: RealImages) -> ModelTrace:
    """Record a forward pass, and find the border of each tensor by noise at the edge of the images.

    The noisy edge is widened until it affects all tensors, or to a quarter of the image.

    Args:
        model: Function that runs the model.
        modules: Modules by name.
        images: Unshifted images.
    """
    edge_width = 1
    while True:
        trace = ModelTrace(model, modules, images, edge_width)
        # A layer with a stride may ignore the outermost pixels. Then overwrite more pixels.
        edge_width *= 2
        if trace.has_border_on_all_sides or edge_width > WIDEST_EDGE * min(trace.seen_size):
            return trace


def copy_with_noisy_edges(
    images: RealImages, edge_width: int = 1
) -> Float[Tensor, "copies channels height width"]:
    """Concatenate four copies of images: two unchanged ones and two with noise at the edges.

    Values inside a model that differ between the unchanged copies are random. Values that differ
    between an unchanged and a noisy copy depend on the edge of the image.

    Args:
        images: Images (B, C, H, W).
        edge_width: Number of pixels that noise replaces at both ends of an axis.

    Returns:
        The images twice, then with noise at the top and bottom, then at the left and right.
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
) -> Borders:
    """Return the width of a tensor's border, whose cells depend on the edge of the image.

    Args:
        copies: Values of the tensor for the four copies from `copy_with_noisy_edges`.
        epsilon: Machine epsilon of the tensor's dtype.

    Returns:
        Number of border cells at the start and at the end of each axis.
    """
    limit = max(epsilon, min(AFFECTED_ROUNDINGS * epsilon, AFFECTED_SHARE))
    changes = (copies[2:] - copies[0]).abs() > limit * copies[0].abs().max()
    is_affected = changes.flatten(1, 2).any(dim=1)
    depths = []
    for axis, length in enumerate(is_affected.shape[1:]):
        cells = is_affected[axis].any(dim=1 - axis).nonzero().flatten().tolist()
        # With circular padding, noise at the start also affects the last cells. Count each cell at
        # the nearer end.
        before = max((cell + 1 for cell in cells if cell < length / 2), default=0)
        after = max((length - cell for cell in cells if cell >= length / 2), default=0)
        depths.append((before, after))
    return tuple(depths)
