"""Changes of the output of an attention layer when its tokens are shifted."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from teka.audit.function import relative_difference
from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn.attention import Attention
from teka.nn.diagnostics.report import ShiftErrors

LayerShift = int | float | Sequence[int | float]
Steps = list[tuple[float, ...]]


@dataclass(frozen=True)
class LayerInputs:
    """Inputs of a self-attention layer.

    Attributes:
        tokens: Tokens, shape (B, L, dim).
        grid: Grid of the tokens after the prefix, or None.
        key_mask: True where a token may be attended to, shape (B, L).
        num_prefix_tokens: Number of first tokens without a position.
        positions: Positions of the tokens after the prefix, shape (B, L, n), or None.
    """

    tokens: Float[Tensor, "batch tokens dim"]
    grid: Grid | None
    key_mask: Bool[Tensor, "batch tokens"]
    num_prefix_tokens: int
    positions: Float[Tensor, "batch placed axes"] | None

    def run(self, layer: Attention) -> Float[Tensor, "batch tokens dim"]:
        """Return the output of a layer for these inputs."""
        prefix, positions = self.num_prefix_tokens, self.positions
        return layer(self.tokens, self.grid, self.key_mask, prefix, positions=positions)

    def __str__(self) -> str:
        num_samples, num_tokens, _ = self.tokens.shape
        grid = "" if self.grid is None else f" on a grid of {self.grid.shape}"
        return f"{num_samples:,} × {num_tokens:,} tokens{grid}"

    def shorten(self, max_tokens: int, max_samples: int) -> "LayerInputs":
        """Return the first samples, each with its prefix and at most `max_tokens` other tokens.

        The tokens are a block of the grid, or of the sequence, with the first token that may be
        attended to. Samples without such a token in the block are left out.
        """
        prefix, grid, positions = self.num_prefix_tokens, self.grid, self.positions
        cells = torch.arange(self.tokens.shape[1] - prefix)
        if len(cells) > max_tokens:
            first_kept = int(self.key_mask[0, prefix:].int().argmax())
            cells, block_grid = _block_at(first_kept, grid or Grid(len(cells)), max_tokens)
            grid = grid and block_grid
        cells = cells.to(self.tokens.device)
        index = self.with_prefix(cells)
        samples = self.key_mask[:, index].any(dim=1).nonzero().flatten()[:max_samples]
        if positions is not None:
            positions = positions[samples][:, cells]
        tokens, key_mask = self.tokens[samples][:, index], self.key_mask[samples][:, index]
        return LayerInputs(tokens, grid, key_mask, prefix, positions)

    def with_prefix(self, cells: Int[Tensor, "cells"]) -> Int[Tensor, "tokens"]:
        """Return the indices of the prefix tokens and of the tokens of these cells."""
        prefix = torch.arange(self.num_prefix_tokens, device=cells.device)
        return torch.cat([prefix, self.num_prefix_tokens + cells])


def _coordinates(grid: Grid) -> Int[Tensor, "tokens axes"]:
    """Return the index of every cell along every axis."""
    return torch.cartesian_prod(*map(torch.arange, grid.shape)).reshape(-1, grid.num_axes)


def _block_at(cell: int, grid: Grid, max_tokens: int) -> tuple[Int[Tensor, "cells"], Grid]:
    """Return the cells of a block that contains a cell, and the grid of the block."""
    shape, coordinates = torch.tensor(grid.shape), _coordinates(grid)
    sides = shape.clamp(max=int(max_tokens ** (1 / grid.num_axes)))
    start = torch.minimum(coordinates[cell], shape - sides)
    is_inside = (coordinates >= start) & (coordinates < start + sides)
    is_periodic = torch.tensor(grid.periodic) & (sides == shape)
    block_grid = Grid(sides.tolist(), grid.spacing, is_periodic.tolist(), grid.origin)
    return is_inside.all(dim=1).nonzero().flatten(), block_grid


def measure_shifts(
    layer: Attention, inputs: LayerInputs, shifts: Sequence[LayerShift] | None
) -> ShiftErrors | None:
    """Measure how much the output changes when the tokens are shifted.

    Tokens on a grid are rolled along periodic axes. Along other axes they move within a larger
    grid, whose other cells are masked. Shifts are added to positions without a grid.

    Returns:
        Errors in the layer's dtype, and in float64 for the worst shift. None if no shift is a
        symmetry, such as for a causal layer on a torus.
    """
    grid, positions = inputs.grid, inputs.positions
    if positions is not None:
        method = "added to the positions"
        steps = _position_steps(positions, shifts)
    elif grid is not None:
        method = "rolled around the torus" if all(grid.periodic) else "moved on a larger grid"
        steps = _grid_steps(grid, shifts, is_causal=layer.causal)
    else:
        return None
    if not steps:
        if shifts is not None:
            raise wrong_value("shifts", shifts, "at least one shift")
        return None

    def errors(layer: Attention, inputs: LayerInputs, steps: Steps) -> list[float]:
        run_shifted = _run_on_canvas if positions is None else _run_at_positions
        outputs = run_shifted(layer, inputs, [(0.0,) * len(steps[0]), *steps])
        reference, *kept = [output[inputs.key_mask].double() for output in outputs]
        return [relative_difference(output, reference) for output in kept]

    # A second run with a shift of 0 shows the difference of two calls with the same input.
    *by_shift, noise_floor = errors(layer, inputs, [*steps, (0.0,) * len(steps[0])])
    worst_shift = steps[by_shift.index(max(by_shift))]
    in_float64 = replace(inputs, tokens=inputs.tokens.double())
    (float64_error,) = errors(copy.deepcopy(layer).double(), in_float64, [worst_shift])
    return ShiftErrors(method, dict(zip(steps, by_shift, strict=True)), noise_floor, float64_error)


def _position_steps(positions: Tensor, shifts: Sequence[LayerShift] | None) -> Steps:
    if shifts is None:
        points = positions.flatten(0, -2)
        extent = points.amax(dim=0) - points.amin(dim=0)
        extent = torch.where(extent == 0, 1.0, extent)
        return [tuple(extent.tolist()), tuple((-0.3 * extent).tolist())]
    num_axes = positions.shape[-1]
    steps = [tuple(shift) if isinstance(shift, Sequence) else (shift,) for shift in shifts]
    if any(len(step) != num_axes for step in steps):
        raise wrong_value("shifts", shifts, f"{num_axes} numbers each, one for each axis")
    return [tuple(map(float, step)) for step in steps]


def _grid_steps(grid: Grid, shifts: Sequence[LayerShift] | None, *, is_causal: bool) -> Steps:
    # A roll along a periodic axis changes the order of the tokens, which a causal layer depends on.
    can_move = [not (is_causal and is_periodic) for is_periodic in grid.periodic]
    if shifts is None:
        quarters = [-float(max(1, side // 4)) for side in grid.shape]
        far = [step * flag for step, flag in zip(quarters, can_move, strict=True)]
        return [tuple(map(float, can_move)), tuple(far)] if any(can_move) else []
    steps = [grid.check_shift(shift) for shift in shifts]  # pyright: ignore[reportArgumentType]
    for step in steps:
        if any(length and not flag for length, flag in zip(step, can_move, strict=True)):
            raise wrong_value("shifts", step, "0 along periodic axes of a causal layer")
    return [tuple(map(float, step)) for step in steps]


def _run_at_positions(layer: Attention, inputs: LayerInputs, steps: Steps) -> list[Tensor]:
    """Return the output after each step."""
    assert inputs.positions is not None
    positions = inputs.positions.double()
    moved = [positions + positions.new_tensor(step) for step in steps]
    return [replace(inputs, positions=positions).run(layer) for positions in moved]


def _run_on_canvas(layer: Attention, inputs: LayerInputs, steps: Steps) -> list[Tensor]:
    """Return the output after each step, on a grid with room for all steps."""
    grid = inputs.grid
    assert grid is not None
    offsets = torch.tensor(steps).long()
    bounded_offsets = offsets * ~torch.tensor(grid.periodic)
    start = -bounded_offsets.amin(dim=0)
    sides = torch.tensor(grid.shape) + start + bounded_offsets.amax(dim=0)
    canvas = Grid(sides.tolist(), grid.spacing, grid.periodic, grid.origin)
    num_tokens = inputs.num_prefix_tokens + canvas.num_tokens
    cells = torch.arange(canvas.num_tokens, device=inputs.tokens.device).reshape(canvas.shape)

    def place(values: Tensor, index: Tensor) -> Tensor:
        canvas_values = values.new_zeros(len(values), num_tokens, *values.shape[2:])
        return canvas_values.index_copy(1, index, values)

    outputs = []
    for offset in offsets:
        coordinates = (_coordinates(grid) + start + offset) % sides
        index = inputs.with_prefix(cells[coordinates.unbind(dim=1)])
        tokens, key_mask = place(inputs.tokens, index), place(inputs.key_mask, index)
        shifted = replace(inputs, tokens=tokens, grid=canvas, key_mask=key_mask)
        outputs.append(shifted.run(layer)[:, index])
    return outputs
