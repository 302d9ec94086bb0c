"""Assertions for tests that a function is equivariant, or that a classifier is consistent.

    from teka.testing import assert_consistent, assert_equivariant

    def test_the_layer_is_equivariant(layer, images):
        assert_equivariant(layer, images, shifts=[(0, 3), (5, -2)])

    def test_the_classifier_keeps_its_predictions(model, images):
        assert_consistent(model, images, shifts=4, minimum=0.99)

The module works with any test runner, because it does not import pytest.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.audit import audit
from teka.audit.caveats import SEVERITIES
from teka.audit.measure.responses import Responses
from teka.audit.model_call import Model, call_and_check
from teka.audit.movement import Background, ImageSet, Movement, Size, check_images, roll_and_fill
from teka.audit.settings import AuditSettings, Steps
from teka.audit.shifts import Shift, WholeShifts, square_shifts
from teka.audit.statistics.metrics import Metrics
from teka.checks import (
    check_dense_tensor,
    check_evaluation_mode,
    check_iterable,
    check_name,
    check_number,
    check_sizes,
    check_tensor,
    is_integer,
)
from teka.errors import wrong_shape, wrong_value
from teka.precision import relative_difference

__all__ = [
    "EquivarianceError",
    "RelativeErrors",
    "assert_consistent",
    "assert_equivariant",
    "assert_permutation_equivariant",
    "equivariance_error",
    "permutation_error",
]

OUTPUTS = ("auto", "dense", "invariant")
METRICS = ("consistency", "worst_shift_accuracy")
TOLERANCE = "a finite number of at least 0"
Tokens = Float[Tensor, "batch tokens dim"]
Permutations = Iterable[Sequence[int]]


@dataclass(frozen=True)
class RelativeErrors:
    """Relative errors of a function at each shift or permutation.

    >>> from teka.testing import RelativeErrors
    >>> errors = RelativeErrors((1e-7, 3e-7), noise_floor=0.0, output="dense")
    >>> errors.maximum
    3e-07

    Args:
        errors: One relative error for each shift or permutation, in the given order.
        noise_floor: ‖f(x) − f(x)‖ / ‖f(x)‖ of two calls with the same input. Smaller errors cannot
            be distinguished from noise.
        output: "dense" if the output moves with the input, "invariant" if it does not.
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
    """Relative errors of a function at each shift of its input.

    >>> from teka.testing import EquivarianceError
    >>> error = EquivarianceError((1e-7, 3e-7), 0.0, "dense", shifts=((0, 1), (1, 0)), mode="zero")
    >>> error.worst_shift, error.by_shift[(0, 1)]
    ((1, 0), 1e-07)

    Args:
        errors: Relative error at each shift.
        noise_floor: Relative error between two calls with the same input.
        output: "dense" or "invariant".
        shifts: The shifts, in cells along each axis.
        mode: What happens at the edges, a mode of `teka.audit.translate`.
        border: Width of the border of cells that were not compared.
    """

    shifts: WholeShifts
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
    """Measure how far a function is from being equivariant or invariant to shifts.

    The shift T_s moves the content at index i to i + s. The relative error at a shift is:

    - Equivariance, for outputs of shape (B, C', *S): ‖f(T_s x) − T_s f(x)‖ / ‖T_s f(x)‖.
    - Invariance, for all other outputs, such as logits (B, K): ‖f(T_s x) − f(x)‖ / ‖f(x)‖.

    The norm is over the whole batch, in float64. In an output of shape (B, C', *S), cells are not
    compared if they are less than `border` cells from an edge before or after the shift. Except in
    mode "circular", cells that cross an edge are not compared either.

    >>> import torch, teka
    >>> layer = torch.nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular").eval()
    >>> errors = teka.testing.equivariance_error(layer, torch.rand(1, 1, 6, 6), shifts=[(0, 3)])
    >>> errors.output, errors.maximum < 1e-5
    ('dense', True)

    Args:
        function: Takes a batch (B, C, *S), or (B, C, *canvas_size) in mode "canvas", and returns a
            real tensor (B, …). It is called without gradients, twice with the original input and
            once for each shift.
        inputs: Inputs (B, C, *S).
        shifts: Shifts in cells: one integer for each axis, or one for the last axis.
        mode: A mode of `teka.audit.translate` except "crop".
        output: "dense", "invariant" or "auto". The latter means dense if the output has the spatial
            sizes of the input.
        border: Cells at each edge that are not compared.
        canvas_size: Size of the canvas in mode "canvas".
        background: Value of the cells that enter over an edge.

    Raises:
        ValueError: A module in training mode, shifts that are not integers, an argument that
            `teka.audit.Movement` rejects, empty inputs, an output that is not a finite real tensor
            (B, …) or that is zero, or a border that leaves no cell or belongs to no dense output.
    """
    check_sizes({"border": border}, least=0)
    check_images(inputs, "inputs", least=1)
    movement = Movement(mode, background, canvas_size)
    scene = movement.prepare_images(inputs)
    steps: Any = movement.parse_shifts(scene, shifts)
    for step in steps:
        if float in map(type, step):
            raise wrong_value("shifts", step, "whole numbers, to compare cell by cell")
    axes = tuple(range(2, scene.ndim))
    sizes = tuple(scene.shape[2:])
    interior = torch.zeros(1, 1, *sizes, dtype=torch.bool)
    interior[(..., *(slice(border, max(side - border, border)) for side in sizes))] = True

    def compare(response: Tensor, reference: Tensor, step: tuple[int, ...]) -> float:
        if mode == "circular":
            moved = interior.roll(step, axes)
        else:
            moved = roll_and_fill(interior, step, torch.tensor(False))
        cells = (interior & moved)[0, 0]
        if not cells.any():
            raise wrong_value(
                "border", border, f"one that leaves cells of {sizes} to compare at shift {step}"
            )
        return relative_difference(response[..., cells], reference.roll(step, axes)[..., cells])

    expected = f"({len(scene)}, channels, {', '.join(map(str, sizes))}) if dense"
    errors = _measure_relative_errors(
        function, scene, output, axes, expected, steps, movement.move, compare
    )
    if border and errors.output == "invariant":
        raise wrong_value("border", border, "0, because the output is not dense")
    return EquivarianceError(**vars(errors), shifts=steps, mode=mode, border=border)


