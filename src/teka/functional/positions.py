"""Where the tokens of two sequences are: those that ask and those that are asked."""

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.checks import BOOL_DTYPES, INTEGER_DTYPES, check_dtype, check_sizes, check_tensor
from teka.errors import wrong_argument, wrong_shape, wrong_value
from teka.execution_mode import is_readable, may_cache
from teka.functional.shapes import Angles, Coordinates, Offsets
from teka.grid import Grid, GridLike, as_grid
from teka.precision import to_widest_dtype, widest_dtype


@dataclass(frozen=True)
class Positions:
    """Where queries and keys are: cells of a grid, `points` in physical units, or nowhere; `key` is None for the same.

    Both begin with `num_prefix_tokens` that have no position (a class token, say): c = 1 for every pair with one.
    """

    grid: Grid | None = None
    points: Coordinates | None = None
    key: "Positions | None" = None
    num_prefix_tokens: int = 0

    @property
    def of_keys(self) -> "Positions":
        """Where the keys are."""
        return self if self.key is None else self.key

    @property
    def is_known(self) -> bool:
        """Whether the queries are anywhere."""
        return self.grid is not None or self.points is not None

    @property
    def num_axes(self) -> int:
        """Number of axes n, 0 for nowhere."""
        if self.grid is not None:
            return self.grid.num_axes
        return 0 if self.points is None else self.points.shape[-1]

    @property
    def num_placed(self) -> int | None:
        """Number of queries that are somewhere, or None for nowhere."""
        if self.grid is not None:
            return self.grid.num_tokens
        return None if self.points is None else self.points.shape[-2]

    def places(self, device: torch.device) -> Coordinates:
        """The queries' positions in float64, or in float32 on a device that has none: far from 0 they need digits."""
        if self.grid is not None:
            make = _kept_places if may_cache(device) else _grid_places
            return make(self.grid, device)
        assert self.points is not None
        return self.points.to(device=device, dtype=widest_dtype(device))

    def axis_places(self, device: torch.device) -> Coordinates:
        """Every row of the grid's first axis, then of every further one, 0 along the others; digits as of `places`."""
        assert self.grid is not None
        make = _kept_axis_places if may_cache(device) else _grid_axis_places
        return make(self.grid, device)

    @property
    def grids(self) -> tuple[Grid, Grid] | None:
        """The grids of queries and keys, if both are on one."""
        grid, key_grid = self.grid, self.of_keys.grid
        return None if grid is None or key_grid is None else (grid, key_grid)

    @property
    def shared_grid(self) -> Grid | None:
        """The grid of queries and keys, if it is the same."""
        return self.grid if self.grid == self.of_keys.grid else None

    @property
    def periods(self) -> tuple[float | None, ...]:
        """Period of every axis in physical units, None where it is not periodic."""
        grid = self.grid or self.of_keys.grid
        return (
            (None,) * self.num_axes
            if grid is None
            else tuple(map(grid.axis_period, range(grid.num_axes)))
        )

    def offsets_like(self, tensor: Tensor, rows: slice | Tensor | None = None) -> Offsets:
        """Offset x_i − x_j of some or all queries from every key, wrapped where periodic, like a tensor."""
        grid = self.grid or self.of_keys.grid
        query, key = self.places(tensor.device), self.of_keys.places(tensor.device)
        query = query if rows is None else query[..., rows, :]
        if query.ndim != key.ndim:
            query, key = (one if one.ndim == 3 else one[None] for one in (query, key))
        # Rounded after the difference is taken, which has fewer digits than positions far from 0.
        offsets = (query[..., :, None, :] - key[..., None, :, :]).to(tensor)
        return offsets if grid is None else grid.wrap(offsets)

    def axis_offsets_like(self, axis: int, tensor: Tensor) -> Float[Tensor, "query_side key_side"]:
        """Offset of every row of the queries' grid from every row of the keys' along one axis, wrapped if periodic."""
        assert self.grids is not None
        dtype, device = widest_dtype(tensor.device), tensor.device
        query, key = (grid.axis_positions(axis, dtype=dtype, device=device) for grid in self.grids)
        return self.grids[0].wrap_axis(axis, (query[:, None] - key[None, :]).to(tensor))

    def torus_frequency(
        self, frequency: Float[Tensor, "*waves axes"]
    ) -> Float[Tensor, "*waves axes"]:
        """Frequencies with components along periodic axes rounded to multiples of 2π/P; these have a gradient of 0."""
        frequency = to_widest_dtype(frequency)
        if not any(self.periods):
            return frequency
        steps = [None if period is None else 2 * math.pi / period for period in self.periods]
        columns = zip(steps, frequency.unbind(dim=-1), strict=True)
        return torch.stack(
            [one if step is None else torch.round(one / step) * step for step, one in columns],
            dim=-1,
        )

    def angles(
        self, frequency: Float[Tensor, "heads waves axes"], like: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The `phases` of queries and keys, one tensor where these are the same."""
        angle = phases(frequency, self.places(like.device), like.dtype)
        return angle, angle if self.key is None else phases(
            frequency, self.key.places(like.device), like.dtype
        )

    def check(
        self,
        *,
        batch: int,
        num_queries: int,
        num_keys: int,
        key: str = "key_",
        is_needed: bool = True,
    ) -> None:
        """Check that places fit sequences and each other, unneeded ones if known; `key` begins the keys' arguments."""
        prefix = self.num_prefix_tokens
        if prefix and self.key is not None and is_needed:
            raise wrong_value("num_prefix_tokens", prefix, "0 if the keys have their own positions")
        for argument, positions, num_tokens in (
            ("", self, num_queries),
            (key, self.of_keys, num_keys),
        ):
            if is_needed or positions.is_known:
                first = prefix if positions is self else 0
                positions.check_tokens(argument, first, batch=batch, num_tokens=num_tokens)
            if self.key is None and num_keys == num_queries:
                return
        if self.key is None or not is_needed:
            return
        if self.key.num_axes != self.num_axes:
            came = f"{self.key.num_axes} axes"
            raise wrong_argument(
                f"{key}grid or {key}positions", came, f"of {self.num_axes} axes, like the queries"
            )
        if self.grids is not None:
            periods = self.periods
            if any(
                (one is None) != (two is None) or abs((one or 0) - (two or 0)) > 1e-9
                for one, two in zip(periods, self.key.periods, strict=True)
            ):
                raise wrong_value(
                    f"{key}grid", self.key.grid, f"a grid with the periods {periods} of `grid`"
                )

    def check_tokens(self, argument: str, prefix: int, *, batch: int, num_tokens: int) -> None:
        """Check that the queries' positions fit a sequence; names of arguments begin with nothing, or "key_" say."""
        grid, points = self.grid, self.points
        if (grid is None) == (points is None):
            came = "neither" if grid is None else "both"
            raise wrong_argument(
                f"{argument}grid or {argument}positions", came, "given, and not both"
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
        if is_readable(points) and not points.isfinite().all():
            raise wrong_argument(f"{argument}positions", "NaN or infinity", "finite")


def _grid_places(grid: Grid, device: torch.device) -> Float[Tensor, "tokens axes"]:
    return grid.positions(dtype=widest_dtype(device), device=device)


def _grid_axis_places(grid: Grid, device: torch.device) -> Float[Tensor, "rows axes"]:
    options: dict[str, Any] = {"dtype": widest_dtype(device), "device": device}
    return torch.block_diag(
        *(grid.axis_positions(axis, **options)[:, None] for axis in range(grid.num_axes))
    )


_kept_places = functools.lru_cache(maxsize=8)(_grid_places)
_kept_axis_places = functools.lru_cache(maxsize=8)(_grid_axis_places)


def packed_lengths(
    cu_seqlens: Tensor, num_tokens: int, positions: Positions, excluded: Mapping[str, object]
) -> tuple[int, ...]:
    """The lengths of sequences that stand one after another, from where each begins and the last one ends.

    Checked, as is that nothing is given that they exclude.
    """
    for argument, given in excluded.items():
        if given is not None:
            raise wrong_argument(argument, "a value", "None with cu_seqlens")
    check_tensor("cu_seqlens", cu_seqlens, "sequences", dtypes=INTEGER_DTYPES)
    places = cu_seqlens.tolist()
    lengths = tuple(stop - start for start, stop in itertools.pairwise(places))
    if not lengths or places[0] != 0 or places[-1] != num_tokens or min(lengths) < 1:
        expected = f"increasing from 0 to the number of tokens, {num_tokens}"
        raise wrong_value(
            "cu_seqlens", places if len(places) <= 8 else f"{places[:8]} and so on", expected
        )
    if positions.grid is not None:
        raise wrong_value("grid", positions.grid, "None with cu_seqlens; give positions instead")
    return lengths


def make_positions(argument: str, grid: GridLike | None, points: Tensor | None) -> Positions:
    """Return the positions of one sequence; `argument` is the prefix of the arguments' names, "" or "key_"."""
    if grid is not None:
        grid = as_grid(f"{argument}grid", grid)
    if points is not None:
        check_dtype(f"{argument}positions", points)
    return Positions(grid, points)


def phases(
    frequency: Float[Tensor, "heads waves axes"], positions: Coordinates, dtype: torch.dtype
) -> Angles:
    """ω·x without its whole turns, in float64: in float32 it errs by 0.06 at 10⁶, and may depend on x_i − x_j alone."""
    places = to_widest_dtype(positions)
    turns = places[..., None, :, :] @ (frequency.to(places) / (2 * math.pi)).transpose(-2, -1)
    return turns.frac().to(dtype) * (2 * math.pi)


def whole_steps(offsets: Float[Tensor, "*shape"], unit: float) -> Float[Tensor, "*shape"]:
    """Offsets rounded to whole numbers of a unit; halves, which a real spacing can give, all go up.

    Left to rounding errors, equal offsets would differ.
    """
    return torch.floor(offsets / unit + 0.501)


def check_heads_and_axes(argument: str, tensor: Tensor, *sizes: int | str) -> None:
    """Check that parameters have the numbers of heads and then of axes among the sizes; the others are names."""
    if tensor.ndim == len(sizes):
        came = [
            size
            for size, asked in zip(tensor.shape, sizes, strict=True)
            if not isinstance(asked, str)
        ]
        heads, num_axes = (size for size in sizes if not isinstance(size, str))
        if came == [heads, num_axes]:
            return
        if came[1] != num_axes:
            raise wrong_axes(argument, tensor, came[1], num_axes)
    raise wrong_shape(
        f"relative.{argument}", tensor.shape, f"({', '.join(map(str, sizes))}) for {sizes[0]} heads"
    )


def wrong_axes(argument: str, tensor: Tensor, made_for: int, num_axes: int) -> ValueError:
    """Error for positions of another number of axes than a parameter of a relative kernel is made for."""
    expected = f"{made_for}, because relative.{argument} has shape {tuple(tensor.shape)}"
    advice = f"make the layer with num_axes={num_axes}"
    return wrong_value("the number of axes of grid or positions", num_axes, f"{expected}; {advice}")


def check_mask(argument: str, mask: Tensor, *, batch: int, num_tokens: int) -> None:
    """Check that a mask has one flag for every token."""
    check_tensor(argument, mask, batch, num_tokens, dtypes=BOOL_DTYPES)


def length_mask(lengths: Tensor, num_tokens: int) -> Bool[Tensor, "batch tokens"]:
    """Mask of a ragged batch, shape (B, num_tokens): True for the first lengths[b] tokens of sample b.

    The lengths, shape (B,), are whole numbers from 0 to num_tokens; else a ValueError.
    """
    check_tensor("lengths", lengths, "batch", dtypes=INTEGER_DTYPES)
    check_sizes({"num_tokens": num_tokens})
    lengths = lengths.long()  # num_tokens may be beyond a small dtype
    if is_readable(lengths) and not ((lengths >= 0) & (lengths <= num_tokens)).all():
        raise wrong_value("lengths", lengths.tolist(), f"whole numbers from 0 to {num_tokens}")
    return torch.arange(num_tokens, device=lengths.device) < lengths[:, None]
