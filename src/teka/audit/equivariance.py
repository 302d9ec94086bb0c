"""How far any function is from following moved or permuted inputs, or not noticing: meters, and assertions on them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.function import check_evaluation_mode, evaluate, relative_difference
from teka.audit.images import roll_and_blank
from teka.audit.movement import make_movement
from teka.audit.shifts import Shift
from teka.checks import check_name, check_sizes
from teka.errors import wrong_shape, wrong_value

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
    """Relative error of translation equivariance at every shift; `RelativeErrors` describes the rest.

    Args:
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
    check_sizes({"border": border}, least=0)
    if inputs.ndim < 3 or inputs.numel() == 0:
        raise wrong_shape("inputs", inputs.shape, "(batch, channels, one or more spatial sizes), none of them empty")
    movement = make_movement(mode, background, canvas_size)
    scene = movement.place(inputs)
    steps = movement.check(scene, shifts)
    for step in steps:
        if float in map(type, step):
            raise wrong_value("shift", step, "whole numbers, to compare cell by cell")
    axes, sizes = tuple(range(2, scene.ndim)), tuple(scene.shape[2:])
    interior, nothing = torch.zeros(1, 1, *sizes, dtype=torch.bool), torch.tensor(False)
    interior[(..., *(slice(border, max(side - border, border)) for side in sizes))] = True

    def compared(response: Tensor, reference: Tensor, step: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        moved = interior.roll(step, axes) if mode == "circular" else roll_and_blank(interior, step, nothing)
        cells = (interior & moved)[0, 0]
        if not cells.any():
            raise wrong_value("border", border, f"one that leaves cells of {sizes} to compare at shift {step}")
        return response[..., cells], reference.roll(step, axes)[..., cells]

    expected = f"({len(scene)}, channels, {', '.join(map(str, sizes))}) if dense"
    found = _measure(function, scene, output, axes, expected, steps, movement.move, compared, border)
    return EquivarianceError(*found, steps, mode, border)


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
    note = f" (mode {error.mode!r}, output {error.output!r})"
    _assert_within(tolerance, error, "translation equivariant", f"shift {error.worst_shift}", note)
    return error


def permutation_error(
    function: Callable[[Tensor], object],
    tokens: Float[Tensor, "batch tokens dim"],
    permutations: Iterable[Sequence[int]],
    *,
    output: str = "auto",
) -> RelativeErrors:
    """Measure how far a function is from following a permutation of its tokens, or from not noticing it.

    Dense outputs f(x) of shape (B, L, D'), equivariance: ‖f(T_π x) − T_π f(x)‖ / ‖T_π f(x)‖.
    All other outputs, such as (B, D'), invariance:       ‖f(T_π x) − f(x)‖ / ‖f(x)‖.
    T_π puts token π(i) at place i; the norm runs over the whole batch, in float64. A function of images is one of
    tokens by way of its grid, `lambda tokens: grid.flatten(function(grid.unflatten(tokens)))`.

    Source: Ji & Xie, A mathematical view of attention models in deep learning, the definitions of spatial permutation
    equivariance and invariance.

    Args:
        function: Takes tokens (B, L, D) and returns a real tensor (B, …). It is called without gradients, twice for the
            noise floor and once for each permutation.
        tokens: Tokens.
        permutations: Permutations of the L places, such as `random_permutations` draws.
        output: "dense", "invariant", or "auto": dense if the output has three axes, the second of L.

    Raises:
        ValueError: A module in training mode; an unknown output; something that is no permutation of the places, or
            nothing; empty tokens; an output that is no tensor, is not finite, has the wrong shape, or has norm zero.
    """
    if tokens.ndim != 3 or tokens.numel() == 0:
        raise wrong_shape("tokens", tokens.shape, "(batch, tokens, dim), none of them 0")
    orders = [list(map(int, order)) for order in permutations]
    if not orders:
        raise wrong_value("permutations", orders, "at least one permutation")
    num_tokens = tokens.shape[1]
    for order in orders:
        if sorted(order) != list(range(num_tokens)):
            raise wrong_value("permutations", order, f"every number from 0 to {num_tokens - 1} once in each")
    return RelativeErrors(
        *_measure(
            function,
            tokens,
            output,
            (1,),
            f"({len(tokens)}, {num_tokens}, dim) if dense",
            orders,
            lambda tokens, order: tokens[:, order],
            lambda response, reference, order: (response, reference[:, order]),
        )
    )


def assert_permutation_equivariant(
    function: Callable[[Tensor], object],
    tokens: Float[Tensor, "batch tokens dim"],
    permutations: Iterable[Sequence[int]],
    *,
    tolerance: float = 1e-5,
) -> RelativeErrors:
    """Assert that f(T_π x) is T_π f(x) to `tolerance` for every permutation; see `permutation_error`.

    Returns:
        The errors, where they pass.

    Raises:
        AssertionError: An error above the tolerance.
        ValueError: A tolerance that is negative or not finite, or what `permutation_error` refuses.
    """
    error = permutation_error(function, tokens, permutations, output="dense")
    return _assert_within(tolerance, error, "permutation equivariant")


def assert_permutation_invariant(
    function: Callable[[Tensor], object],
    tokens: Float[Tensor, "batch tokens dim"],
    permutations: Iterable[Sequence[int]],
    *,
    tolerance: float = 1e-5,
) -> RelativeErrors:
    """Assert that f(T_π x) is f(x) to `tolerance` for every permutation; as `assert_permutation_equivariant`."""
    error = permutation_error(function, tokens, permutations, output="invariant")
    return _assert_within(tolerance, error, "permutation invariant")


def _assert_within(
    tolerance: float, error: RelativeErrors, name: str, worst: str | None = None, note: str = ""
) -> RelativeErrors:
    if not 0 <= tolerance < math.inf:
        raise wrong_value("tolerance", tolerance, "a finite number of at least 0")
    if error.maximum > tolerance:
        worst = worst or f"permutation {error.errors.index(error.maximum)} of {len(error.errors)}"
        raise AssertionError(
            f"not {name}: error {error.maximum:.3g} at {worst}, tolerance {tolerance:.3g}, "
            f"noise floor {error.noise_floor:.3g}{note}"
        )
    return error


def _measure(
    function: Callable[[Tensor], object],
    inputs: Tensor,
    output: str,
    axes: tuple[int, ...],
    expected: str,
    steps: Sequence[Any],
    move: Callable[[Tensor, Any], Tensor],
    compared: Callable[[Tensor, Tensor, Any], tuple[Tensor, Tensor]],
    border: int = 0,
) -> tuple[tuple[float, ...], float, str]:
    """Errors, noise floor and kind of output, which is dense if it has the inputs' sizes along the axes that move.

    `compared` gives what is compared of a dense output at a step, and of the moved output for the unmoved input.
    """
    check_evaluation_mode("function", function)
    check_name("output", output, OUTPUTS)
    with torch.no_grad():
        # Each call gets a copy, because the function may write into its input.
        reference = evaluate(function, inputs.clone())
        noise_floor = relative_difference(evaluate(function, inputs.clone(), reference.shape), reference)
        fits = reference.ndim == inputs.ndim and all(reference.shape[axis] == inputs.shape[axis] for axis in axes)
        if output == "dense" and not fits:
            raise wrong_shape("the output of function", reference.shape, expected)
        is_dense = fits and output != "invariant"
        if border and not is_dense:
            raise wrong_value("border", border, f"0, since an output of shape {tuple(reference.shape)} is not dense")
        errors = []
        for step in steps:
            response = evaluate(function, move(inputs, step), reference.shape)
            pair = compared(response, reference, step) if is_dense else (response, reference)
            errors.append(relative_difference(*pair))
    return tuple(errors), noise_floor, "dense" if is_dense else "invariant"