def assert_equivariant(
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
    """Assert that a function is equivariant or invariant to shifts, up to a tolerance.

    >>> import torch, teka
    >>> layer = torch.nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular").eval()
    >>> _ = teka.testing.assert_equivariant(layer, torch.rand(1, 1, 6, 6), shifts=[(0, 3)])

    Args:
        function: The function, in evaluation mode if it is a module.
        inputs: Inputs (B, C, *S).
        shifts: Shifts in cells.
        tolerance: Largest relative error that passes.
        mode: What happens at the edges, as in `equivariance_error`.
        output: "dense", "invariant" or "auto".
        border: Number of cells at each edge that are not compared.
        canvas_size: Size of the canvas in mode "canvas".
        background: Value of the cells that enter over an edge.

    Returns:
        The errors.

    Raises:
        AssertionError: An error is above the tolerance. The message names the worst shift.
        ValueError: See `equivariance_error`.
    """
    __tracebackhide__ = True
    check_number("tolerance", tolerance, TOLERANCE, low=0)
    errors = equivariance_error(
        function,
        inputs,
        shifts,
        mode=mode,
        output=output,
        border=border,
        canvas_size=canvas_size,
        background=background,
    )
    worst = f"shift {errors.worst_shift} (mode {mode!r}, output {errors.output!r})"
    _assert_small_errors(errors, tolerance, "translation equivariant", worst)
    return errors


def permutation_error(
    function: Model, tokens: Tokens, permutations: Permutations, *, output: str = "auto"
) -> RelativeErrors:
    """Measure how far a function is from being equivariant or invariant to permutations.

    The permutation T_π moves token π(i) to position i. The relative error at a permutation is:

    - Equivariance, for outputs of shape (B, L, D'): ‖f(T_π x) − T_π f(x)‖ / ‖T_π f(x)‖.
    - Invariance, for all other outputs, such as (B, D'): ‖f(T_π x) − f(x)‖ / ‖f(x)‖.

    The norm is over the whole batch, in float64. Convert a function of images with its grid:
    `lambda tokens: grid.flatten(function(grid.unflatten(tokens)))`.

    Source: Ji & Xie, A mathematical view of attention models in deep learning.

    >>> import torch, teka
    >>> layer, tokens = torch.nn.Linear(8, 8).eval(), torch.rand(1, 5, 8)
    >>> errors = teka.testing.permutation_error(layer, tokens, [(1, 0, 2, 3, 4)])
    >>> errors.output, errors.maximum < 1e-5
    ('dense', True)

    Args:
        function: Takes tokens (B, L, D) and returns a real tensor (B, …).
        tokens: Tokens (B, L, D).
        permutations: Permutations of the integers from 0 to L − 1.
        output: "dense", "invariant" or "auto". The latter means dense if the output has three axes
            and the second has size L.

    Raises:
        ValueError: A module in training mode, an order that is not a permutation, empty tokens, or
            an output that is not a finite real tensor (B, …) or that is zero.
    """
    check_dense_tensor("tokens", tokens, "samples", "tokens", "dim")
    num_tokens = tokens.shape[1]
    expected_order = f"every whole number from 0 to {num_tokens - 1} once in each"
    orders = []
    for order in check_iterable("permutations", permutations, "a list of permutations"):
        indices = order.tolist() if isinstance(order, (Tensor, np.ndarray)) else order
        indices = check_iterable("permutations", indices, expected_order)
        if not all(map(is_integer, indices)) or sorted(indices) != list(range(num_tokens)):
            raise wrong_value("permutations", indices, expected_order)
        orders.append(indices)
    if not orders:
        raise wrong_value("permutations", orders, "at least one permutation")
    return _measure_relative_errors(
        function,
        tokens,
        output,
        shared_axes=(1,),
        expected_shape=f"({len(tokens)}, {num_tokens}, dim) if dense",
        transformations=orders,
        transform=lambda batch, order: batch[:, order],
        compare=lambda response, reference, order: relative_difference(
            response, reference[:, order]
        ),
    )


def assert_permutation_equivariant(
    function: Model,
    tokens: Tokens,
    permutations: Permutations,
    *,
    tolerance: float = 1e-5,
    output: str = "dense",
) -> RelativeErrors:
    """Assert that a function is equivariant or invariant to permutations, up to a tolerance.

    >>> import torch, teka
    >>> layer = torch.nn.Linear(8, 8).eval()
    >>> permutations = teka.audit.random_permutations(5, 2)
    >>> tokens = torch.rand(1, 5, 8)
    >>> errors = teka.testing.assert_permutation_equivariant(layer, tokens, permutations)
    >>> errors.maximum < 1e-5
    True

    Args:
        function: Takes tokens (B, L, D) and returns a real tensor: (B, L, D') if it is equivariant,
            (B, …) if it is invariant.
        tokens: Tokens (B, L, D).
        permutations: Permutations of the integers from 0 to L − 1.
        tolerance: Largest relative error that passes.
        output: "dense" asserts f(T_π x) = T_π f(x) for every permutation π, "invariant" asserts
            f(T_π x) = f(x).

    Returns:
        The errors.

    Raises:
        AssertionError: An error is above the tolerance.
        ValueError: See `permutation_error`.
    """
    __tracebackhide__ = True
    check_number("tolerance", tolerance, TOLERANCE, low=0)
    errors = permutation_error(function, tokens, permutations, output=output)
    property_name = "equivariant" if errors.output == "dense" else "invariant"
    worst = f"permutation {errors.errors.index(errors.maximum)} of {len(errors.errors)}"
    _assert_small_errors(errors, tolerance, f"permutation {property_name}", worst)
    return errors


def assert_consistent(
    model: Model,
    images: ImageSet,
    labels: Int[Tensor, " images"] | None = None,
    *,
    shifts: int | Sequence[Steps] = 4,
    mode: str = "circular",
    minimum: float = 1.0,
    metric: str = "consistency",
    background: Background = 0.0,
    batch_size: int = 256,
    seed: int = 0,
) -> Metrics:
    """Assert that a classifier keeps its predictions when its images are shifted.

    The assertion also fails if a validity check of `teka audit` fails, because consistency then
    means nothing:

    - The classifier predicts the same class for almost all images, although their labels differ or
      with the same probability for each image.
    - The classifier is no better than chance.
    - The classifier is not deterministic.
    - The output for an image depends on the other images of its batch.

    >>> import teka
    >>> images = teka.data.load("digits").test.images[:40]
    >>> metrics = teka.testing.assert_consistent(teka.models.load("digits"), images, shifts=1)
    >>> metrics.numbers["consistency"].value
    1.0

    Args:
        model: Classifier in evaluation mode. It takes images (B, C, H, W) and returns logits, or
            any other output that `teka.audit.measure_responses` reads as that of a classifier.
        images: Images (N, C, H, W).
        labels: Classes of the images (N,), or None.
        shifts: Largest shift in pixels along each axis, or a list of shifts.
        mode: What happens at the edges, a mode of `teka.audit.translate`.
        minimum: Smallest value of the metric that passes, from 0 to 1.
        metric: "consistency" (share of shifted images with the same prediction as the unshifted
            image), or with labels "worst_shift_accuracy" (share of images that are classified
            correctly at every shift).
        background: Value of the pixels that enter over an edge: one, or one for each channel.
        batch_size: Number of images in one call.
        seed: Seed of the bootstrap of the intervals.

    Returns:
        All metrics.

    Raises:
        AssertionError: The metric is below the minimum, or the results are invalid. The message
            contains the metric, its interval and the image whose prediction changes at the
            shortest shift, or the reason why the results are invalid.
        ValueError: A minimum outside [0, 1], an unknown metric, a metric that needs labels, or
            images or outputs that cannot be measured.
    """
    __tracebackhide__ = True
    check_name("metric", metric, METRICS)
    if metric != "consistency" and labels is None:
        raise wrong_value("labels", None, f"a class for each image, for metric {metric!r}")
    check_number("minimum", minimum, "a share from 0 to 1", low=0, high=1)
    check_evaluation_mode("model", model)
    step_set: Any = shifts
    if is_integer(shifts):
        check_tensor("images", images, "images", "channels", "height", "width")
        check_sizes({"shifts": shifts}, least=0, most=min(images.shape[2:]))
        step_set = square_shifts(shifts)
    settings = AuditSettings(
        step_set,
        modes=(mode,),
        parts=(),
        background=background,
        batch_size=batch_size,
        num_examples=0,
        seed=seed,
    )
    report = audit(model, images, labels, settings)
    reasons = [
        f"{caveat.name}: {caveat.message}"
        for caveat in report.caveats
        if caveat.severity == "invalidates"
    ]
    if reasons:
        raise AssertionError(f"{SEVERITIES['invalidates'].lower()}, {' '.join(reasons)}")
    value = report.number(metric)
    metrics = report.metrics[0]
    if value < minimum:
        number = metrics.numbers[metric]
        raise AssertionError(
            f"{metric.replace('_', ' ')} {value:.4f} ({number.lower:.4f} to {number.upper:.4f}, "
            f"{len(images)} images, {len(metrics.shifts)} shifts, mode {mode!r}) is below "
            f"{minimum}; {describe_counterexample(report.responses[0].unpack())}"
        )
    return metrics


def describe_counterexample(responses: Responses) -> str:
    """Describe the shortest shift that changes a prediction, and the first image that it affects.

    The length of a shift is its largest step along an axis. For equal lengths, the sum of the steps
    decides.
    """
    predictions = responses.predictions
    assert predictions is not None, "assert_consistent has read a metric of the predictions"
    unshifted = predictions[responses.zero]

    def length(row: int) -> tuple[float, float]:
        steps = [abs(step) for step in responses.shifts[row]]
        return max(steps), sum(steps)

    for row in sorted(range(len(responses.shifts)), key=length):
        has_changed = (predictions[row] != unshifted) & responses.evaluated[row]
        if not has_changed.any():
            continue
        image = int(has_changed.int().argmax())
        label = "" if responses.labels is None else f" of class {int(responses.labels[image])}"
        return (
            f"the shortest shift that changes a prediction is {tuple(responses.shifts[row])}: "
            f"image {image}{label} is predicted {int(unshifted[image])} unshifted and "
            f"{int(predictions[row, image])} there ({int(has_changed.sum())} of "
            f"{responses.num_images} images change)"
        )
    return "no shift changes a prediction"


def _assert_small_errors(
    errors: RelativeErrors, tolerance: float, property_name: str, worst: str
) -> None:
    """Raise an AssertionError if the largest error, or the noise floor, is above the tolerance.

    Args:
        errors: The errors.
        tolerance: Largest relative error that passes.
        property_name: Name of the property, such as "translation equivariant", for the message.
        worst: Description of the shift or permutation with the largest error, for the message.
    """
    __tracebackhide__ = True
    if errors.noise_floor > tolerance:
        raise AssertionError(
            f"cannot decide if the function is {property_name}: two calls with the same inputs "
            f"differ by {errors.noise_floor:.3g}, tolerance {tolerance:.3g}"
        )
    if not errors.maximum <= tolerance:
        raise AssertionError(
            f"not {property_name}: error {errors.maximum:.3g} at {worst}, tolerance "
            f"{tolerance:.3g}, noise floor {errors.noise_floor:.3g}"
        )


def _measure_relative_errors(
    function: Model,
    inputs: Tensor,
    output: str,
    shared_axes: tuple[int, ...],
    expected_shape: str,
    transformations: Sequence[Any],
    transform: Callable[[Tensor, Any], Tensor],
    compare: Callable[[Tensor, Tensor, Any], float],
) -> RelativeErrors:
    """Measure the equivariance or invariance error for each shift or permutation of the inputs.

    Args:
        function: The function.
        inputs: Its inputs.
        output: A name of `OUTPUTS`.
        shared_axes: Axes that a dense output shares with the inputs.
        expected_shape: Expected shape of a dense output, for the error message.
        transformations: Shifts or permutations.
        transform: Function that applies a shift or permutation to the inputs.
        compare: Function that returns the error of a dense output for transformed inputs, given
            the output for the original inputs and the shift or permutation.
    """
    check_evaluation_mode("function", function)
    check_name("output", output, OUTPUTS)
    with torch.no_grad():
        # Each call gets a copy, because the function may write into its input.
        reference = call_and_check(function, inputs.clone())
        repeated = call_and_check(function, inputs.clone(), reference.shape)
        has_sizes = reference.ndim == inputs.ndim and all(
            reference.shape[axis] == inputs.shape[axis] for axis in shared_axes
        )
        if output == "dense" and not has_sizes:
            raise wrong_shape("the output of function", reference.shape, expected_shape)
        is_dense = has_sizes and output != "invariant"
        errors = []
        for transformation in transformations:
            response = call_and_check(function, transform(inputs, transformation), reference.shape)
            errors.append(
                compare(response, reference, transformation)
                if is_dense
                else relative_difference(response, reference)
            )
    noise = relative_difference(repeated, reference)
    return RelativeErrors(tuple(errors), noise, "dense" if is_dense else "invariant")
