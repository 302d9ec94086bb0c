"""Recognition of how tensors are arranged over the image, and of absolute position embeddings."""

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from torch import Tensor, nn

NO_GRID = "no grid over the image has {} cells, even with a few tokens before them"
MAX_PREFIX = 8  # maximum number of class, distillation and register tokens before the grid
# Maximum number before a grid that was not seen before, because more would match by chance.
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
PLAIN_NAMES = ("weight", "data")  # names of tensors that need the name of their module
Shape = tuple[int, ...]
Stride = tuple[Fraction, ...]


@dataclass(frozen=True)
class Layout:
    """Arrangement of a tensor of a model over the image.

    Args:
        name: One of

            - "map" (B, C, h, w), "channels-last map" (B, h, w, C) or "flat map" (B, C, h·w)
            - "flattened" (B, C·h·w)
            - "tokens" (B, prefix + h·w, …) or "tokens of heads" (B, heads, prefix + h·w, D)
            - "vector" for everything else
        grid: Number of cells along each axis; () for a vector.
        stride: Pixels of the model's input per cell. For a vector, that of the coarsest earlier
            layer.
        prefix_tokens: Number of tokens before those of the grid, such as a class token.
    """

    name: str
    grid: tuple[int, ...]
    stride: tuple[Fraction, ...]
    prefix_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens, those of the grid and the prefix tokens."""
        return self.prefix_tokens + math.prod(self.grid)

    def arrange(self, output: Tensor) -> Tensor:
        """Rearrange a tensor (B, …) to (B, C, *grid), or (B, C) for a vector.

        Prefix tokens are left out.
        """
        match self.name:
            case "vector":
                return output.flatten(1)
            case "map":
                return output
            case "channels-last map":
                return output.movedim(-1, 1)
            case "tokens":
                return (
                    output[:, self.prefix_tokens :]
                    .flatten(2)
                    .transpose(1, 2)
                    .unflatten(2, self.grid)
                )
            case "tokens of heads":
                channels = output[:, :, self.prefix_tokens :].transpose(2, 3).flatten(1, 2)
                return channels.unflatten(2, self.grid)
            case _:  # flat map or flattened: the cells are the last axis already
                return output.reshape(output.shape[0], -1, *self.grid)


class LayoutRecognizer:
    """Recognition of layouts by shapes and strides, in the order in which a model makes tensors.

    Args:
        seen_size: Height and width of the model's input.
    """

    def __init__(self, seen_size: tuple[int, int]) -> None:
        self.seen_size = seen_size
        self._strides: dict[tuple[int, ...], tuple[Fraction, ...]] = {
            seen_size: (Fraction(1), Fraction(1))
        }
        self._tokens: dict[int, Layout] = {}
        self._placed = Layout("map", seen_size, self._strides[seen_size])
        # Number of elements of the last map. A vector of this size right after it is the same map.
        self._unread_numbers: int | None = None

    def recognize(
        self, module: nn.Module, shape: Shape, side: str, source: Layout | None, came: Shape
    ) -> Layout | str:
        """Return the layout of a tensor, or why it is not recognized.

        Args:
            module: Module that receives or returns the tensor.
            shape: Shape (B, …) of the tensor.
            side: "input" or "output" of the module.
            source: Layout of the module's input, for an output.
            came: Shape of the module's input, for an output.
        """
        layout = self._layout(module, shape, side, source, came)
        if isinstance(layout, str):
            return layout
        self._unread_numbers = math.prod(shape[1:]) if layout.name in ("map", "flattened") else None
        if layout.name == "vector":
            return layout
        # Move the grid to the end, because the most recent grids are tried first.
        self._strides.pop(layout.grid, None)
        self._strides[layout.grid] = layout.stride
        self._placed = layout
        if layout.name in ("tokens", "tokens of heads"):
            self._tokens[layout.num_tokens] = layout
        return layout

    def _layout(
        self, module: nn.Module, shape: Shape, side: str, source: Layout | None, came: Shape
    ) -> Layout | str:
        if len(shape) == 2:
            is_flat = self._unread_numbers == shape[1] and not (
                isinstance(module, nn.Linear) and side == "output"
            )
            return (
                Layout("flattened", self._placed.grid, self._placed.stride)
                if is_flat
                else self._vector()
            )
        if (
            source is not None
            and source.name != "vector"
            and came == shape
            and declared_stride(module) is None
        ):
            return source
        if len(shape) == 3:
            return self._tokens_layout(module, shape, source if side == "output" else None)
        if len(shape) == 4:
            return self._map_layout(module, shape, side, source)
        return f"a tensor of {len(shape)} axes is neither a map, tokens nor a vector"

    def _map_layout(
        self, module: nn.Module, shape: Shape, side: str, source: Layout | None
    ) -> Layout | str:
        _, first, second, third = shape
        if is_for_images(module):
            if second == third == 1:
                return self._vector()
            return Layout(
                "map", (second, third), self._stride_of_map(module, (second, third), side, source)
            )
        grids = [("map", (second, third)), ("channels-last map", (first, second))]
        if isinstance(module, ACT_ON_LAST_AXIS):
            grids.reverse()
        if self._placed.name.startswith("tokens"):
            total = self._placed.num_tokens
            if second == third == total:
                return "attention weights: pairs of tokens, not places"
            if total in (second, first):
                return replace(
                    self._placed, name="tokens of heads" if second == total else "tokens"
                )
            for name, grid in grids:
                if grid == self._placed.grid:
                    return Layout(name, grid, self._placed.stride)
            return (
                f"a tensor of shape (B, {first}, {second}, {third}) is no map on the tokens' grid"
            )
        if second == third == 1:
            return self._vector()
        for name, grid in grids:
            if grid in self._strides:
                return Layout(name, grid, self._strides[grid])
        for name, grid in grids:
            # Accept a grid whose cells are square and whose sizes divide those of the image.
            divides = all(
                seen % side == 0 or side % seen == 0
                for seen, side in zip(self.seen_size, grid, strict=True)
            )
            if divides and grid[0] * self.seen_size[1] == grid[1] * self.seen_size[0]:
                return Layout(name, grid, self._ratio(grid))
        shown = f"(B, {first}, {second}, {third})"
        return f"no axes of a tensor of shape {shown} are a grid over the image"

    def _tokens_layout(
        self, module: nn.Module, shape: Shape, source: Layout | None
    ) -> Layout | str:
        _, total, width = shape
        came_flat = source is not None and source.name == "flat map"
        if came_flat or isinstance(module, FLATTEN_CELLS) or _is_named(module, "1d"):
            return self._vector() if width == 1 else self._flat_map(width) or NO_GRID.format(width)
        if total == 1:
            return self._vector()
        is_known = total in self._tokens or 0 <= total - math.prod(self._placed.grid) <= MAX_PREFIX
        # Mixers transpose tokens, but not before LayerNorm, which acts on channels.
        is_turned = not is_known and width in self._tokens and not isinstance(module, nn.LayerNorm)
        flat = self._flat_map(width) if is_turned else None
        return flat or self._grid_of_tokens(total) or self._flat_map(width) or NO_GRID.format(total)

    def _grid_of_tokens(self, total: int) -> Layout | None:
        if total in self._tokens:
            return replace(self._tokens[total], name="tokens")
        known = list(reversed(self._strides))
        shared = math.gcd(*self.seen_size)
        # Grids of square cells that fill the image, the finest first.
        sides = [side for side in range(1, shared + 1) if shared % side == 0]
        even = [tuple(size // side for size in self.seen_size) for side in sides]
        tries = (
            (known, (0,)),
            (even, (0,)),
            (known, range(1, MAX_PREFIX + 1)),
            (even, range(1, MAX_PREFIX_ALONE + 1)),
        )
        for grids, prefixes in tries:
            for prefix, grid in itertools.product(prefixes, grids):
                if math.prod(grid) == total - prefix > 1:
                    return Layout(
                        "tokens", grid, self._strides.get(grid, self._ratio(grid)), prefix
                    )
        return None

    def _flat_map(self, cells: int) -> Layout | None:
        known = (grid for grid in reversed(self._strides) if math.prod(grid) == cells)
        return next((Layout("flat map", grid, self._strides[grid]) for grid in known), None)

    def _vector(self) -> Layout:
        return Layout(
            "vector", (), tuple(max(stride) for stride in zip(*self._strides.values(), strict=True))
        )

    def _ratio(self, grid: Shape) -> Stride:
        return tuple(Fraction(seen, side) for seen, side in zip(self.seen_size, grid, strict=True))

    def _stride_of_map(
        self, module: nn.Module, grid: Shape, side: str, source: Layout | None
    ) -> Stride:
        if side == "output" and source is not None and source.grid:
            steps = declared_stride(module)
            if steps is None and isinstance(module, PADDING):
                return source.stride
            steps = steps or tuple(
                Fraction(before, after) for before, after in zip(source.grid, grid, strict=True)
            )
            return tuple(coarse * step for coarse, step in zip(source.stride, steps, strict=True))
        if grid in self._strides:
            return self._strides[grid]
        # Padding before this module adds a few cells without changing the stride.
        more = [after - before for before, after in zip(self._placed.grid, grid, strict=True)]
        sides = pair(getattr(module, "kernel_size", 0))
        sides = sides if all(isinstance(side, int) for side in sides) else (0, 0)
        padded = all(0 <= cells <= side for cells, side in zip(more, sides, strict=True))
        return self._placed.stride if padded else self._ratio(grid)


def is_for_images(module: nn.Module) -> bool:
    """Return True if the class of a module, such as one named …2d, takes maps (B, C, h, w)."""
    return isinstance(module, nn.Upsample | nn.PixelShuffle | nn.PixelUnshuffle) or _is_named(
        module, "2d"
    )


def declared_stride(module: nn.Module) -> tuple[Fraction, ...] | None:
    """Return the input cells per output cell along both axes that a layer declares, or None.

    Only convolutions and pooling layers declare a stride.
    """
    stride = getattr(module, "stride", None)
    if not is_for_images(module) or stride is None or not hasattr(module, "kernel_size"):
        return None
    steps, inverse = pair(stride), isinstance(module, nn.ConvTranspose2d)
    if not all(isinstance(step, int) and step > 0 for step in steps):
        return None
    return tuple(Fraction(1, step) if inverse else Fraction(step) for step in steps)


def pads_edge(module: nn.Module) -> bool:
    """Return True if a convolution or pooling layer pads its input, except for circular padding."""
    padding = getattr(module, "padding", 0)
    if not is_for_images(module) or getattr(module, "padding_mode", "zeros") == "circular":
        return False
    return padding == "same" or (padding != "valid" and any(pair(padding)))


def pair(value: object) -> tuple:
    """Return one value for each of two axes, from a pair or a single value."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def _is_named(module: nn.Module, ending: str) -> bool:
    return any(kind.__name__.endswith(ending) for kind in type(module).__mro__)


