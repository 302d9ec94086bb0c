"""How far any function is from following moved or permuted inputs, or not noticing: meters, and assertions on them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.function import Model, check_evaluation_mode, evaluate, relative_difference
from teka.audit.images import Background, Size, check_images, roll_and_blank
from teka.audit.movement import make_movement
from teka.audit.shifts import Shift
from teka.checks import (
    check_callable,
    check_dense,
    check_name,
    check_number,
    check_sequence,
    check_sizes,
    check_tensor,
    is_integer,
)
from teka.errors import wrong_shape, wrong_value

OUTPUTS = ("auto", "dense", "invariant")
Tokens = Float[Tensor, "batch tokens dim"]
Orders = Iterable[Sequence[int]]


@dataclass(frozen=True)
class RelativeErrors:
    """Relative errors at each shift or permutation, in the order given, of a "dense" or an "invariant" output.

    The noise floor is ‖f(x) − f(x)‖ / ‖f(x)‖ of two calls with the same input: no error below it means anything.
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
    """`RelativeErrors` at shifts of cells, in a mode of `teka.audit.translate`, of maps without a border of cells."""

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
    function: Model,
    inputs: Tensor,
    shifts: Iterable[Shift],
    *,
    mode: str = "circular",
    output: str = "auto",
    border: int = 0,
    canvas_size: Size | None = None,
    background: Background = 0.0,
) -> EquivarianceError:
    """Measure how far a function is from moving with its input, or from not noticing that it moved.

      Dense outputs f(x) of shape (B, C', *S):  ‖f(T_s x) − T_s f(x)‖ / ‖T_s f(x)‖.
      All other outputs, such as logits (B, K): ‖f(T_s x) − f(x)‖ / ‖f(x)‖.

    T_s moves content at index i to i + s; the norm runs over the whole batch, in float64. A dense cell is compared
    where it and the cell it came from lie at least `border` cells from every edge, and in all modes but `circular` did
    not enter over one.

    The function takes batches (B, C, *S), or (B, C, *canvas_size) in mode `canvas`, and returns a real tensor (B, …);
    it is called without gradients, twice for the noise floor and once for each shift, an int along the last axis or one
    step for each. The output is "dense", "invariant", or "auto": dense if it has the sizes along all spatial axes that
    its input has. The mode is one of `teka.audit.translate` but "crop"; canvas_size and background are as of
    `Movement`.

    Raises:
        ValueError: A module in training mode; shifts that are not of whole cells; what `Movement` refuses; empty
            inputs; an output that is no finite real tensor (B, …) or has norm zero; a border that leaves nothing, or
            one for an output that is not dense.
    """
    check_sizes({"border": border}, least=0)
    check_images(inputs, "inputs", least=1)
    movement = make_movement(mode, background, canvas_size)
    scene = movement.place(inputs)
    steps = movement.check(scene, shifts)
    for step in steps:
        if float in map(type, step):
            raise wrong_value("shifts", step, "whole numbers, to compare cell by cell")
    axes, sizes = tuple(range(2, scene.ndim)), tuple(scene.shape[2:])
    interior, nothing = torch.zeros(1, 1, *sizes, dtype=torch.bool), torch.tensor(False)
    interior[(..., *(slice(border, max(side - border, border)) for side in sizes))] = True

    def compared(
        response: Tensor, reference: Tensor, step: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        moved = (
            interior.roll(step, axes)
            if mode == "circular"
            else roll_and_blank(interior, step, nothing)
        )
        cells = (interior & moved)[0, 0]
        if not cells.any():
            raise wrong_value(
                "border", border, f"one that leaves cells of {sizes} to compare at shift {step}"
            )
        return response[..., cells], reference.roll(step, axes)[..., cells]

    expected = f"({len(scene)}, channels, {', '.join(map(str, sizes))}) if dense"
    found = _measure(
        function, scene, output, axes, expected, steps, movement.move, compared, border
    )
    return EquivarianceError(*found, steps, mode, border)


def assert_translation_equivariant(
    function: Model,
    inputs: Tensor,
    shifts: Iterable[Shift],
    *,
    tolerance: float = 1e-5,
    mode: str = "circular",
    output: str = "auto",
    border: int = 0,
    canvas_size: Size | None = None,
    background: Background = 0.0,
) -> EquivarianceError:
    """Assert that the `equivariance_error` is at most `tolerance` at every shift; the AssertionError names one."""
    _check_tolerance(tolerance)
    options: Any = {"mode": mode, "output": output, "border": border, "canvas_size": canvas_size}
    error = equivariance_error(function, inputs, shifts, **options, background=background)
    note = f" (mode {error.mode!r}, output {error.output!r})"
    _assert_within(tolerance, error, "translation equivariant", f"shift {error.worst_shift}", note)
    return error


def permutation_error(
    function: Model, tokens: Tokens, permutations: Orders, *, output: str = "auto"
) -> RelativeErrors:
    """Measure how far a function is from following a permutation of its tokens, or from not noticing it.

      Dense outputs f(x) of shape (B, L, D'), equivariance: ‖f(T_π x) − T_π f(x)‖ / ‖T_π f(x)‖.
      All other outputs, such as (B, D'), invariance:       ‖f(T_π x) − f(x)‖ / ‖f(x)‖.

    T_π puts token π(i) at place i; the norm runs over the whole batch, in float64. Tokens are (B, L, D); the output is
    "dense", "invariant", or "auto", which is dense if it has three axes, the second of L. A function of images is one
    of tokens by way of its grid, `lambda tokens: grid.flatten(function(grid.unflatten(tokens)))`.

    Source: Ji & Xie, A mathematical view of attention models in deep learning.

    Raises:
        ValueError: A module in training mode; no permutation of the places; empty tokens; an output that is no finite
            real tensor (B, …) or has norm zero.
    """
    check_dense("tokens", tokens)
    check_tensor("tokens", tokens, "samples", "tokens", "dim")
    num_tokens = tokens.shape[1]
    each = f"every whole number from 0 to {num_tokens - 1} once in each"
    orders = [
        check_sequence(
            "permutations",
            order.tolist() if isinstance(order, (Tensor, np.ndarray)) else order,
            each,
        )
        for order in check_sequence("permutations", permutations, "a list of permutations")
    ]
    if not orders:
        raise wrong_value("permutations", orders, "at least one permutation")
    for order in orders:
        if not all(map(is_integer, order)) or sorted(order) != list(range(num_tokens)):
            raise wrong_value("permutations", order, each)

    expected = f"({len(tokens)}, {num_tokens}, dim) if dense"
    return RelativeErrors(
        *_measure(
            function, tokens, output, (1,), expected, orders, lambda one, order: one[:, order]
        )
    )


def assert_permutation_equivariant(
    function: Model, tokens: Tokens, permutations: Orders, *, tolerance: float = 1e-5
) -> RelativeErrors:
    """Assert that f(T_π x) is T_π f(x) to `tolerance` for every permutation, as `permutation_error` measures it."""
    _check_tolerance(tolerance)
    error = permutation_error(function, tokens, permutations, output="dense")
    return _assert_within(tolerance, error, "permutation equivariant")


def assert_permutation_invariant(
    function: Model, tokens: Tokens, permutations: Orders, *, tolerance: float = 1e-5
) -> RelativeErrors:
    """Assert that f(T_π x) is f(x) to `tolerance` for every permutation, as `permutation_error` measures it."""
    _check_tolerance(tolerance)
    error = permutation_error(function, tokens, permutations, output="invariant")
    return _assert_within(tolerance, error, "permutation invariant")


def _check_tolerance(tolerance: float | int) -> None:
    check_number("tolerance", tolerance, "a finite number of at least 0", low=0)


def _assert_within(
    limit: float, error: RelativeErrors, name: str, worst: str = "", note: str = ""
) -> RelativeErrors:
    if error.noise_floor > limit:
        raise AssertionError(
            f"whether the function is {name} cannot be decided: two calls with the same inputs differ by "
            f"{error.noise_floor:.3g}, tolerance {limit:.3g}{note}"
        )
    if not error.maximum <= limit:
        worst = worst or f"permutation {error.errors.index(error.maximum)} of {len(error.errors)}"
        limits = f"tolerance {limit:.3g}, noise floor {error.noise_floor:.3g}{note}"
        raise AssertionError(f"not {name}: error {error.maximum:.3g} at {worst}, {limits}")
    return error


def _measure(
    function: Model,
    inputs: Tensor,
    output: str,
    axes: tuple[int, ...],
    expected: str,
    steps: Sequence[Any],
    move: Callable[[Tensor, Any], Tensor],
    compared: Callable[[Tensor, Tensor, Any], tuple[Tensor, Tensor]] | None = None,
    border: int = 0,
) -> tuple[tuple[float, ...], float, str]:
    """Errors, noise floor and kind of output, of which `compared` gives what is compared, or `move` the reference."""
    check_callable("function", function)
    check_evaluation_mode("function", function)
    check_name("output", output, OUTPUTS)
    with torch.no_grad():
        # Each call gets a copy, because the function may write into its input.
        reference = evaluate(function, inputs.clone())
        noise_floor = relative_difference(
            evaluate(function, inputs.clone(), reference.shape), reference
        )
        fits = reference.ndim == inputs.ndim and all(
            reference.shape[axis] == inputs.shape[axis] for axis in axes
        )
        if output == "dense" and not fits:
            raise wrong_shape("the output of function", reference.shape, expected)
        is_dense = fits and output != "invariant"
        if border and not is_dense:
            raise wrong_value(
                "border",
                border,
                f"0, since an output of shape {tuple(reference.shape)} is not dense",
            )
        errors = []
        for step in steps:
            response = evaluate(function, move(inputs, step), reference.shape)
            if is_dense and compared is not None:
                errors.append(relative_difference(*compared(response, reference, step)))
            else:
                errors.append(
                    relative_difference(response, move(reference, step) if is_dense else reference)
                )
    return tuple(errors), noise_floor, "dense" if is_dense else "invariant"
