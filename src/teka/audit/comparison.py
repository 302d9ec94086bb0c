"""One checked call of a function under audit, and the relative difference of two of its outputs."""

from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor

from teka.audit.translate import translate
from teka.errors import wrong_shape, wrong_value
from teka.grid import Grid


def evaluate(
    function: Callable[[Tensor], object], batch: Tensor, expected_shape: tuple[int, ...] | None = None
) -> Tensor:
    """The function's output for a batch as a new float64 tensor on the CPU, after the checks that comparing it needs.

    Args:
        function: The function under audit.
        batch: Its input (B, C, *S).
        expected_shape: Shape of an earlier output that this one must match.

    Raises:
        ValueError: An output that is no real floating-point tensor (B, …), has another shape than the earlier one, or
            holds NaN or infinity.
    """
    result = function(batch)
    if not isinstance(result, Tensor):
        raise wrong_value("the output of function", type(result).__name__, "a tensor")
    if not result.is_floating_point():
        raise wrong_value("the dtype of function's output", result.dtype, "a real floating-point dtype")
    if result.ndim == 0 or result.shape[0] != batch.shape[0]:
        raise wrong_shape("the output of function", result.shape, f"({batch.shape[0]}, …), one entry for each input")
    if expected_shape is not None and tuple(result.shape) != tuple(expected_shape):
        raise wrong_shape("the output of function", result.shape, f"{tuple(expected_shape)}, as for the input unmoved")
    if not result.isfinite().all():
        raise ValueError("the output of function holds NaN or infinity, expected finite values")
    # A copy, because the function may use one buffer for all its outputs.
    return result.cpu().to(torch.float64, copy=True)


def is_dense_output(reference: Tensor, batch: Tensor, output: str) -> bool:
    """Whether an output moves with its input: by choice, or for "auto" by having the input's spatial sizes.

    Raises:
        ValueError: The output was said to be "dense", and has not the spatial sizes of the input.
    """
    fits = reference.ndim == batch.ndim and reference.shape[2:] == batch.shape[2:]
    if output == "dense" and not fits:
        sizes = ", ".join(map(str, batch.shape[2:]))
        raise wrong_shape("the output of function", reference.shape, f"({batch.shape[0]}, channels, {sizes}) if dense")
    return fits and output != "invariant"


def compared_cells(grid: Grid, shift: tuple[int, ...], border: int, mode: str) -> Bool[Tensor, "*sizes"]:
    """The cells at which a dense output is compared with its moved self.

    A cell counts if it and the cell it came from lie at least `border` cells from every edge. In all modes but
    `circular`, a cell that entered over an edge came from nowhere and does not count.

    Raises:
        ValueError: No cell is left.
    """
    interior = torch.zeros(1, 1, *grid.shape, dtype=torch.bool)
    interior[(..., *(slice(border, max(side - border, border)) for side in grid.shape))] = True
    moved = translate(interior, shift, mode="circular" if mode == "circular" else "zero")
    cells = (interior & moved)[0, 0]
    if not cells.any():
        raise wrong_value("border", border, f"one that leaves cells of {grid.shape} to compare at shift {shift}")
    return cells


def relative_difference(response: Tensor, reference: Tensor) -> float:
    """‖response − reference‖ / ‖reference‖ over all entries.

    Raises:
        ValueError: The reference has norm zero.
    """
    norm = torch.linalg.vector_norm(reference)
    if norm == 0:
        raise ValueError("the output of function has norm zero where it is compared, expected a norm to divide by")
    return float(torch.linalg.vector_norm(response - reference) / norm)
