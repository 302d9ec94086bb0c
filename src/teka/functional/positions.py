"""Positions of the tokens in attention, as a regular grid or as coordinates."""

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.checks import (
    BOOL_DTYPES,
    COORDINATE_DTYPES,
    INTEGER_DTYPES,
    check_dtype,
    check_sizes,
    check_tensor,
)
from teka.errors import wrong_argument, wrong_shape, wrong_value
from teka.execution_mode import can_cache_tensors, can_read_elements
from teka.functional.shapes import Angles, Coordinates, Offsets
from teka.grid import Grid, GridLike, as_grid
from teka.precision import to_widest_dtype, widest_dtype


@dataclass(frozen=True)
class Positions:
    """Positions of the queries and keys of attention, as a regular grid or as coordinates.

    Args:
        grid: Grid of the queries.
        points: Coordinates of the queries in physical units instead of a grid.
        key: Positions of the keys, or None if they are those of the queries.
        num_prefix_tokens: Number of first tokens without a position, such as a class token. c = 1
            for every pair with one of them.
    """

    grid: Grid | None = None
    points: Coordinates | None = None
    key: "Positions | None" = None
    num_prefix_tokens: int = 0

    @property
    def key_positions(self) -> "Positions":
        """Positions of the keys."""
        return self if self.key is None else self.key

    @property
    def is_given(self) -> bool:
        """True if the queries have a grid or coordinates, False if they have no positions."""
        return self.grid is not None or self.points is not None

    @property
    def num_axes(self) -> int:
        """Number of position axes. It is 0 without positions."""
        if self.grid is not None:
            return self.grid.num_axes
        return 0 if self.points is None else self.points.shape[-1]

    @property
    def num_queries_with_position(self) -> int | None:
        """Number of queries that have a position, or None if no query has one.

        A class token, for example, has no position.
        """
        if self.grid is not None:
            return self.grid.num_tokens
        return None if self.points is None else self.points.shape[-2]

    def coordinates(self, device: torch.device) -> Coordinates:
        """Return the coordinates of the queries, for example the row and column of each pixel.

        The coordinates are in float64 if the device supports it, because positions far from 0 need
        this precision.
        """
        if self.grid is not None:
            make = _cached_coordinates if can_cache_tensors(device) else _grid_coordinates
            return make(self.grid, device)
        assert self.points is not None
        return self.points.to(device=device, dtype=widest_dtype(device))

    @property
    def grids(self) -> tuple[Grid, Grid] | None:
        """The grid of the queries and the grid of the keys, or None if one of them has no grid."""
        grid, key_grid = self.grid, self.key_positions.grid
        return None if grid is None or key_grid is None else (grid, key_grid)

    @property
    def shared_grid(self) -> Grid | None:
        """The grid of both queries and keys, or None if they have different grids or no grid."""
        return self.grid if self.grid == self.key_positions.grid else None

    @property
    def periods(self) -> tuple[float | None, ...]:
        """Period of each position axis, which is the length after which positions repeat.

        It is None for an axis that is not periodic.
        """
        grid = self.grid or self.key_positions.grid
        return (
            (None,) * self.num_axes
            if grid is None
            else tuple(map(grid.axis_period, range(grid.num_axes)))
        )

    def pairwise_offsets(self, tensor: Tensor, rows: slice | Tensor | None = None) -> Offsets:
        """Return the position of each query minus the position of each key.

        Along a periodic axis, the shortest difference is used. The result has the dtype and the
        device of `tensor`. `rows` selects some of the queries.
        """
        grid = self.grid or self.key_positions.grid
        query, key = self.coordinates(tensor.device), self.key_positions.coordinates(tensor.device)
        # In a graph of torch.compile, a comparison of `rows` with None would fix its length.
        if isinstance(rows, (slice, Tensor)):
            query = query[..., rows, :]
        if query.ndim != key.ndim:
            query, key = (points if points.ndim == 3 else points[None] for points in (query, key))
        # Round after the subtraction: offsets need fewer digits than positions far from 0.
        offsets = (query[..., :, None, :] - key[..., None, :, :]).to(tensor)
        return offsets if grid is None else grid.wrap(offsets)

    def pairwise_axis_offsets(
        self, axis: int, tensor: Tensor
    ) -> Float[Tensor, "query_side key_side"]:
        """Return the coordinate of each query minus that of each key along one axis of their grids.

        On an image, for example, axis 0 has one coordinate for each row of pixels. Along a periodic
        axis, the shortest difference is used. The result has the dtype and the device of `tensor`.
        """
        assert self.grids is not None
        dtype, device = widest_dtype(tensor.device), tensor.device
        query, key = (grid.axis_positions(axis, dtype=dtype, device=device) for grid in self.grids)
        return self.grids[0].wrap_axis(axis, (query[:, None] - key[None, :]).to(tensor))

    def round_frequency_to_periods(
        self, frequency: Float[Tensor, "*waves axes"]
    ) -> Float[Tensor, "*waves axes"]:
        """Round the frequencies of sinusoids so that they repeat with the periods of the grid.

        Along an axis with a period, the frequency becomes a multiple of 2π / period. Rounded
        frequencies get no gradient.
        """
        frequency = to_widest_dtype(frequency)
        if not any(self.periods):
            return frequency
        steps = [None if period is None else 2 * math.pi / period for period in self.periods]
        columns = zip(steps, frequency.unbind(dim=-1), strict=True)
        rounded = [
            column if step is None else torch.round(column / step) * step
            for step, column in columns
        ]
        return torch.stack(rounded, dim=-1)

    def compute_sinusoid_phases(
        self, frequency: Float[Tensor, "heads waves axes"], like: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the phases ω·x of sinusoids with the frequencies ω at the positions x of tokens.

        The first result contains the phases of the queries, and the second those of the keys. They
        have the dtype and the device of `like`.
        """
        angle = phases(frequency, self.coordinates(like.device), like.dtype)
        return angle, angle if self.key is None else phases(
            frequency, self.key.coordinates(like.device), like.dtype
        )

    def check_queries_and_keys(
        self,
        *,
        batch: int,
        num_queries: int,
        num_keys: int,
        key: str = "key_",
        is_needed: bool = True,
    ) -> None:
        """Check that there is one position for each query and for each key of attention.

        If keys have their own positions, these must have the same axes and periods as those of the
        queries.

        Args:
            batch: Number of samples.
            num_queries: Number of queries.
            num_keys: Number of keys.
            key: Prefix of the names of the keys' arguments, for error messages.
            is_needed: If False, positions may be missing.

        Raises:
            ValueError: The positions do not fit.
        """
        prefix = self.num_prefix_tokens
        if prefix and self.key is not None and is_needed:
            raise wrong_value("num_prefix_tokens", prefix, "0 if the keys have their own positions")
        for argument, positions, num_tokens in (
            ("", self, num_queries),
            (key, self.key_positions, num_keys),
        ):
            if is_needed or positions.is_given:
                first = prefix if positions is self else 0
                positions.check_token_positions(argument, first, batch=batch, num_tokens=num_tokens)
            if self.key is None and num_keys == num_queries:
                return
        if self.key is None or not is_needed:
            return
        if self.key.num_axes != self.num_axes:
            actual = f"{self.key.num_axes} axes"
            raise wrong_argument(
                f"{key}grid or {key}positions", actual, f"of {self.num_axes} axes, like the queries"
            )
        if self.grids is not None:
            pairs = zip(self.periods, self.key.periods, strict=True)
            if not all(_is_same_period(*pair) for pair in pairs):
                raise wrong_value(
                    f"{key}grid", self.key.grid, f"a grid with the periods {self.periods} of `grid`"
                )

    def check_token_positions(
        self, argument: str, prefix: int, *, batch: int, num_tokens: int
    ) -> None:
        """Check that there is one position for each token of a sequence except the prefix tokens.

        Prefix tokens, such as a class token, come first and have no position.

        Args:
            argument: Prefix of the names of the arguments, "" or "key_", for error messages.
            prefix: Number of first tokens without a position.
            batch: Number of samples.
            num_tokens: Number of tokens.

        Raises:
            ValueError: The positions do not fit.
        """
        grid, points = self.grid, self.points
        if (grid is None) == (points is None):
            actual = "neither" if grid is None else "both"
            raise wrong_argument(
                f"{argument}grid or {argument}positions", actual, "given, and not both"
            )
        if grid is not None:
            if num_tokens != prefix + grid.num_tokens:
                expected = (
                    f"{prefix} prefix + {grid.num_tokens} tokens of the {argument}grid {grid.shape}"
                )
                sequence = f"the {argument.replace('_', ' ')}sequence"
                raise ValueError(f"{sequence} must have {expected}, got {num_tokens} tokens.")
            return
        assert points is not None
        length = num_tokens - prefix
        fits = points.ndim in (2, 3) and points.shape[-2] == length and points.shape[-1] >= 1
        if not fits or (points.ndim == 3 and points.shape[0] not in (1, batch)):
            raise wrong_shape(
                f"{argument}positions",
                points.shape,
                f"({length}, axes) or ({batch}, {length}, axes)",
            )
        if can_read_elements(points) and not points.isfinite().all():
            raise wrong_argument(f"{argument}positions", "NaN or infinity", "finite")


def _is_same_period(period: float | None, other: float | None) -> bool:
    if period is None or other is None:
        return period is other
    return abs(period - other) <= 1e-9


def _grid_coordinates(grid: Grid, device: torch.device) -> Float[Tensor, "tokens axes"]:
    return grid.positions(dtype=widest_dtype(device), device=device)


_cached_coordinates = functools.lru_cache(maxsize=8)(_grid_coordinates)


def compute_packed_lengths(
    cu_seqlens: Tensor, num_tokens: int, positions: Positions, excluded: Mapping[str, object]
) -> tuple[int, ...]:
    """Compute the lengths of sequences that are concatenated without padding.

    A length is the difference of two neighboring boundaries in `cu_seqlens`. The function also
    checks the other arguments of attention, because not all are supported for such sequences.

    Args:
        cu_seqlens: Boundaries 0, …, L of the sequences.
        num_tokens: Number of tokens L.
        positions: Positions of the tokens, which must be coordinates.
        excluded: Arguments that are not supported with `cu_seqlens`, by name. They must be None.

    Raises:
        ValueError: The boundaries are invalid, an excluded argument has a value, or the tokens are
            on a grid.
    """
    for argument, value in excluded.items():
        if value is not None:
            raise wrong_argument(argument, "a value", "None with cu_seqlens")
    check_tensor("cu_seqlens", cu_seqlens, "sequences", dtypes=INTEGER_DTYPES)
    boundaries = cu_seqlens.tolist()
    lengths = tuple(stop - start for start, stop in itertools.pairwise(boundaries))
    if not lengths or boundaries[0] != 0 or boundaries[-1] != num_tokens or min(lengths) < 1:
        expected = f"increasing from 0 to the number of tokens, {num_tokens}"
        actual = boundaries if len(boundaries) <= 8 else f"{boundaries[:8]} and so on"
        raise wrong_value("cu_seqlens", actual, expected)
    if positions.grid is not None:
        hint = "Give positions instead."
        raise wrong_value("grid", positions.grid, "None with cu_seqlens", hint)
    return lengths


def make_positions(
    prefix: str, grid: GridLike | None, points: Tensor | None, device: torch.device
) -> Positions:
    """Convert the arguments `grid` and `positions` of an attention function to `Positions`.

    If `torch.export` treats the length of a grid as dynamic, the result has coordinates instead of
    a grid.

    Args:
        prefix: Prefix of the names of the arguments in error messages, such as "" or "key_".
        grid: Grid, shape or length.
        points: Coordinates, floating-point or integer.
        device: Device of the tokens.
    """
    if isinstance(grid, torch.SymInt) and points is None:
        return Positions(None, make_row_positions(grid, device))
    if grid is not None:
        grid = as_grid(f"{prefix}grid", grid)
    if points is not None:
        points = as_coordinates(f"{prefix}positions", points)
    return Positions(grid, points)


def make_row_positions(num_tokens: int | torch.SymInt, device: torch.device) -> Coordinates:
    """Create coordinates 0, 1, 2, … for the tokens of a sequence."""
    end: Any = num_tokens
    return torch.arange(end, dtype=widest_dtype(device), device=device)[:, None]


def as_coordinates(argument: str, points: Tensor) -> Tensor:
    """Return token coordinates as a floating-point tensor, with integers converted to float64."""
    check_dtype(argument, points, COORDINATE_DTYPES)
    return points if points.is_floating_point() else to_widest_dtype(points)


def phases(
    frequency: Float[Tensor, "heads waves axes"], positions: Coordinates, dtype: torch.dtype
) -> Angles:
    """Return the phases ω·x of sinusoids at token positions, modulo 2π.

    Here ω is a frequency vector and x a position. The product is computed in float64, because in
    float32 its error is 0.06 at x = 10⁶.
    """
    places = to_widest_dtype(positions)
    turns = places[..., None, :, :] @ (frequency.to(places) / (2 * math.pi)).mT
    return turns.frac().to(dtype) * (2 * math.pi)


def round_to_steps(offsets: Float[Tensor, "*shape"], unit: float) -> Float[Tensor, "*shape"]:
    """Divide offsets between positions by the length of a step, and round them to integers.

    Offsets with a fraction slightly below one half are rounded up, too. Without this margin,
    rounding errors could round equal offsets to different integers.
    """
    return torch.floor(offsets / unit + 0.501)


def check_mask(argument: str, mask: Tensor, *, batch: int, num_tokens: int) -> None:
    """Check that a mask is boolean with shape (batch, num_tokens)."""
    check_tensor(argument, mask, batch, num_tokens, dtypes=BOOL_DTYPES)


def length_mask(lengths: Tensor, num_tokens: int) -> Bool[Tensor, "batch tokens"]:
    """Return a padding mask, which is True for the first `lengths[b]` tokens of sample b.

    >>> import torch, teka
    >>> teka.functional.length_mask(torch.tensor([1, 3]), 3)
    tensor([[ True, False, False],
            [ True,  True,  True]])

    Args:
        lengths: Number of tokens of each sample, shape (B,).
        num_tokens: Number of tokens with padding, L.

    Returns:
        Mask, shape (B, L).

    Raises:
        ValueError: A length is not an integer from 0 to `num_tokens`.
    """
    check_tensor("lengths", lengths, "batch", dtypes=INTEGER_DTYPES)
    check_sizes({"num_tokens": num_tokens})
    lengths = lengths.long()  # a small integer dtype may not hold num_tokens
    if can_read_elements(lengths) and not ((lengths >= 0) & (lengths <= num_tokens)).all():
        raise wrong_value("lengths", lengths.tolist(), f"whole numbers from 0 to {num_tokens}")
    return torch.arange(num_tokens, device=lengths.device) < lengths[:, None]
