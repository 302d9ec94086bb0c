"""How far any function is from translation equivariance: the meter, and an assertion on it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from teka.audit.function import check_evaluation_mode, evaluate, evaluate_twice, relative_difference
from teka.audit.images import roll_and_blank
from teka.audit.movement import make_movement
from teka.audit.shifts import Shift
from teka.errors import unknown_name, wrong_shape, wrong_value

OUTPUTS = ("auto", "dense", "invariant")


@dataclass(frozen=True)
class RelativeErrors:
    """Relative errors of equivariance or invariance.

    Args:
        errors: The error at each shift or permutation, in the order given.
        noise_floor: ‖f(x) − f(x)‖ / ‖f(x)‖ of two calls with the same input: no error below it means anything.
        output: What was compared, "dense" (one output for each token or cell, moved along) or "invariant" (outputs that
            stay).
    """

    errors: tuple[float, ...]
    noise_floor: float
    output: str

    @property
    def maximum(self) -> float:
        """Largest error."""
        return max(self.errors)

    @property
    def mean(self) -> float:
        """Mean error."""
        return sum(self.errors) / len(self.errors)


@dataclass(frozen=True)
class EquivarianceError(RelativeErrors):
    """Relative error of translation equivariance at every shift.

    Args:
        errors: As of `RelativeErrors`.
        noise_floor: As of `RelativeErrors`.
        output: As of `RelativeErrors`.
        shifts: The shifts, with one step in cells for each spatial axis.
        mode: The mode of the function `teka.audit.translate` that moved the inputs.
        border: Cells left out at each side of dense outputs.
    """

    shifts: tuple[tuple[int, ...], ...]
    mode: str
    border: int = 0

    @property
    def by_shift(self) -> dict[tuple[int, ...], float]:
        """The error at each shift."""
        return dict(zip(self.shifts, self.errors, strict=True))

    @property
    def worst_shift(self) -> tuple[int, ...]:
        """The shift with the largest error."""
        return self.shifts[self.errors.index(self.maximum)]


def equivariance_error(
    function: Callable[[Tensor], object],
    inputs: Tensor,
    shifts: Iterable[Shift],
    *,
    mode: str = "circular",
    output: str = "auto",
    border: int = 0,
    canvas_size: int | Sequence[int] | None = None,
    background: float | int | Sequence[float | int] = 0.0,
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
        mode: How inputs move, a mode of the function `teka.audit.translate`.
        output: "dense", "invariant", or "auto": dense if the output has as many axes and the same spatial sizes as the
            batch that the function was given.
        border: For dense outputs, cells to leave out at each side: as far as the edge is felt, say by padding.
        canvas_size: Size of the canvas for mode `canvas`; else None.
        background: Value of the inputs' background, for all modes but `circular`.

    Raises:
        ValueError: A module in training mode; an unknown mode or output; no or too long shifts, or none of whole cells;
            empty inputs; an output that is no tensor, is not finite, has the wrong shape, or has norm zero; a border
            that leaves nothing, or one for an output that is not dense.
    """
    check_asked(function, output)
    if border < 0:
        raise wrong_value("border", border, "a number of cells of at least 0")
    if inputs.ndim < 3 or inputs.numel() == 0:
        raise wrong_shape("inputs", inputs.shape, "(batch, channels, one or more spatial sizes), none of them empty")
    movement = make_movement(mode, background, canvas_size)
    scene = movement.place(inputs)
    steps = movement.check(scene, shifts)
    for step in steps:
        if float in map(type, step):
            raise wrong_value("shift", step, "whole numbers, to compare cell by cell")
    with torch.no_grad():
        reference, noise_floor = evaluate_twice(function, scene)
        expected = f"({len(scene)}, channels, {', '.join(map(str, scene.shape[2:]))}) if dense"
        fits = reference.ndim == scene.ndim and reference.shape[2:] == scene.shape[2:]
        dense = is_dense(reference, output, fits, expected)
        if border and not dense:
            raise wrong_value("border", border, f"0, since an output of shape {tuple(reference.shape)} is not dense")
        errors = []
        for step in steps:
            response, target = evaluate(function, movement.move(scene, step), reference.shape), reference
            if dense:
                kept = _compared_cells(tuple(scene.shape[2:]), step, border, mode)
                target = reference.roll(step, tuple(range(2, reference.ndim)))[..., kept]
                response = response[..., kept]
            errors.append(relative_difference(response, target))
    return EquivarianceError(tuple(errors), noise_floor, "dense" if dense else "invariant", steps, mode, border)


def _compared_cells(sizes: tuple[int, ...], shift: tuple[int, ...], border: int, mode: str) -> Bool[Tensor, "*sizes"]:
    """The cells at which a dense output is compared with its moved self."""
    interior = torch.zeros(1, 1, *sizes, dtype=torch.bool)
    interior[(..., *(slice(border, max(side - border, border)) for side in sizes))] = True
    if mode == "circular":
        moved = interior.roll(shift, tuple(range(2, interior.ndim)))
    else:
        moved = roll_and_blank(interior, shift, torch.tensor(False))
    cells = (interior & moved)[0, 0]
    if not cells.any():
        raise wrong_value("border", border, f"one that leaves cells of {sizes} to compare at shift {shift}")
    return cells


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
    background: float | int | Sequence[float | int] = 0.0,
) -> EquivarianceError:
    """Assert that the error is at most `tolerance` at every shift; `equivariance_error` describes the arguments.

    Returns:
        The errors, where they pass.

    Raises:
        AssertionError: An error above the tolerance; the message names the worst shift, its error, the tolerance and
            the noise floor.
        ValueError: A negative tolerance, or what `equivariance_error` refuses.
    """
    check_tolerance(tolerance)
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


def check_tolerance(tolerance: float) -> None:
    """Check that a tolerance is finite and not negative."""
    if not 0 <= tolerance < math.inf:
        raise wrong_value("tolerance", tolerance, "a finite number of at least 0")


def check_asked(function: Callable[[Tensor], object], output: str) -> None:
    """Check that the function is in evaluation mode and that the output is one of `OUTPUTS`."""
    check_evaluation_mode("function", function)
    if output not in OUTPUTS:
        raise unknown_name("output", output, OUTPUTS)


def is_dense(reference: Tensor, output: str, fits: bool, expected: str) -> bool:
    """Whether an output moves along: by choice, or for "auto" by its shape."""
    if output == "dense" and not fits:
        raise wrong_shape("the output of function", reference.shape, expected)
    return fits and output != "invariant"
