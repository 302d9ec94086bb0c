"""Measurement of how the output of an attention layer changes when its tokens are shifted."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn.attention import Attention
from teka.nn.diagnostics.report import ShiftErrors
from teka.precision import relative_difference

LayerShift = int | float | Sequence[int | float]
Steps = Float[Tensor, "steps axes"]


@dataclass(frozen=True)
class LayerInputs:
    """Inputs of a self-attention layer: the tokens, their mask and their positions.

    Prefix tokens, such as a class token, come first and have no position. All other tokens have
    positions on a grid or coordinates.

    Attributes:
        tokens: Tokens, shape (B, L, dim).
        grid: Grid of the tokens after the prefix tokens, or None.
        key_mask: True for tokens that may be attended to, shape (B, L).
        num_prefix_tokens: Number of prefix tokens.
        positions: Coordinates of the tokens after the prefix tokens, shape (B, L, n), or None.
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

    def crop(self, max_tokens: int, max_samples: int) -> "LayerInputs":
        """Return a part of the inputs that is small enough for expensive measurements.

        The part has at most `max_samples` samples. It contains all prefix tokens, such as a class
        token, and a block of at most `max_tokens` other tokens. The block contains at least one
        token that is not masked. Samples without such a token are dropped.
        """
        prefix, grid, positions = self.num_prefix_tokens, self.grid, self.positions
        cells = torch.arange(self.tokens.shape[1] - prefix)
        if len(cells) > max_tokens:
            first_kept = int(self.key_mask[0, prefix:].int().argmax())
            cells, block_grid = _select_block(first_kept, grid or Grid(len(cells)), max_tokens)
            grid = grid and block_grid
        cells = cells.to(self.tokens.device)
        index = self.token_indices(cells)
        samples = self.key_mask[:, index].any(dim=1).nonzero().flatten()[:max_samples]
        if positions is not None:
            positions = positions[samples][:, cells]
        tokens, key_mask = self.tokens[samples][:, index], self.key_mask[samples][:, index]
        return LayerInputs(tokens, grid, key_mask, prefix, positions)

    def token_indices(self, cells: Int[Tensor, "cells"]) -> Int[Tensor, "tokens"]:
        """Return the indices of all prefix tokens and of the tokens at given grid cells."""
        prefix = torch.arange(self.num_prefix_tokens, device=cells.device)
        return torch.cat([prefix, self.num_prefix_tokens + cells])


def _cell_indices(grid: Grid) -> Int[Tensor, "tokens axes"]:
    """Return the coordinates of every grid cell as integer indices along each axis."""
    return torch.cartesian_prod(*map(torch.arange, grid.shape)).reshape(-1, grid.num_axes)


def _select_block(cell: int, grid: Grid, max_tokens: int) -> tuple[Int[Tensor, "cells"], Grid]:
    """Select a block of at most `max_tokens` grid cells that contains a given cell.

    Return the indices of its cells, and the grid of these cells.
    """
    shape, coordinates = torch.tensor(grid.shape), _cell_indices(grid)
    sides = shape.clamp(max=int(max_tokens ** (1 / grid.num_axes)))
    start = torch.minimum(coordinates[cell], shape - sides)
    is_inside = (coordinates >= start) & (coordinates < start + sides)
    is_periodic = torch.tensor(grid.periodic) & (sides == shape)
    block_grid = Grid(sides.tolist(), grid.spacing, is_periodic.tolist(), grid.origin)
    return is_inside.all(dim=1).nonzero().flatten(), block_grid


