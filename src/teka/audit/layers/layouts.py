"""Recognition of feature maps, tokens and position embeddings by their shapes, classes and names.

Models store the positions of an image along different axes, for example in tensors (B, C, h, w) or
(B, tokens, C). The audit has to know these axes to compare the tensors under shifts.
"""

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor, nn

MAX_PREFIX = 8  # maximum number of class, distillation and register tokens before the grid
# Maximum number before a grid that no earlier tensor has, because more would match by chance.
MAX_PREFIX_ALONE = 2
# These modules act on the last axis, so their input has its channels there.
ACT_ON_LAST_AXIS = (nn.Linear, nn.LayerNorm)
# These modules turn a map into (B, C, h·w), which modules named …1d take.
FLATTEN_CELLS = (nn.Flatten, nn.Unfold)
PADDING = (
    nn.ZeroPad2d,
    nn.ConstantPad2d,
    nn.ReflectionPad2d,
    nn.ReplicationPad2d,
    nn.CircularPad2d,
)
# Patterns for the names of parameters, buffers and classes with absolute positions.
ABSOLUTE_NAME = re.compile(
    r"(^|_)pos(ition(s|al)?)?_?(emb(ed(s|dings?)?)?|enc(oding)?)(_|$)|^pe$|^abs(olute)?_pos"
)
ABSOLUTE_CLASS = re.compile(
    r"(Absolute|Positional|Sinusoid\w*)(Position|Embedding|Encoding|Table)|Position(Embedd|Encod)ing"
)
RELATIVE = re.compile(r"rel(ative)?_?pos|relative|rotary|rope", re.IGNORECASE)
CLASS_NAME = re.compile(r"^(cls|class|dist|distillation|reg|register)_?(tokens?|embeddings?)$")
Shape = tuple[int, ...]
Stride = tuple[Fraction, ...]
TokenGrid = tuple[Shape, int]  # number of cells along each axis, and of prefix tokens before them


