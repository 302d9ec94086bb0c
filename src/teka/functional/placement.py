"""Where the tokens of two sequences are: those that ask and those that are asked."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.checks import BOOLEAN, WHOLE, check_kind, check_sizes, check_tensor
from teka.errors import wrong_shape, wrong_value
from teka.grid import Grid


@dataclass(frozen=True)
class Sites:
    """Where the tokens of one sequence are: cells of a grid, positions, or nowhere.

    Args:
        grid: The grid whose cells they are, in row-major order, or None.
        positions: Positions in physical units, (L, n) or (B, L, n), or None. At most one of the two is given.
    """

    grid: Grid | None = None
    positions: Float[Tensor, "*batch tokens axes"] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the tokens are anywhere."""
        return self.grid is not None or self.positions is not None

    @property
    def num_axes(self) -> int:
        """Number of axes n, 0 for nowhere."""
        if self.grid is not None:
            return self.grid.num_axes
        return 0 if self.positions is None else self.positions.shape[-1]

    @property
    def num_tokens(self) -> int | None:
        """Number of places, or None for nowhere."""
        if self.grid is not None:
            return self.grid.num_tokens
        return None if self.positions is None else self.positions.shape[-2]

    def places(self, device: torch.device) -> Float[Tensor, "*batch tokens axes"]:
        """The positions in float64, or in float32 on a device that has none: far from 0 they need the digits."""
        if self.grid is not None:
            return self.grid.positions(dtype=widest(device), device=device)
        assert self.positions is not None
        return self.positions.to(device=device, dtype=widest(device))


@dataclass(frozen=True)
class Placement:
    """Where queries and keys are; for self-attention, the same.

    Both sequences begin with the tokens that have no position (a class token, say), if there are any: c = 1 for every
    pair that holds one of them.

    Args:
        query: Sites of the queries.
        key: Sites of the keys.
        num_prefix_tokens: Tokens before the first site, 0 unless queries and keys are the same tokens.
    """

    query: Sites
    key: Sites
    num_prefix_tokens: int = 0

    @property
    def num_axes(self) -> int:
        """Number of axes n."""
        return self.query.num_axes

    @property
    def grids(self) -> tuple[Grid, Grid] | None:
        """The grids of queries and keys, if both are on one."""
        if self.query.grid is None or self.key.grid is None:
            return None
        return self.query.grid, self.key.grid

    @property
    def shared_grid(self) -> Grid | None:
        """The grid of queries and keys, if it is the same."""
        return self.query.grid if self.query.grid == self.key.grid else None

    @property
    def periods(self) -> tuple[float | None, ...]:
        """Period of every axis in physical units, None where it is not periodic."""
        grids = [sites.grid for sites in (self.query, self.key) if sites.grid is not None]
        if not grids:
            return (None,) * self.num_axes
        return tuple(grids[0].axis_period(axis) for axis in range(grids[0].num_axes))

    def offsets_like(
        self, tensor: Tensor, rows: slice | Tensor | None = None
    ) -> Float[Tensor, "*batch queries keys axes"]:
        """Offset x_i − x_j of some or all queries from every key, wrapped where periodic, like a tensor."""
        grid = self.query.grid or self.key.grid
        query, key = (sites.places(tensor.device) for sites in (self.query, self.key))
        query = query if rows is None else query[..., rows, :]
        if query.ndim != key.ndim:
            query, key = (one if one.ndim == 3 else one[None] for one in (query, key))
        # Rounded after the difference is taken, which has fewer digits than positions far from 0.
        offsets = (query[..., :, None, :] - key[..., None, :, :]).to(tensor)
        return offsets if grid is None else grid.wrap(offsets)

    def axis_offsets_like(self, axis: int, tensor: Tensor) -> Float[Tensor, "query_side key_side"]:
        """Offset of every row of the queries' grid from every row of the keys' along one axis, wrapped if periodic."""
        assert self.query.grid is not None
        assert self.key.grid is not None
        query, key = (
            grid.axis_positions(axis, dtype=widest(tensor.device), device=tensor.device)
            for grid in (self.query.grid, self.key.grid)
        )
        return self.query.grid.wrap_axis(axis, (query[:, None] - key[None, :]).to(tensor))

    def torus_frequency(self, frequency: Float[Tensor, "*waves axes"]) -> Float[Tensor, "*waves axes"]:
        """Frequencies with their components along periodic axes rounded to multiples of 2π/P.

        Only such waves have the torus' period. The gradient of a rounded component is 0, as the wave stays the same.
        """
        columns = []
        for axis, period in enumerate(self.periods):
            column = frequency[..., axis]
            if period is not None:
                step = 2 * math.pi / period
                column = torch.round(column / step) * step
            columns.append(column)
        return torch.stack(columns, dim=-1)


