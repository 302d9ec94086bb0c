"""A regular grid of tokens in any number of dimensions: positions, offsets, unfolding and the definition of shift."""

import math
import operator
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import SupportsIndex, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from teka._checkpoint import restore_in_recomputation
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
WRAP_TOLERANCE = 1e-6  # share of a period by which offsets near half of it are taken to lie beyond


def wrap(offset: Float[Tensor, "*batch"], period: float | None) -> Float[Tensor, "*batch"]:
    """Offsets along one axis brought into [−P/2, P/2), as they are if there is no period P."""
    # The seam lies a little before P/2, so that rounding never puts equal offsets on different sides of it.
    return (
        offset
        if period is None
        else offset - period * torch.floor(offset / period + (0.5 + WRAP_TOLERANCE))
    )


@dataclass(frozen=True, init=False)
class Grid:
    """A regular grid of n axes whose cells, in row-major order, are the tokens.

    A grid is shorthand for its positions: token i at multi-index (i_1, …, i_n) lies at x_i = o + (i_1 s_1, …, i_n s_n)
    with origin o and spacing s. The origin matters only where two grids meet: the cells of a grid that is half as fine
    as Grid(16) and has its cells in the middle of pairs are Grid(8, spacing=2.0, origin=0.5). A shift by (t_1, …, t_n)
    moves what is at index i to index i + t: downwards along the first axis of an image and to the right along the
    second. Everything in teka that shifts, shifts in this sense. Sizes or numbers that do not fit are a ValueError.
    `torch.export` takes a grid that a model is called with, `[]` in `dynamic_shapes`, as part of the program, which
    refuses any other.

    >>> import teka
    >>> teka.Grid((2, 2), spacing=0.5).positions().tolist()
    [[0.0, 0.0], [0.0, 0.5], [0.5, 0.0], [0.5, 0.5]]
    >>> ring = teka.Grid(4, periodic=True)
    >>> ring.offsets()[0, :, 0]  # x_0 − x_j, the shorter way round
    tensor([ 0., -1., -2.,  1.])

    Args:
        shape: Cells along each axis; an int is a grid of one axis.
        spacing: Distance between neighbouring cells in physical units, one positive number or one for each axis.
        periodic: Whether the last cell of an axis neighbours its first, one flag or one for each axis.
        origin: Position of the first cell in physical units, one finite number or one for each axis.
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
            raise wrong_value(
                "shape", shape, f"one or more sizes, each a whole number from 1 to {MAX_SIZE}"
            )
        object.__setattr__(self, "shape", tuple(int(side) for side in sides))
        steps = self._for_each_axis("spacing", spacing)
        if not all(is_positive(step) for step in steps):
            raise wrong_value("spacing", spacing, "positive finite numbers of float32's range")
        object.__setattr__(self, "spacing", tuple(float(step) for step in steps))
        flags = self._for_each_axis("periodic", periodic)
        if not all(isinstance(flag, bool) for flag in flags):
            raise wrong_value("periodic", periodic, "True or False, or one of them for each axis")
        object.__setattr__(self, "periodic", flags)
        first = self._for_each_axis("origin", origin)
        if not all(is_number(place) for place in first):
            raise wrong_value("origin", origin, "finite numbers")
        object.__setattr__(self, "origin", tuple(float(place) for place in first))

    def _for_each_axis(self, argument: str, given: object) -> tuple:
        values = tuple(given) if isinstance(given, Sequence) else (given,) * len(self.shape)
        if len(values) != len(self.shape):
            expected = f"one value, or one for each of the {len(self.shape)} axes of {self.shape}"
            raise wrong_value(argument, given, expected)
        return values

    @property
    def num_axes(self) -> int:
        """Number of axes n."""
        return len(self.shape)

    @property
    def num_tokens(self) -> int:
        """Number of cells, the product of the sizes."""
        return math.prod(self.shape)

    def axis_period(self, axis: int) -> float | None:
        """Length after which one axis comes back to its first cell, in physical units; None if it does not."""
        return self.shape[axis] * self.spacing[axis] if self.periodic[axis] else None

    def axis_positions(
        self, axis: int, *, dtype: Dtype = None, device: Device = None
    ) -> Float[Tensor, "side"]:
        """Position of every cell along one axis in physical units; shape (S,)."""
        cells = torch.arange(
            self.shape[axis], dtype=dtype or torch.get_default_dtype(), device=device
        )
        return self.origin[axis] + cells * self.spacing[axis]

    def positions(
        self, *, dtype: Dtype = None, device: Device = None
    ) -> Float[Tensor, "tokens axes"]:
        """Position of every token in physical units, in row-major order; shape (L, n)."""
        sides = [
            self.axis_positions(axis, dtype=dtype, device=device) for axis in range(self.num_axes)
        ]
        return torch.stack(torch.meshgrid(*sides, indexing="ij"), dim=-1).reshape(-1, self.num_axes)

    def wrap(self, offsets: Float[Tensor, "*batch axes"]) -> Float[Tensor, "*batch axes"]:
        """Offsets in physical units, brought into [−P/2, P/2) along every axis that is periodic with period P."""
        check_dtype("offsets", offsets)
        if offsets.shape[-1:] != (self.num_axes,):
            raise wrong_shape("offsets", offsets.shape, f"(…, {self.num_axes}), one for each axis")
        if not any(self.periodic):
            return offsets
        return torch.stack(
            [self.wrap_axis(axis, offsets[..., axis]) for axis in range(self.num_axes)], dim=-1
        )

    def wrap_axis(self, axis: int, offset: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Offsets along one axis in physical units, brought into [−P/2, P/2) if it is periodic with period P."""
        return wrap(offset, self.axis_period(axis))

    def offsets(
        self, *, dtype: Dtype = None, device: Device = None
    ) -> Float[Tensor, "tokens tokens axes"]:
        """Offset x_i − x_j of every pair of tokens in physical units, wrapped where periodic; shape (L, L, n)."""
        # With the first cell at 0, so that no digits are lost far from it.
        positions = Grid(self.shape, self.spacing, self.periodic).positions(
            dtype=dtype, device=device
        )
        return self.wrap(positions[:, None] - positions[None, :])

    def shard(self, index: int, count: int) -> "Grid":
        """Part `index` of `count` that are as equal as can be: whole rows of the first axis, where they are.

        Of an axis that is periodic a part is not. More parts than rows, or an index that is none, is a ValueError.
        """
        check_sizes({"count": count}, most=self.shape[0])
        check_sizes({"index": index}, 0, most=count - 1)
        start, stop = (self.shape[0] * place // count for place in (index, index + 1))
        origin = (self.origin[0] + start * self.spacing[0], *self.origin[1:])
        periodic = (self.periodic[0] and count == 1, *self.periodic[1:])
        return Grid((stop - start, *self.shape[1:]), self.spacing, periodic, origin)

    def flatten(self, tensor: Tensor) -> Tensor:
        """Unfold channels over the grid (B, C, S_1, …, S_n) into tokens (B, L, C); other sizes are a ValueError."""
        self._check_channels(tensor)
        return tensor.flatten(2).transpose(1, 2)

    def unflatten(self, tokens: Tensor) -> Tensor:
        """Fold tokens (B, L, C) back into channels over the grid (B, C, S_1, …, S_n): the inverse of `flatten`."""
        check_tensor("tokens", tokens, "batch", self.num_tokens, "channels", dtypes=None)
        return tokens.transpose(1, 2).unflatten(2, self.shape)

    def check_shift(self, shift: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
        """The shift as one int for each axis, else a ValueError; a single int moves along the last axis."""
        try:
            if isinstance(shift, Sequence):
                steps = tuple(operator.index(step) for step in shift)
            else:
                steps = (0,) * (self.num_axes - 1) + (operator.index(shift),)
        except TypeError:
            steps = ()
        if len(steps) != self.num_axes:
            raise wrong_value(
                "shift", shift, f"a whole number for each of the {self.num_axes} axes"
            )
        return steps

    def roll(self, tensor: Tensor, shift: SupportsIndex | Sequence[SupportsIndex]) -> Tensor:
        """Shift channels over the grid (B, C, S_1, …, S_n); what leaves at one side enters at the other."""
        self._check_channels(tensor)
        steps = [
            step % side for step, side in zip(self.check_shift(shift), self.shape, strict=True)
        ]
        return torch.roll(tensor, steps, dims=tuple(range(2, tensor.ndim)))

    def _check_channels(self, tensor: Tensor) -> None:
        check_tensor("tensor", tensor, "batch", "channels", *self.shape, dtypes=None)


GridLike: TypeAlias = Grid | Sequence[int] | int


def as_grid(argument: str, grid: GridLike) -> Grid:
    """Return a grid given as a `Grid`, as its shape or as the length of its only axis.

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


register_constant(Grid, asdict, lambda held: Grid(**held))


class _Entered(threading.local):
    """What each `on` that a thread has entered has said; no ContextVar, which torch.compile cannot read."""

    def __init__(self) -> None:
        self.grids: list[tuple[Grid, int]] = []


_entered = _Entered()


@contextmanager
def on(grid: GridLike, num_prefix_tokens: int = 0) -> Iterator[None]:
    """Set the grid of the tokens for every layer that is called within this context without a grid or positions.

    Layers then need no argument for the grid, so that they work in `nn.Sequential` and in models of other libraries.
    A grid or positions given to a layer take precedence. Contexts can be nested, and each thread has its own.

    `torch.utils.checkpoint` recomputes layers under the grid of their forward pass, wherever the backward pass runs.
    Other implementations of activation checkpointing do not: enter the context inside the checkpointed function.

    Raises:
        ValueError: `grid` is not a grid, or a layer is called with another number of tokens.

    >>> import torch, teka
    >>> layers = torch.nn.Sequential(teka.nn.TransformerBlock(16, 2), teka.nn.TransformerBlock(16, 2))
    >>> with teka.on(teka.Grid((3, 5))):
    ...     layers(torch.zeros(1, 15, 16)).shape
    torch.Size([1, 15, 16])

    Args:
        grid: The grid whose cells are the tokens after the prefix.
        num_prefix_tokens: Number of first tokens without a position, such as a class token.
    """
    if not _IS_RESTORED:
        warnings.warn(
            "checkpoints of this version of PyTorch forget the grid of teka.on", stacklevel=3
        )
    grid = as_grid("grid", grid)
    check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
    _entered.grids.append((grid, num_prefix_tokens))
    try:
        yield
    finally:
        _entered.grids.pop()


def _capture_entered() -> Callable[[], AbstractContextManager[None]]:
    grids = tuple(_entered.grids)

    @contextmanager
    def restore() -> Iterator[None]:
        outside, _entered.grids = _entered.grids, list(grids)
        try:
            yield
        finally:
            _entered.grids = outside

    return restore


_IS_RESTORED = restore_in_recomputation(_capture_entered)


def current_grid() -> tuple[Grid | None, int]:
    """The grid of the innermost `on`, None outside of any, and its number of prefix tokens."""
    return _entered.grids[-1] if _entered.grids else (None, 0)