def measure_shift_errors(
    layer: Attention, inputs: LayerInputs, shifts: Sequence[LayerShift] | None
) -> ShiftErrors | None:
    """Measure how much the output of a layer changes when its tokens are shifted.

    For an equivariant layer, the change is only a rounding error. On a grid, tokens are rolled
    along periodic axes, and moved within a larger grid along other axes. If tokens have coordinates
    instead of a grid, the shift is added to their coordinates.

    Returns:
        Errors in the layer's dtype, and in float64 for the worst shift. None if the layer is not
        expected to be equivariant to any shift, such as a causal layer on a fully periodic grid.
    """
    if inputs.positions is not None:
        method, run_shifted = "added to the positions", _outputs_after_coordinate_shifts
    elif inputs.grid is not None:
        is_torus = all(inputs.grid.periodic)
        method = "rolled around the torus" if is_torus else "moved on a larger grid"
        run_shifted = _outputs_after_grid_shifts
    else:
        return None
    steps = _check_or_choose_shifts(inputs, shifts, is_causal=layer.causal)
    if not steps.any():
        return None

    def errors(layer: Attention, inputs: LayerInputs, steps: Steps) -> list[float]:
        no_step = torch.zeros_like(steps[:1])
        outputs = run_shifted(layer, inputs, torch.cat([no_step, steps, no_step]))
        reference, *kept = [output[inputs.key_mask].double() for output in outputs]
        return [relative_difference(output, reference) for output in kept]

    *by_shift, noise_floor = errors(layer, inputs, steps)
    worst_shift = by_shift.index(max(by_shift))
    in_float64 = replace(inputs, tokens=inputs.tokens.double())
    exact_layer = copy.deepcopy(layer).double()
    float64_error, _ = errors(exact_layer, in_float64, steps[worst_shift : worst_shift + 1])
    shift_tuples = map(tuple, steps.tolist())
    return ShiftErrors(
        method, dict(zip(shift_tuples, by_shift, strict=True)), noise_floor, float64_error
    )


def _check_or_choose_shifts(
    inputs: LayerInputs, shifts: Sequence[LayerShift] | None, *, is_causal: bool
) -> Steps:
    """Check the shifts with which equivariance is tested, or choose two shifts if none are given.

    A shift has one number for each axis. A causal layer is not shifted along periodic axes, because
    cells that leave at one end would return as the first tokens of the sequence.
    """
    grid = inputs.grid
    steps: list[Sequence[float]] = []
    for shift in shifts or []:
        if grid is not None:
            shift = grid.check_shift(shift)  # pyright: ignore[reportArgumentType]
        steps.append(shift if isinstance(shift, Sequence) else (shift,))
    if grid is not None:
        far = torch.tensor(grid.shape) // -4
        default = torch.stack([torch.ones_like(far), far]).double()
        is_fixed = torch.tensor(grid.periodic) & is_causal
    else:
        assert inputs.positions is not None
        points = inputs.positions.double().flatten(0, -2).cpu()
        extent = points.amax(dim=0) - points.amin(dim=0)
        extent = extent.masked_fill(extent == 0, 1.0)
        default = torch.stack([extent, -0.3 * extent])
        is_fixed = torch.zeros_like(extent).bool()
    if shifts is None:
        return default.masked_fill(is_fixed, 0.0)
    num_axes = len(is_fixed)
    if not steps or any(len(step) != num_axes for step in steps):
        expected = f"at least one shift with {num_axes} numbers, one for each axis"
        raise wrong_value("shifts", shifts, expected)
    chosen = torch.tensor(steps, dtype=torch.float64)
    if chosen[:, is_fixed].any():
        raise wrong_value("shifts", shifts, "0 along periodic axes of a causal layer")
    return chosen


def _outputs_after_coordinate_shifts(
    layer: Attention, inputs: LayerInputs, steps: Steps
) -> list[Tensor]:
    """Return the outputs of a layer for tokens whose coordinates are shifted by each step."""
    assert inputs.positions is not None
    positions = inputs.positions.double()
    moved = [positions + step for step in steps.to(positions)]
    return [replace(inputs, positions=shifted).run(layer) for shifted in moved]


def _outputs_after_grid_shifts(layer: Attention, inputs: LayerInputs, steps: Steps) -> list[Tensor]:
    """Return one output of a layer for each step by which its tokens are shifted on their grid.

    Tokens are rolled along periodic axes. Along other axes, the grid is enlarged so that no token
    leaves it, and positions without a token are masked. Each output has the original token order.
    """
    grid = inputs.grid
    assert grid is not None
    offsets = steps.long()
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
        coordinates = (_cell_indices(grid) + start + offset) % sides
        index = inputs.token_indices(cells[coordinates.unbind(dim=1)])
        tokens, key_mask = place(inputs.tokens, index), place(inputs.key_mask, index)
        shifted = replace(inputs, tokens=tokens, grid=canvas, key_mask=key_mask)
        outputs.append(shifted.run(layer)[:, index])
    return outputs
