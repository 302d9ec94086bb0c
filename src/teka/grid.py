"""Token grids, which give each token of a sequence, an image or a volume a position."""

import math
import operator
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import SupportsIndex, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from teka._checkpoint import restore_thread_locals_in_checkpoints
from teka._compat import register_constant
from teka.checks import (
    MAX_SIZE,
    check_dtype,
    check_sizes,
    check_tensor,
    is_integer,
    is_number,
    is_positive,
)
from teka.errors import wrong_shape, wrong_value

Dtype: TypeAlias = torch.dtype | None
Device: TypeAlias = torch.device | str | None
# Offsets within this fraction of a period below P/2 wrap to −P/2, so that rounding errors never put
# equal offsets at opposite ends of the period.
WRAP_TOLERANCE = 1e-6


def wrap_offset(offset: Float[Tensor, "*batch"], period: float | None) -> Float[Tensor, "*batch"]:
    """Wrap offsets along a periodic axis, so that each goes the shorter way around.

    For example, an offset of 7 with a period of 10 becomes −3. With a period P, the results lie in
    [−P/2, P/2). A period of None means that the axis is not periodic, so the offsets do not change.
    """
    if period is None:
        return offset
    return offset - period * torch.floor(offset / period + (0.5 + WRAP_TOLERANCE))


