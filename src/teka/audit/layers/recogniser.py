"""Tell from its shape, and from what came before it, how a tensor lies over the image."""

import math
from fractions import Fraction

from torch import nn

from teka.audit.layers.layout import Layout

# Class, distillation and register tokens before those of the grid: at most so many are looked for.
MAX_PREFIX = 8
# Before a grid that nothing else speaks for, only a class and a distillation token: more would fit too much.
MAX_PREFIX_ALONE = 2
# These act on the last axis, so that a map they get has its channels there.
ACT_ON_LAST_AXIS = (nn.Linear, nn.LayerNorm)
# These make (B, C, h·w) of a map, as modules named …1d take it.
FLATTEN_CELLS = (nn.Flatten, nn.Unfold)
PADDING = (nn.ZeroPad2d, nn.ConstantPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.CircularPad2d)


class Recogniser:
    """Recognises tensors one after the other, in the order in which a model makes them.

    A grid that was seen before is known again. A new one comes from a module for images (a class named …2d), or has
    sides by which those of the seen image can be divided (or the other way round). The stride of a convolution or a
    pooling layer is its own times that of its input; of other modules for images, that of the input times the ratio of
    the grids, or the input's if the module pads; of all else, the seen size over that of the grid.

    Args:
        seen_size: Height and width of what the model gets.
    """

    def __init__(self, seen_size: tuple[int, int]) -> None:
        self.seen_size = seen_size
        self._strides: dict[tuple[int, ...], tuple[Fraction, ...]] = {seen_size: (Fraction(1), Fraction(1))}
        self._tokens: dict[int, Layout] = {}
        self._placed = Layout("map", seen_size, self._strides[seen_size])
        # A vector of so many numbers, right after a map of so many, is that map.
        self._unread_numbers: int | None = None

    def recognise(
        self, module: nn.Module, shape: tuple[int, ...], side: str, source: Layout | None, source_shape: tuple[int, ...]
    ) -> Layout | str:
        """The layout of a tensor, or in words why it has none.

        Args:
            module: The module that got the tensor or gave it.
            shape: Its shape (B, …).
            side: "input" or "output".
            source: For an output, the layout of the module's input, if it has one.
            source_shape: Shape of that input, or ().
        """
        found = self._layout(module, shape, side, source, source_shape)
        if isinstance(found, str):
            return found
        if found.name == "vector":
            self._unread_numbers = None
            return found
        # Most recent last: that is where known grids are looked for first.
        self._strides.pop(found.grid, None)
        self._strides[found.grid] = found.stride
        self._placed = found
        self._unread_numbers = math.prod(shape[1:]) if found.name in ("map", "flattened") else None
        if found.name in ("tokens", "tokens of heads"):
            self._tokens[found.num_tokens] = found
        return found

    def _layout(
        self, module: nn.Module, shape: tuple[int, ...], side: str, source: Layout | None, source_shape: tuple[int, ...]
    ) -> Layout | str:
        is_linear = isinstance(module, nn.Linear)
        if len(shape) == 2:
            is_flat = self._unread_numbers == shape[1] and not (is_linear and side == "output")
            return Layout("flattened", self._placed.grid, self._placed.stride) if is_flat else self._vector()
        if source is not None and source.name != "vector" and source_shape == shape and declared_stride(module) is None:
            return source
        if len(shape) == 3:
            return self._tokens_layout(module, shape, source if side == "output" else None)
        if len(shape) == 4:
            return self._map_layout(module, shape, side, source)
        return f"a tensor of {len(shape)} axes is neither a map, tokens nor a vector"

    def _map_layout(self, module: nn.Module, shape: tuple[int, ...], side: str, source: Layout | None) -> Layout | str:
        _, first, second, third = shape
        if is_for_images(module):
            if second == third == 1:
                return self._vector()
            return Layout("map", (second, third), self._stride_of_map(module, (second, third), side, source))
        by_layout = {"map": (second, third), "channels-last map": (first, second)}
        order = ("channels-last map", "map") if isinstance(module, ACT_ON_LAST_AXIS) else ("map", "channels-last map")
        if self._placed.name.startswith("tokens"):
            total = self._placed.num_tokens
            if second == third == total:
                return "attention weights: pairs of tokens, not places"
            if second == total:
                return Layout("tokens of heads", self._placed.grid, self._placed.stride, self._placed.prefix_tokens)
            if first == total:
                return Layout("tokens", self._placed.grid, self._placed.stride, self._placed.prefix_tokens)
            known = [name for name in order if by_layout[name] == self._placed.grid]
            return (
                Layout(known[0], self._placed.grid, self._placed.stride)
                if known
                else f"a tensor of shape (B, {first}, {second}, {third}) is no map on the tokens' grid"
            )
        if second == third == 1:
            return self._vector()
        for name in order:
            if by_layout[name] in self._strides:
                return Layout(name, by_layout[name], self._strides[by_layout[name]])
        for name in order:
            if self._divides(by_layout[name]):
                return Layout(name, by_layout[name], self._ratio(by_layout[name]))
        return f"no axes of a tensor of shape (B, {first}, {second}, {third}) are a grid over the image"

    def _tokens_layout(self, module: nn.Module, shape: tuple[int, ...], source: Layout | None) -> Layout | str:
        _, total, width = shape
        came_flat = source is not None and source.name == "flat map"
        if came_flat or isinstance(module, FLATTEN_CELLS) or _is_named(module, "1d"):
            return self._vector() if width == 1 else self._flat_map(width) or self._no_grid(width)
        if total == 1:
            return self._vector()
        is_known = total in self._tokens or 0 <= total - math.prod(self._placed.grid) <= MAX_PREFIX
        # Tokens turned over, to be mixed: unless the module says that its channels are last.
        is_turned = not is_known and width in self._tokens and not isinstance(module, nn.LayerNorm)
        flat = self._flat_map(width) if is_turned else None
        return flat or self._grid_of_tokens(total) or self._flat_map(width) or self._no_grid(total)

    def _no_grid(self, total: int) -> str:
        return f"no grid over the image has {total} cells, even with a few tokens before them"

    def _grid_of_tokens(self, total: int) -> Layout | None:
        if total in self._tokens:
            known = self._tokens[total]
            return Layout("tokens", known.grid, known.stride, known.prefix_tokens)
        known, even = list(reversed(self._strides)), self._even_grids()
        tries = ((known, (0,)), (even, (0,)), (known, range(1, MAX_PREFIX + 1)), (even, range(1, MAX_PREFIX_ALONE + 1)))
        for grids, prefixes in tries:
            for prefix in prefixes:
                for grid in grids:
                    if math.prod(grid) == total - prefix > 1:
                        return Layout("tokens", grid, self._strides.get(grid, self._ratio(grid)), prefix)
        return None

    def _flat_map(self, cells: int) -> Layout | None:
        for grid in reversed(self._strides):
            if math.prod(grid) == cells:
                return Layout("flat map", grid, self._strides[grid])
        return None

    def _even_grids(self) -> list[tuple[int, ...]]:
        """Grids of square cells that fill the seen image, the finest first."""
        shared = math.gcd(*self.seen_size)
        sides = [side for side in range(1, shared + 1) if shared % side == 0]
        return [tuple(size // side for size in self.seen_size) for side in sides]

    def _vector(self) -> Layout:
        coarsest = tuple(max(stride) for stride in zip(*self._strides.values(), strict=True))
        return Layout("vector", (), coarsest)

    def _divides(self, grid: tuple[int, ...]) -> bool:
        return all(
            seen % side == 0 or side % seen == 0 for seen, side in zip(self.seen_size, grid, strict=True)
        ) and self._has_aspect(grid)

    def _has_aspect(self, grid: tuple[int, ...]) -> bool:
        return grid[0] * self.seen_size[1] == grid[1] * self.seen_size[0]

    def _ratio(self, grid: tuple[int, ...]) -> tuple[Fraction, ...]:
        return tuple(Fraction(seen, side) for seen, side in zip(self.seen_size, grid, strict=True))

    def _stride_of_map(
        self, module: nn.Module, grid: tuple[int, ...], side: str, source: Layout | None
    ) -> tuple[Fraction, ...]:
        if side == "output" and source is not None and source.grid:
            declared = declared_stride(module)
            if declared is not None:
                return tuple(coarse * step for coarse, step in zip(source.stride, declared, strict=True))
            if isinstance(module, PADDING):
                return source.stride
            sides = zip(source.stride, source.grid, grid, strict=True)
            return tuple(coarse * Fraction(before, after) for coarse, before, after in sides)
        if grid in self._strides:
            return self._strides[grid]
        # What was padded for this module has a few cells more than what came before, at the same stride.
        more = [after - before for before, after in zip(self._placed.grid, grid, strict=True)]
        padded = all(0 <= cells <= size for cells, size in zip(more, _kernel_size(module), strict=True))
        return self._placed.stride if padded else self._ratio(grid)


def is_for_images(module: nn.Module) -> bool:
    """Whether a module takes maps (B, C, h, w) by its class: one named …2d, or derived from one, or an up-sampling."""
    return isinstance(module, nn.Upsample | nn.PixelShuffle | nn.PixelUnshuffle) or _is_named(module, "2d")


def declared_stride(module: nn.Module) -> tuple[Fraction, ...] | None:
    """Input cells for one output cell along both axes, as a convolution or a pooling layer declares it; else None."""
    stride = getattr(module, "stride", None)
    if not is_for_images(module) or stride is None or not hasattr(module, "kernel_size"):
        return None
    steps = _pair(stride)
    if not all(isinstance(step, int) and step > 0 for step in steps):
        return None
    inverse = isinstance(module, nn.ConvTranspose2d)
    return tuple(Fraction(1, step) if inverse else Fraction(step) for step in steps)


def pads_edge(module: nn.Module) -> bool:
    """Whether a convolution or a pooling layer declares that it goes on beyond the edge, other than round a torus."""
    padding = getattr(module, "padding", 0)
    if not is_for_images(module) or getattr(module, "padding_mode", "zeros") == "circular":
        return False
    return padding == "same" or (padding != "valid" and any(_pair(padding)))


def _kernel_size(module: nn.Module) -> tuple:
    size = _pair(getattr(module, "kernel_size", 0))
    return size if all(isinstance(side, int) for side in size) else (0, 0)


def _pair(value: object) -> tuple:
    return tuple(value) if isinstance(value, tuple | list) else (value, value)


def _is_named(module: nn.Module, ending: str) -> bool:
    return any(kind.__name__.endswith(ending) for kind in type(module).__mro__)