def absolute_embeddings(module: nn.Module, layouts: Iterable[Layout]) -> tuple[str, ...]:
    """Return names of parameters, buffers and modules that hold absolute positions.

    They are recognized by their names, shapes or classes.

    Args:
        module: The model.
        layouts: Layouts of the model's tensors.
    """
    grids = [layout for layout in layouts if layout.grid]
    totals = {layout.num_tokens for layout in grids if layout.name.startswith("tokens")}
    sides = {layout.grid for layout in grids if max(layout.grid) > 1}
    holders = [
        name
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
        if not (RELATIVE.search(called := _called(name)) or CLASS_NAME.match(called))
        and (ABSOLUTE_NAME.search(called) or _has_place(tensor, totals, sides))
    ]
    for name, part in module.named_modules():
        kind = type(part).__name__
        owns = any(other.startswith(f"{name}.") for other in holders)
        if name and ABSOLUTE_CLASS.search(kind) and not RELATIVE.search(kind) and not owns:
            holders.append(name)
    return tuple(holders)


def class_tokens(module: nn.Module) -> tuple[str, ...]:
    """Return names of parameters that hold class, distillation and register tokens."""
    return tuple(name for name, _ in module.named_parameters() if CLASS_NAME.match(_called(name)))


def _called(name: str) -> str:
    parts = name.split(".")
    return parts[-2] if parts[-1] in PLAIN_NAMES and len(parts) > 1 else parts[-1]


def _has_place(tensor: Tensor, totals: set[int], sides: set[tuple[int, ...]]) -> bool:
    if not tensor.is_floating_point() or tensor.ndim not in (3, 4) or tensor.shape[0] != 1:
        return False
    shape = tuple(tensor.shape[1:])
    return shape[0] in totals if len(shape) == 2 else not sides.isdisjoint((shape[1:], shape[:2]))