@dataclass(frozen=True)
class Layout:
    """Spatial layout of a tensor: the axes along which its cells follow the image.

    A cell is an element of a feature map or a token. It stands for one region of the image.

    Args:
        name: One of

            - "map" (B, C, h, w), "channels-last map" (B, h, w, C) or "flat map" (B, C, h·w)
            - "flattened" (B, C·h·w)
            - "tokens" (B, prefix + h·w, …)
            - "vector" for everything else
        grid: Number of cells along each axis; () for a vector.
        stride: Pixels of the model's input per cell. For a vector, that of the coarsest earlier
            layer.
        prefix_tokens: Number of tokens before those of the grid, such as a class token.
    """

    name: str
    grid: Shape
    stride: Stride
    prefix_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the grid, plus the prefix tokens."""
        return self.prefix_tokens + math.prod(self.grid)

    def covers_image(self, seen_size: Shape) -> bool:
        """Return True if the cells fill an image of this size exactly, without a remainder.

        Args:
            seen_size: Height and width of the image.
        """
        sides = zip(self.grid, self.stride, strict=False)  # a vector has no sides
        return tuple(side * step for side, step in sides) == seen_size

    def to_channels_first(self, output: Tensor) -> Tensor:
        """Detach and reshape a tensor with this layout to (B, C, h, w), in float32 or higher.

        Prefix tokens are removed. A vector is reshaped to (B, C, 1, 1).
        """
        output = output.detach().to(torch.promote_types(output.dtype, torch.float32))
        if self.name == "vector":
            return output.flatten(1)[..., None, None]
        if self.name == "channels-last map":
            return output.movedim(-1, 1)
        if self.name == "tokens":
            output = output[:, self.prefix_tokens :].flatten(2).transpose(1, 2)
        # The cells are the last axes, perhaps flattened.
        return output.reshape(len(output), -1, *self.grid)


class LayoutRecognizer:
    """Recognizer of the spatial layouts of the tensors in a forward pass.

    Pass the tensors in the order in which the model computes them, because each layout is
    recognized with the help of the layouts before it.

    Args:
        seen_size: Height and width of the model's input.
    """

    def __init__(self, seen_size: Shape) -> None:
        self.seen_size = seen_size
        # Strides by grid, the most recent grid last, and token layouts by their number of tokens.
        self._strides: dict[Shape, Stride] = {seen_size: (Fraction(1), Fraction(1))}
        self._tokens: dict[int, Layout] = {}
        self._latest = Layout("map", seen_size, self._strides[seen_size])
        # Number of elements of the last map. A vector of this size right after it is the same map.
        self._map_size: int | None = None

    def recognize(
        self, module: nn.Module, shape: Shape, input_layout: Layout | None, input_shape: Shape
    ) -> Layout | str:
        """Return the layout of the next tensor, or the reason why it is not recognized.

        Args:
            module: Module that receives or returns the tensor.
            shape: Shape (B, …) of the tensor.
            input_layout: If the module returns the tensor, layout of the module's input, or None.
            input_shape: If the module returns the tensor, shape of the module's input, else ().
        """
        is_kept = (
            input_layout is not None and input_layout.name != "vector" and input_shape == shape
        )
        if len(shape) == 2:
            is_projected = isinstance(module, nn.Linear) and input_shape
            is_flat = self._map_size == shape[1] and not is_projected
            layout = (
                self._grid_layout("flattened", self._latest.grid)
                if is_flat
                else self._vector_layout()
            )
        elif is_kept and declared_stride(module) is None:
            layout = input_layout
        elif len(shape) == 3:
            layout = self._recognize_tokens(module, shape, input_layout)
        elif len(shape) == 4:
            layout = self._recognize_map(module, shape, input_layout)
        else:
            return f"a tensor with {len(shape)} axes is not a feature map, tokens or a vector"
        if layout is None:
            return f"no axes of (B, {str(shape[1:])[1:]} are a grid over the image"
        self._map_size = math.prod(shape[1:]) if layout.name in ("map", "flattened") else None
        if layout.grid:
            self._strides.pop(layout.grid, None)
            self._strides[layout.grid] = layout.stride
            self._latest = layout
        if layout.name == "tokens":
            self._tokens[layout.num_tokens] = layout
        return layout

    def _grid_layout(self, name: str, grid: Shape, prefix_tokens: int = 0) -> Layout:
        return Layout(name, grid, self._strides.get(grid) or self._cell_size(grid), prefix_tokens)

    def _vector_layout(self) -> Layout:
        coarsest = (max(stride) for stride in zip(*self._strides.values(), strict=True))
        return Layout("vector", (), tuple(coarsest))

    def _cell_size(self, grid: Shape) -> Stride:
        """Return the height and width of a cell in pixels, if the grid covers the whole image."""
        return tuple(Fraction(seen, side) for seen, side in zip(self.seen_size, grid, strict=True))

    def _recognize_map(
        self, module: nn.Module, shape: Shape, input_layout: Layout | None
    ) -> Layout | None:
        _, first, second, third = shape
        is_after_tokens = self._latest.name == "tokens"
        if second == third == 1 and (takes_feature_maps(module) or not is_after_tokens):
            return self._vector_layout()
        if takes_feature_maps(module):
            grid = (second, third)
            return Layout("map", grid, self._stride_of_map(module, grid, input_layout))
        if is_after_tokens and first == self._latest.num_tokens:  # tokens of several heads
            return self._latest
        grids = [("map", (second, third)), ("channels-last map", (first, second))]
        if isinstance(module, ACT_ON_LAST_AXIS):
            grids.reverse()
        known = [self._latest.grid] if is_after_tokens else self._strides
        fitting = [each for each in grids if each[1] in known]
        if not fitting and not is_after_tokens:
            fitting = [each for each in grids if self._has_square_cells(each[1])]
        return self._grid_layout(*fitting[0]) if fitting else None

    def _has_square_cells(self, grid: Shape) -> bool:
        """Return True if the cells of a grid are squares of n × n or of 1/n × 1/n pixels.

        Axes of other sizes, such as channels, are rarely mistaken for such a grid.
        """
        rows, columns = self._cell_size(grid)
        return rows == columns and 1 in (rows.numerator, rows.denominator)

    def _square_grids(self) -> list[Shape]:
        """Return all grids that divide the image into square cells, the finest grid first."""
        height, width = self.seen_size
        shared = math.gcd(height, width)
        return [
            (height // side, width // side) for side in range(1, shared + 1) if shared % side == 0
        ]

    def _recognize_tokens(
        self, module: nn.Module, shape: Shape, input_layout: Layout | None
    ) -> Layout | None:
        _, total, width = shape
        is_flat = isinstance(module, FLATTEN_CELLS) or _is_named(module, "1d")
        if total == 1 or (is_flat and width == 1):
            return self._vector_layout()
        is_known = total in self._tokens or 0 <= total - math.prod(self._latest.grid) <= MAX_PREFIX
        # Mixers transpose tokens, but not before LayerNorm, which acts on channels.
        is_transposed = (
            not is_known and width in self._tokens and not isinstance(module, nn.LayerNorm)
        )
        if (
            is_flat
            or is_transposed
            or (input_layout is not None and input_layout.name == "flat map")
        ):
            grids = [grid for grid in self._strides if math.prod(grid) == width]
            return self._grid_layout("flat map", grids[-1]) if grids else None
        return self._grid_of_tokens(total)

    def _grid_of_tokens(self, total: int) -> Layout | None:
        if total in self._tokens:
            return self._tokens[total]
        known, square = list(reversed(self._strides)), self._square_grids()
        for prefixes, grids in (
            (range(1), [*known, *square]),
            (range(1, MAX_PREFIX + 1), known),
            (range(1, MAX_PREFIX_ALONE + 1), square),
        ):
            for prefix, grid in itertools.product(prefixes, grids):
                if math.prod(grid) == total - prefix > 1:
                    return self._grid_layout("tokens", grid, prefix)
        return None

    def _stride_of_map(self, module: nn.Module, grid: Shape, input_layout: Layout | None) -> Stride:
        if input_layout is not None and input_layout.grid:
            if isinstance(module, PADDING):
                return input_layout.stride
            ratio = tuple(Fraction(*sides) for sides in zip(input_layout.grid, grid, strict=True))
            steps = zip(input_layout.stride, declared_stride(module) or ratio, strict=True)
            return tuple(coarse * step for coarse, step in steps)
        if grid in self._strides:
            return self._strides[grid]
        # Padding before this module adds a few cells without changing the stride.
        sizes = as_pair(getattr(module, "kernel_size", 0))
        sides = zip(grid, self._latest.grid, sizes, strict=True)
        is_padded = all(
            isinstance(size, int) and 0 <= new - old <= size for new, old, size in sides
        )
        return self._latest.stride if is_padded else self._cell_size(grid)


def takes_feature_maps(module: nn.Module) -> bool:
    """Return True if a module takes feature maps (B, C, h, w), such as `Conv2d` or `MaxPool2d`."""
    return isinstance(module, nn.Upsample | nn.PixelShuffle | nn.PixelUnshuffle) or _is_named(
        module, "2d"
    )


def declared_stride(module: nn.Module) -> Stride | None:
    """Return the stride of a convolution or pooling layer along both axes, otherwise None.

    The stride of a transposed convolution is returned as 1/s, because the layer enlarges its input
    s times.
    """
    stride = getattr(module, "stride", None)
    if not takes_feature_maps(module) or stride is None or not hasattr(module, "kernel_size"):
        return None
    steps, inverse = as_pair(stride), isinstance(module, nn.ConvTranspose2d)
    if not all(isinstance(step, int) and step > 0 for step in steps):
        return None
    return tuple(Fraction(1, step) if inverse else Fraction(step) for step in steps)


def has_noncircular_padding(module: nn.Module) -> bool:
    """Return True if a convolution or pooling layer has padding that is not circular."""
    padding = getattr(module, "padding", 0)
    if not takes_feature_maps(module) or getattr(module, "padding_mode", "zeros") == "circular":
        return False
    return padding != "valid" and any(as_pair(padding))


def as_pair(value: object) -> tuple:
    """Expand a setting of a layer, such as its kernel size, to a pair (vertical, horizontal).

    A single value is repeated, and a pair is returned as a tuple.
    """
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def _is_named(module: nn.Module, ending: str) -> bool:
    return any(kind.__name__.endswith(ending) for kind in type(module).__mro__)


def find_absolute_embeddings(module: nn.Module, grids: Iterable[TokenGrid]) -> tuple[str, ...]:
    """Return the names of the parameters, buffers and modules that hold absolute positions.

    They are recognized by their names, shapes or classes.

    Args:
        module: The model.
        grids: Grids of the tensors inside the model.
    """
    holders = []
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        # The name of a weight is that of its module.
        own_name = re.sub(r"\.(weight|data)$", "", name).rpartition(".")[2]
        if RELATIVE.search(own_name) or CLASS_NAME.match(own_name):
            continue
        shape = tuple(tensor.shape)
        is_for_batches = len(shape) in (3, 4) and shape[0] == 1 and tensor.is_floating_point()
        is_placed = is_for_batches and find_position_axes(shape, grids) is not None
        if is_placed or ABSOLUTE_NAME.search(own_name):
            holders.append(name)
    for name, part in module.named_modules():
        kind = type(part).__name__
        has_holder = any(holder.startswith(f"{name}.") for holder in holders)
        if name and ABSOLUTE_CLASS.search(kind) and not RELATIVE.search(kind) and not has_holder:
            holders.append(name)
    return tuple(holders)


def find_position_axes(shape: Shape, grids: Iterable[TokenGrid]) -> tuple[Shape, int] | None:
    """Find the axes of a position embedding along which the position in the image changes.

    Args:
        shape: Shape (L, C), (C, h, w) or (h, w, C), perhaps with a leading axis of size 1.
        grids: Grids of the model, each with the number of prefix tokens before its cells.

    Returns:
        The axes, and the number of prefix tokens that precede the positions. If no grid fits the
        shape, the result is None.
    """
    first = int(len(shape) > 2 and shape[0] == 1)
    sizes = shape[first:]
    for grid, prefix in grids:
        if len(sizes) == 2 and sizes[0] - math.prod(grid) in (0, prefix):
            return (first,), sizes[0] - math.prod(grid)
        for axis in (1, 0):
            if len(sizes) == 3 and sizes[axis : axis + 2] == grid:
                return (first + axis, first + axis + 1), 0
    return None