def widest(device: torch.device) -> torch.dtype:
    """The floating dtype of most digits that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def make_sites(argument: str, grid: Grid | None, positions: Tensor | None) -> Sites:
    """Where the tokens of one sequence are, by arguments of the right types.

    Args:
        argument: What the names of the two arguments begin with: nothing, or "key_" say.
        grid: The grid whose cells they are, or None.
        positions: Positions, or None.

    Raises:
        ValueError: A type that is not these.
    """
    if grid is not None and not isinstance(grid, Grid):
        raise wrong_value(f"{argument}grid", grid, "a teka.Grid")
    if positions is not None:
        check_kind(f"{argument}positions", positions)
    return Sites(grid, positions)


def check_placement(placement: Placement, *, batch: int, num_queries: int, num_keys: int) -> None:
    """Check that a placement fits the sequences.

    Raises:
        ValueError: Both or neither of grid and positions, a length that is not theirs, positions of a wrong shape or
            with NaN or infinity, another number of axes or another period for the keys than for the queries, or prefix
            tokens where queries and keys are not the same tokens.
    """
    prefix = placement.num_prefix_tokens
    for argument, sites, num_tokens in (("", placement.query, num_queries), ("key_", placement.key, num_keys)):
        check_sites(argument, sites, prefix, batch=batch, num_tokens=num_tokens)
        if sites.positions is not None and not torch.compiler.is_compiling() and not sites.positions.isfinite().all():
            raise ValueError(f"{argument}positions hold NaN or infinity, expected finite numbers")
    if placement.key is placement.query:
        return
    if prefix:
        raise wrong_value("num_prefix_tokens", prefix, "0 where the keys have places of their own")
    if placement.key.num_axes != placement.query.num_axes:
        came = f"{placement.key.num_axes} axes for the keys"
        raise wrong_value("key_grid or key_positions", came, f"{placement.num_axes} axes, as the queries have")
    if placement.grids is not None:
        periods = [tuple(grid.axis_period(axis) for axis in range(grid.num_axes)) for grid in placement.grids]
        if any(
            (one is None) != (two is None) or abs((one or 0) - (two or 0)) > 1e-9
            for one, two in zip(*periods, strict=True)
        ):
            raise wrong_value("key_grid", placement.key.grid, f"periods {periods[0]}, as grid has")


def check_sites(argument: str, sites: Sites, prefix: int, *, batch: int, num_tokens: int) -> None:
    """Check that places fit a sequence.

    Args:
        argument: What the names of the arguments begin with: nothing, or "key_" say.
        sites: The places.
        prefix: Number of first tokens without one.
        batch: Number of samples.
        num_tokens: Number of tokens of the sequence.

    Raises:
        ValueError: Both or neither of grid and positions, or a length or a shape that does not fit.
    """
    grid, positions = sites.grid, sites.positions
    if (grid is None) == (positions is None):
        came = "neither" if grid is None else "both"
        raise wrong_value(f"{argument}grid and {argument}positions", came, "exactly one of the two")
    if grid is not None:
        if num_tokens != prefix + grid.num_tokens:
            expected = f"{prefix} prefix + {grid.num_tokens} tokens of the {argument}grid {grid.shape}"
            raise ValueError(f"the {argument.replace('_', ' ')}sequence has {num_tokens} tokens, expected {expected}")
        return
    assert positions is not None
    fits = positions.ndim in (2, 3) and positions.shape[-2] == num_tokens - prefix and positions.shape[-1] >= 1
    if not fits or (positions.ndim == 3 and positions.shape[0] not in (1, batch)):
        length = num_tokens - prefix
        raise wrong_shape(f"{argument}positions", positions.shape, f"({length}, axes) or ({batch}, {length}, axes)")


def check_mask(argument: str, mask: Bool[Tensor, "batch tokens"], *, batch: int, num_tokens: int) -> None:
    """Check that a mask has one flag a token and keeps at least one token of every sample.

    Raises:
        ValueError: It does not.
    """
    check_tensor(argument, mask, batch, num_tokens, dtypes=BOOLEAN)
    if not torch.compiler.is_compiling():
        empty = torch.nonzero(~mask.any(dim=1)).flatten().tolist()
        if empty:
            raise ValueError(f"{argument} keeps no token of sample {empty[0]}, expected at least one True in every row")


def length_mask(lengths: Tensor, num_tokens: int) -> Bool[Tensor, "batch tokens"]:
    """Mask of a ragged batch: True for the first lengths[b] tokens of sample b; shape (B, num_tokens).

    Args:
        lengths: Number of tokens of every sample, whole numbers from 1 to num_tokens, shape (B,).
        num_tokens: Length L to which the samples are padded.

    Raises:
        ValueError: Not a vector of whole numbers, or one out of range.
    """
    check_tensor("lengths", lengths, "batch", dtypes=WHOLE)
    check_sizes({"num_tokens": num_tokens})
    if not torch.compiler.is_compiling() and not ((lengths >= 1) & (lengths <= num_tokens)).all():
        raise wrong_value("lengths", lengths.tolist(), f"numbers from 1 to {num_tokens}")
    return torch.arange(num_tokens, device=lengths.device) < lengths[:, None]
