"""How far any function is from translation equivariance: the meter, and an assertion on it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from teka.audit.comparison import compared_cells, evaluate, is_dense_output, relative_difference
from teka.audit.evaluation_mode import check_evaluation_mode
from teka.audit.shifts import Shift, check_shifts
from teka.audit.translate import place, translate
from teka.errors import unknown_name, wrong_shape, wrong_value
from teka.grid import Grid

OUTPUTS = ("auto", "dense", "invariant")


@dataclass(frozen=True)
class EquivarianceError:
    """Relative error of translation equivariance at every shift.

    Args:
        by_shift: The error at each shift; the keys have one step in cells for each spatial axis.
        noise_floor: ‖f(x) − f(x)‖ / ‖f(x)‖ of two calls with the same input: no error below it means anything.
        mode: The mode of `teka.audit.translate` that moved the inputs.
        output: What was compared, "dense" (maps that move along) or "invariant" (outputs that stay).
        border: Cells left out at each side of dense outputs.
    """

    by_shift: dict[tuple[int, ...], float]
    noise_floor: float
    mode: str
    output: str
    border: int = 0

    @property
    def maximum(self) -> float:
        """Largest error over the shifts."""
        return max(self.by_shift.values())

    @property
    def mean(self) -> float:
        """Mean error over the shifts."""
        return sum(self.by_shift.values()) / len(self.by_shift)

    @property
    def worst_shift(self) -> tuple[int, ...]:
        """The shift with the largest error."""
        return max(self.by_shift, key=self.by_shift.__getitem__)

    def to_dict(self) -> dict[str, object]:
        """The numbers as lists, strings and floats, ready for JSON."""
        return {
            "mode": self.mode,
            "output": self.output,
            "border": self.border,
            "shifts": [list(shift) for shift in self.by_shift],
            "errors": list(self.by_shift.values()),
            "maximum": self.maximum,
            "mean": self.mean,
            "noise_floor": self.noise_floor,
        }


def equivariance_error(
    function: Callable[[Tensor], object],
    inputs: Tensor,
    shifts: Iterable[Shift],
    *,
    mode: str = "circular",
    output: str = "auto",
    border: int = 0,
    canvas_size: int | Sequence[int] | None = None,
    background: float | Sequence[float] = 0.0,
) -> EquivarianceError:
    """Measure how far a function is from moving with its input, or from not noticing that it moved.

    Dense outputs f(x) of shape (B, C', *S):  ‖f(T_s x) − T_s f(x)‖ / ‖T_s f(x)‖.
    All other outputs, such as logits (B, K): ‖f(T_s x) − f(x)‖ / ‖f(x)‖.
    T_s moves content at index i to i + s; the norm runs over the whole batch, in float64. A dense cell is compared
    where it and the cell it came from lie at least `border` cells from every edge. In all modes but `circular`, cells
    that entered over an edge are left out too, for no one knows what the function gives outside. With `circular` and
    no border every cell is compared, and ‖T_s f(x)‖ = ‖f(x)‖.

    Args:
        function: Takes a batch (B, C, *S), or (B, C, *canvas_size) in mode `canvas`, and returns a real tensor (B, …).
            It is called without gradients, twice for the noise floor and once for each shift.
        inputs: Batch (B, C, *S) with any number of spatial axes.
        shifts: The set of shifts: ints (along the last axis) or one step for each axis. Repeats count once.
        mode: How inputs move, a mode of `teka.audit.translate`.
        output: "dense", "invariant", or "auto": dense if the output has as many axes and the same spatial sizes as the
            batch that the function was given.
        border: For dense outputs, cells to leave out at each side: as far as the edge is felt, say by padding.
        canvas_size: Size of the canvas for mode `canvas`; else None.
        background: Value of the inputs' background, for all modes but `circular`.

    Raises:
        ValueError: A module in training mode; an unknown mode or output; no or too long shifts; empty inputs; an output
            that is no tensor, is not finite, has the wrong shape, or has norm zero; a border that leaves nothing, or
            one for an output that is not dense.
    """
    check_evaluation_mode("function", function)
    if output not in OUTPUTS:
        raise unknown_name("output", output, OUTPUTS)
    if border < 0:
        raise wrong_value("border", border, "a number of cells of at least 0")
    if inputs.ndim < 3 or inputs.numel() == 0:
        raise wrong_shape("inputs", inputs.shape, "(batch, channels, one or more spatial sizes), none of them empty")
    scene = place(inputs, mode=mode, background=background, canvas_size=canvas_size)
    grid = Grid(tuple(scene.shape[2:]))
    steps = check_shifts(grid, shifts)
    # The canvas is there already; moving on it is what `lossless` does.
    moving = "lossless" if mode == "canvas" else mode
    with torch.no_grad():
        # A copy for each call, because the function may write into its input.
        reference = evaluate(function, scene.clone())
        is_dense = is_dense_output(reference, scene, output)
        if border and not is_dense:
            raise wrong_value("border", border, f"0, since an output of shape {tuple(reference.shape)} is not dense")
        noise_floor = relative_difference(evaluate(function, scene.clone(), reference.shape), reference)
        by_shift = {}
        for step in steps:
            response = evaluate(function, translate(scene, step, mode=moving, background=background), reference.shape)
            if is_dense:
                kept = compared_cells(grid, step, border, mode)
                by_shift[step] = relative_difference(response[..., kept], grid.roll(reference, step)[..., kept])
            else:
                by_shift[step] = relative_difference(response, reference)
    return EquivarianceError(by_shift, noise_floor, mode, "dense" if is_dense else "invariant", border)


def assert_translation_equivariant(
    function: Callable[[Tensor], object],
    inputs: Tensor,
    shifts: Iterable[Shift],
    *,
    tolerance: float = 1e-5,
    mode: str = "circular",
    output: str = "auto",
    border: int = 0,
    canvas_size: int | Sequence[int] | None = None,
    background: float | Sequence[float] = 0.0,
) -> EquivarianceError:
    """Assert that the error is at most `tolerance` at every shift; `equivariance_error` describes the arguments.

    Returns:
        The errors, where they pass.

    Raises:
        AssertionError: An error above the tolerance; the message names the worst shift, its error, the tolerance and
            the noise floor.
        ValueError: A negative tolerance, or what `equivariance_error` refuses.
    """
    if not 0 <= tolerance < math.inf:
        raise wrong_value("tolerance", tolerance, "a finite number of at least 0")
    error = equivariance_error(
        function,
        inputs,
        shifts,
        mode=mode,
        output=output,
        border=border,
        canvas_size=canvas_size,
        background=background,
    )
    if error.maximum > tolerance:
        raise AssertionError(
            f"not translation equivariant: error {error.maximum:.3g} at shift {error.worst_shift}, "
            f"tolerance {tolerance:.3g}, noise floor {error.noise_floor:.3g} "
            f"(mode {error.mode!r}, output {error.output!r})"
        )
    return error
