"""How much of an attention layer's output changes when its tokens move, on any grid and at bare positions."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.audit.equivariance import equivariance_error
from teka.audit.function import relative_difference
from teka.errors import wrong_value
from teka.functional.positions import Positions
from teka.grid import Grid
from teka.nn.attention import Attention
from teka.nn.diagnostics.report import ShiftFindings

LayerShift = int | float | Sequence[int | float]
Shifts = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Excerpt:
    """Tokens of self-attention and where they are."""

    tokens: Float[Tensor, "batch tokens dim"]  # tokens, shape (B, L, dim)
    positions: Positions  # where they are
    key_mask: (
        Bool[Tensor, "batch tokens"] | None
    )  # true where a token may be attended to, or None for all

    @property
    def num_placed(self) -> int:
        """Number of tokens after the prefix."""
        return self.tokens.shape[1] - self.positions.num_prefix_tokens

    @property
    def kept(self) -> Bool[Tensor, "batch tokens"]:
        """True where a token may be attended to."""
        if self.key_mask is None:
            return torch.ones(self.tokens.shape[:2], dtype=torch.bool, device=self.tokens.device)
        return self.key_mask

    def at_most(self, max_tokens: int, max_samples: int) -> "Excerpt":
        """The first samples with a kept token, of these the prefix and the first tokens, or a block with kept cells."""
        first, grid, points = (
            self.positions.num_prefix_tokens,
            self.positions.grid,
            self.positions.points,
        )
        cells = torch.arange(self.num_placed, device=self.tokens.device)
        if self.num_placed > max_tokens:
            if grid is None:
                kept = self.kept[0, first:].nonzero().flatten()
                start = int(kept[0]) if len(kept) else 0
                cells = cells[start : start + max_tokens]
            else:
                cells, grid = self._block(grid, max_tokens)
        chosen = torch.cat([torch.arange(first, device=cells.device), first + cells])
        samples = self.kept[:, chosen].any(dim=1).nonzero().flatten()[:max_samples]
        if points is not None:
            points = points[..., cells.to(points.device), :]
            if points.ndim == 3 and len(points) > 1:
                points = points[samples.to(points.device)]
        mask = None if self.key_mask is None else self.key_mask[samples][:, chosen]
        return Excerpt(
            self.tokens[samples][:, chosen], replace(self.positions, grid=grid, points=points), mask
        )

    def _block(self, grid: Grid, max_tokens: int) -> tuple[Tensor, Grid]:
        longest = max(grid.shape)
        while longest > 1 and math.prod(min(side, longest) for side in grid.shape) > max_tokens:
            longest -= 1
        kept = self.kept[0, self.positions.num_prefix_tokens :].nonzero().flatten()
        middle = torch.unravel_index(
            kept[len(kept) // 2] if len(kept) else torch.tensor(0), grid.shape
        )
        block = torch.arange(grid.num_tokens, device=self.tokens.device).reshape(grid.shape)
        for axis, (place, whole) in enumerate(zip(middle, grid.shape, strict=True)):
            side = min(whole, longest)
            block = block.narrow(axis, min(max(int(place) - side // 2, 0), whole - side), side)
        periodic = tuple(
            flag and side <= longest for flag, side in zip(grid.periodic, grid.shape, strict=True)
        )
        return block.flatten(), Grid(tuple(block.shape), grid.spacing, periodic, grid.origin)


def shift_findings(
    layer: Attention, scene: Excerpt, shifts: Sequence[LayerShift] | None
) -> ShiftFindings | None:
    """Move the tokens and compare the outputs, in the layer's dtype and, at the worst shift, in float64.

    Along a periodic axis the tokens roll; along a bounded one they move within a longer axis, among tokens that no
    query attends to; bare positions get it added. None where no shift is a symmetry, as of a causal layer on a torus.
    """
    positions, grid = scene.positions.points, scene.positions.grid
    if positions is not None:
        how, steps, measure = (
            "added to the positions",
            _position_shifts(positions, shifts),
            _at_positions,
        )
    elif grid is not None:
        how = (
            "rolled round the torus"
            if all(grid.periodic)
            else "on a larger grid, cells outside masked"
        )
        steps, measure = _grid_shifts(grid, shifts, is_causal=layer.causal), _on_canvas
    else:
        return None
    if not steps:
        if shifts is not None:
            raise wrong_value("shifts", shifts, "at least one shift")
        return None
    by_shift, noise_floor = measure(layer, scene, steps)
    worst = max(by_shift, key=by_shift.__getitem__)
    exact = replace(scene, tokens=scene.tokens.double())
    without_rounding, _ = measure(copy.deepcopy(layer).double(), exact, (worst,))
    return ShiftFindings(how, by_shift, noise_floor, without_rounding[worst])


def _position_shifts(positions: Tensor, shifts: Sequence[LayerShift] | None) -> Shifts:
    num_axes = positions.shape[-1]
    if shifts is None:
        places = positions.flatten(0, -2).double()
        extent = [float(length) or 1.0 for length in places.amax(dim=0) - places.amin(dim=0)]
        return (tuple(extent), tuple(-0.3 * length for length in extent))
    vectors = tuple(
        tuple(map(float, shift if isinstance(shift, Sequence) else (shift,))) for shift in shifts
    )
    for shift, vector in zip(shifts, vectors, strict=True):
        if len(vector) != num_axes:
            raise wrong_value(
                "shifts", shift, f"of {num_axes} numbers each, one for each axis of the positions"
            )
    return vectors


def _at_positions(
    layer: Attention, scene: Excerpt, shifts: Shifts
) -> tuple[dict[tuple[float, ...], float], float]:
    """The error at each shift, and the noise floor."""
    assert scene.positions.points is not None
    places, first = scene.positions.points.double(), scene.positions.num_prefix_tokens

    def output(positions: Tensor) -> Tensor:
        mixed = layer(scene.tokens, None, scene.key_mask, first, positions=positions)
        return mixed[scene.kept].double()

    reference = output(places)
    by_shift = {
        shift: relative_difference(output(places + places.new_tensor(shift)), reference)
        for shift in shifts
    }
    return by_shift, relative_difference(output(places), reference)


def _grid_shifts(grid: Grid, shifts: Sequence[LayerShift] | None, *, is_causal: bool) -> Shifts:
    # The order of tokens, which a causal layer sees, is no torus'.
    fixed = [is_causal and periodic for periodic in grid.periodic]
    if shifts is None:
        axes = range(grid.num_axes)
        single = [tuple(float(one == axis) for one in axes) for axis in axes if not fixed[axis]]
        far = tuple(
            0.0 if still else -float(max(1, side // 4))
            for still, side in zip(fixed, grid.shape, strict=True)
        )
        return (*single, far) if single else ()
    steps = tuple(dict.fromkeys(grid.check_shift(shift) for shift in shifts))  # pyright: ignore[reportArgumentType]
    if any(step and still for shift in steps for step, still in zip(shift, fixed, strict=True)):
        raise wrong_value(
            "shifts",
            shifts,
            "0 along periodic axes, of which the order of a causal layer knows nothing",
        )
    return tuple(tuple(map(float, shift)) for shift in steps)


def _on_canvas(
    layer: Attention, scene: Excerpt, shifts: Shifts
) -> tuple[dict[tuple[float, ...], float], float]:
    """The same on a grid that has room for the shifts."""
    grid, first = scene.positions.grid, scene.positions.num_prefix_tokens
    assert grid is not None
    steps = tuple(tuple(map(int, shift)) for shift in shifts)
    before, after = (
        [
            0 if flag else max(0, *(sign * step[axis] for step in steps))
            for axis, flag in enumerate(grid.periodic)
        ]
        for sign in (-1, 1)
    )
    sides = tuple(
        left + side + right for left, side, right in zip(before, grid.shape, after, strict=True)
    )
    canvas = Grid(sides, grid.spacing, grid.periodic, grid.origin)
    window = tuple(slice(left, left + side) for left, side in zip(before, grid.shape, strict=True))
    batch, _, dim = scene.tokens.shape
    # The flag of what is kept moves with the tokens, as one more channel.
    inputs = scene.tokens.new_zeros(batch, dim + 1, *sides)
    kept = scene.kept[:, first:, None].to(scene.tokens)
    inputs[(slice(None), slice(None), *window)] = grid.unflatten(
        torch.cat([scene.tokens[:, first:], kept], dim=-1)
    )
    is_whole = scene.key_mask is None and canvas == grid

    def function(inputs: Tensor) -> Tensor:
        cells = canvas.flatten(inputs)
        kept = cells[..., -1] > 0.5
        mask = None if is_whole else torch.cat([scene.kept[:, :first], kept], dim=1)
        output = layer(
            torch.cat([scene.tokens[:, :first], cells[..., :-1]], dim=1), canvas, mask, first
        )
        return canvas.unflatten(output[:, first:] * kept[..., None])

    error = equivariance_error(function, inputs, steps, mode="circular")
    return {
        tuple(map(float, step)): number for step, number in error.by_shift.items()
    }, error.noise_floor