@dataclass(frozen=True, init=False)
class Grid:
    """Regular grid of tokens with n axes, such as a sequence, an image or a volume.

    The tokens are the cells of the grid in row-major order. The token at index (i_1, …, i_n) has
    the position

        x = (o_1 + i_1 s_1, …, o_n + i_n s_n)

    with origin o and spacing s. A shift by (t_1, …, t_n) moves the content of the cell at index i
    to index i + t: down along the first axis of an image, and right along the second.

    The origin matters only if two grids are used together, such as those of the queries and the
    keys of a downsampling layer. For example, each cell of `Grid(8, spacing=2.0, origin=0.5)` lies
    halfway between two cells of `Grid(16)`.

    Grids are immutable, hashable and compared by value. In `torch.export`, a grid that is an
    argument of a model is a constant of the exported program. Its entry in `dynamic_shapes` is
    `[]`.

    >>> import teka
    >>> teka.Grid((2, 2), spacing=0.5).positions().tolist()
    [[0.0, 0.0], [0.0, 0.5], [0.5, 0.0], [0.5, 0.5]]
    >>> ring = teka.Grid(4, periodic=True)
    >>> ring.offsets()[0, :, 0]  # x_0 − x_j, by the shorter way around the ring
    tensor([ 0., -1., -2.,  1.])

    Args:
        shape: Number of cells along each axis. An int stands for a grid with one axis.
        spacing: Distance between neighboring cells in physical units, one number or one per axis.
        periodic: Join the ends of an axis, so that the last cell is next to the first. One flag or
            one per axis.
        origin: Position of the first cell in physical units, one number or one per axis.

    Raises:
        ValueError: An argument has the wrong number of values, or a value is out of range.
    """

    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    periodic: tuple[bool, ...]
    origin: tuple[float, ...]

    def __init__(
        self,
        shape: int | Sequence[int],
        spacing: float | Sequence[float] = 1.0,
        periodic: bool | Sequence[bool] = False,
        origin: float | Sequence[float] = 0.0,
    ) -> None:
        sides = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        if not sides or not all(is_integer(side) and 1 <= side <= MAX_SIZE for side in sides):
            expected = f"one or more sizes, each a whole number from 1 to {MAX_SIZE}"
            raise wrong_value("shape", shape, expected)
        object.__setattr__(self, "shape", tuple(map(int, sides)))
        for argument, value, kind, is_valid, expected in (
            ("spacing", spacing, float, is_positive, "positive finite numbers that fit in float32"),
            (
                "periodic",
                periodic,
                bool,
                lambda flag: isinstance(flag, bool),
                "True or False, or one of them for each axis",
            ),
            ("origin", origin, float, is_number, "finite numbers"),
        ):
            values = tuple(value) if isinstance(value, Sequence) else (value,) * len(sides)
            if len(values) != len(sides):
                axes = f"the {len(sides)} axes of {self.shape}"
                raise wrong_value(argument, value, f"one value, or one for each of {axes}")
            if not all(map(is_valid, values)):
                raise wrong_value(argument, value, expected)
            object.__setattr__(self, argument, tuple(map(kind, values)))

    @property
    def num_axes(self) -> int:
        """Number of axes n."""
        return len(self.shape)

    @property
    def num_tokens(self) -> int:
        """Number of cells, which is the product of the sizes."""
        return math.prod(self.shape)

    def axis_period(self, axis: int) -> float | None:
        """Return the period of an axis in physical units, or None if it is not periodic.

        The period is the number of cells along the axis times their spacing.
        """
        return self.shape[axis] * self.spacing[axis] if self.periodic[axis] else None

    def axis_positions(self, axis: int, *, dtype: Dtype, device: Device) -> Float[Tensor, "side"]:
        """Return the coordinates of the cells along one axis in physical units, shape (side,)."""
        cells = torch.arange(
            self.shape[axis], dtype=dtype or torch.get_default_dtype(), device=device
        )
        return self.origin[axis] + cells * self.spacing[axis]

    def positions(
        self, *, dtype: Dtype = None, device: Device = None
    ) -> Float[Tensor, "tokens axes"]:
        """Return the coordinates of every token in physical units, shape (tokens, axes)."""
        sides = [
            self.axis_positions(axis, dtype=dtype, device=device) for axis in range(self.num_axes)
        ]
        return torch.cartesian_prod(*sides).view(-1, self.num_axes)

    def wrap(self, offsets: Float[Tensor, "*batch axes"]) -> Float[Tensor, "*batch axes"]:
        """Wrap offsets between tokens, so that each goes the shorter way around periodic axes.

        For example, an offset of 7 along an axis with a period of 10 becomes −3. The offsets have
        shape (…, n) for n axes. Along an axis with a period P, the results lie in [−P/2, P/2).
        """
        check_dtype("offsets", offsets)
        if offsets.shape[-1:] != (self.num_axes,):
            raise wrong_shape("offsets", offsets.shape, f"(…, {self.num_axes})")
        if not any(self.periodic):
            return offsets
        return torch.stack(
            [self.wrap_axis(axis, offsets[..., axis]) for axis in range(self.num_axes)], dim=-1
        )

    def wrap_axis(self, axis: int, offset: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Wrap offsets along one axis of the grid, as `wrap` does along all axes."""
        return wrap_offset(offset, self.axis_period(axis))

    def offsets(
        self, *, dtype: Dtype = None, device: Device = None
    ) -> Float[Tensor, "tokens tokens axes"]:
        """Return the offset x_i − x_j of every pair of tokens, shape (tokens, tokens, axes).

        Offsets go the shorter way around periodic axes.
        """
        # Offsets do not depend on the origin. Without the origin, they are more precise.
        positions = Grid(self.shape, self.spacing, self.periodic).positions(
            dtype=dtype, device=device
        )
        return self.wrap(positions[:, None] - positions[None, :])

    def shard(self, index: int, count: int) -> "Grid":
        """Return one of `count` parts of the grid, for example the part of one process.

        The grid is divided along its first axis into parts of nearly equal size, and part 0 comes
        first. The parts are not periodic along this axis, unless there is only one part.

        Raises:
            ValueError: `count` is larger than the first side of the grid, or `index` is not from 0
                to `count` − 1.
        """
        check_sizes({"count": count}, most=self.shape[0])
        check_sizes({"index": index}, 0, most=count - 1)
        start = self.shape[0] * index // count
        stop = self.shape[0] * (index + 1) // count
        origin = (self.origin[0] + start * self.spacing[0], *self.origin[1:])
        periodic = (self.periodic[0] and count == 1, *self.periodic[1:])
        return Grid((stop - start, *self.shape[1:]), self.spacing, periodic, origin)

    def flatten(self, tensor: Tensor) -> Tensor:
        """Reshape an image-like tensor (B, C, S_1, …, S_n) into a sequence of tokens (B, L, C)."""
        self._check_channels(tensor)
        return tensor.flatten(2).transpose(1, 2)

    def unflatten(self, tokens: Tensor) -> Tensor:
        """Reshape a sequence of tokens (B, L, C) into an image-like tensor (B, C, S_1, …, S_n)."""
        check_tensor("tokens", tokens, "batch", self.num_tokens, "channels", dtypes=None)
        return tokens.transpose(1, 2).unflatten(2, self.shape)

    def check_shift(self, shift: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
        """Check a shift by whole grid cells, and return it as one integer for each axis.

        A single integer is a shift along the last axis.

        Raises:
            ValueError: `shift` is neither one integer nor one integer for each axis.
        """
        try:
            if isinstance(shift, Sequence):
                steps = tuple(map(operator.index, shift))
            else:
                steps = (0,) * (self.num_axes - 1) + (operator.index(shift),)
        except TypeError:
            steps = ()
        if len(steps) != self.num_axes:
            expected = f"a whole number for each of the {self.num_axes} axes"
            raise wrong_value("shift", shift, expected)
        return steps

    def roll(self, tensor: Tensor, shift: SupportsIndex | Sequence[SupportsIndex]) -> Tensor:
        """Shift an image-like tensor (B, C, S_1, …, S_n) circularly along the axes of the grid."""
        self._check_channels(tensor)
        axes = zip(self.check_shift(shift), self.shape, strict=True)
        steps = [step % side for step, side in axes]
        return torch.roll(tensor, steps, dims=tuple(range(2, tensor.ndim)))

    def _check_channels(self, tensor: Tensor) -> None:
        check_tensor("tensor", tensor, "batch", "channels", *self.shape, dtypes=None)


GridLike: TypeAlias = Grid | Sequence[int] | int


def as_grid(argument: str, grid: GridLike) -> Grid:
    """Convert a `Grid`, a shape such as (3, 5), or the length of a sequence to a `Grid`.

    >>> as_grid("grid", (3, 5)) == Grid((3, 5)), as_grid("grid", 7) == Grid(7)
    (True, True)

    Args:
        argument: Name of the argument, for the error message.
        grid: A grid, a sequence of sizes or one size.

    Raises:
        ValueError: `grid` is something else.
    """
    if isinstance(grid, Grid):
        return grid
    try:
        return Grid(grid)
    except ValueError as error:
        raise wrong_value(argument, grid, "a teka.Grid, its shape or its length") from error


register_constant(Grid)


class _ActiveGrid(threading.local):
    """Grid and number of prefix tokens that `teka.on` has set in this thread.

    A ContextVar would not work, because torch.compile cannot read it.
    """

    def __init__(self) -> None:
        self.grid_and_prefix: tuple[Grid | None, int] = (None, 0)


_active = _ActiveGrid()


@contextmanager
def on(grid: GridLike, num_prefix_tokens: int = 0) -> Iterator[None]:
    """Set the token grid of all layers that are called within this context manager.

    The layers then need no argument for the grid, so that they work in `nn.Sequential` and in
    models of other libraries. A grid or positions passed to a layer take precedence. Contexts can
    be nested. Other threads are not affected.

    `torch.utils.checkpoint` recomputes layers with the grid of their forward pass. For other
    implementations of activation checkpointing, enter the context inside the checkpointed function.

    >>> import torch, teka
    >>> block = teka.nn.TransformerBlock(16, 2)
    >>> layers = torch.nn.Sequential(block, torch.nn.LayerNorm(16))
    >>> with teka.on(teka.Grid((3, 5))):
    ...     layers(torch.zeros(1, 15, 16)).shape
    torch.Size([1, 15, 16])

    Args:
        grid: Grid of the tokens after the prefix, its shape or its length.
        num_prefix_tokens: Number of first tokens without a position, such as a class token.

    Raises:
        ValueError: `grid` is not a grid, or a layer receives a different number of tokens.
    """
    if not _CHECKPOINTS_RESTORE_GRID:
        warnings.warn(
            "This version of PyTorch does not restore the grid of teka.on when activation "
            "checkpointing recomputes a layer. Pass the grid to the layers as an argument.",
            stacklevel=3,
        )
    grid = as_grid("grid", grid)
    check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
    surrounding = _active.grid_and_prefix
    _active.grid_and_prefix = (grid, num_prefix_tokens)
    try:
        yield
    finally:
        _active.grid_and_prefix = surrounding


_CHECKPOINTS_RESTORE_GRID = restore_thread_locals_in_checkpoints(_active)


def active_grid_and_prefix() -> tuple[Grid | None, int]:
    """Return the grid and the number of prefix tokens that the innermost `teka.on` has set.

    Prefix tokens, such as a class token, have no position. Outside of `teka.on`, return (None, 0).
    """
    return _active.grid_and_prefix
