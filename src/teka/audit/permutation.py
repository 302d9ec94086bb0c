"""How far any function of tokens is from permutation equivariance or invariance: the meter, and assertions on it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.comparison import evaluate, relative_difference
from teka.audit.evaluation_mode import check_evaluation_mode
from teka.audit.permutations import check_permutations
from teka.errors import unknown_name, wrong_shape, wrong_value

OUTPUTS = ("auto", "dense", "invariant")


@dataclass(frozen=True)
class PermutationError:
    """Relative error of permutation equivariance or invariance at every permutation.

    Args:
        errors: The error at each permutation, in the order given.
        noise_floor: ‖f(x) − f(x)‖ / ‖f(x)‖ of two calls with the same input: no error below it means anything.
        output: What was compared, "dense" (one output for each token, permuted along) or "invariant" (outputs that
            stay).
    """

    errors: tuple[float, ...]
    noise_floor: float
    output: str

    @property
    def maximum(self) -> float:
        """Largest error over the permutations."""
        return max(self.errors)

    @property
    def mean(self) -> float:
        """Mean error over the permutations."""
        return sum(self.errors) / len(self.errors)

    def to_dict(self) -> dict[str, object]:
        """The numbers as lists, strings and floats, ready for JSON."""
        return {
            "output": self.output,
            "errors": list(self.errors),
            "maximum": self.maximum,
            "mean": self.mean,
            "noise_floor": self.noise_floor,
        }


def permutation_error(
    function: Callable[[Tensor], object],
    tokens: Float[Tensor, "batch tokens dim"],
    permutations: Iterable[Sequence[int]],
    *,
    output: str = "auto",
) -> PermutationError:
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
    check_evaluation_mode("function", function)
    if output not in OUTPUTS:
        raise unknown_name("output", output, OUTPUTS)
    if tokens.ndim != 3 or tokens.numel() == 0:
        raise wrong_shape("tokens", tokens.shape, "(batch, tokens, dim), none of them 0")
    orders = check_permutations(permutations, tokens.shape[1])
    with torch.no_grad():
        # A copy for each call, because the function may write into its input.
        reference = evaluate(function, tokens.clone())
        fits = reference.ndim == 3 and reference.shape[1] == tokens.shape[1]
        if output == "dense" and not fits:
            expected = f"({tokens.shape[0]}, {tokens.shape[1]}, dim) if dense"
            raise wrong_shape("the output of function", reference.shape, expected)
        is_dense = fits and output != "invariant"
        noise_floor = relative_difference(evaluate(function, tokens.clone(), reference.shape), reference)
        errors = []
        for order in orders:
            response = evaluate(function, tokens[:, order], reference.shape)
            errors.append(relative_difference(response, reference[:, order] if is_dense else reference))
    return PermutationError(tuple(errors), noise_floor, "dense" if is_dense else "invariant")


def assert_permutation_equivariant(
    function: Callable[[Tensor], object],
    tokens: Float[Tensor, "batch tokens dim"],
    permutations: Iterable[Sequence[int]],
    *,
    tolerance: float = 1e-5,
) -> PermutationError:
    """Assert that f(T_π x) is T_π f(x) to `tolerance` for every permutation; see `permutation_error`.

    Returns:
        The errors, where they pass.

    Raises:
        AssertionError: An error above the tolerance.
        ValueError: A tolerance that is negative or not finite, or what `permutation_error` refuses.
    """
    return _assert_within(tolerance, permutation_error(function, tokens, permutations, output="dense"), "equivariant")


def assert_permutation_invariant(
    function: Callable[[Tensor], object],
    tokens: Float[Tensor, "batch tokens dim"],
    permutations: Iterable[Sequence[int]],
    *,
    tolerance: float = 1e-5,
) -> PermutationError:
    """Assert that f(T_π x) is f(x) to `tolerance` for every permutation; see `permutation_error`.

    Returns:
        The errors, where they pass.

    Raises:
        AssertionError: An error above the tolerance.
        ValueError: A tolerance that is negative or not finite, or what `permutation_error` refuses.
    """
    return _assert_within(tolerance, permutation_error(function, tokens, permutations, output="invariant"), "invariant")


def _assert_within(tolerance: float, error: PermutationError, name: str) -> PermutationError:
    if not 0 <= tolerance < math.inf:
        raise wrong_value("tolerance", tolerance, "a finite number of at least 0")
    if error.maximum > tolerance:
        worst = error.errors.index(error.maximum)
        raise AssertionError(
            f"not permutation {name}: error {error.maximum:.3g} at permutation {worst} of {len(error.errors)}, "
            f"tolerance {tolerance:.3g}, noise floor {error.noise_floor:.3g}"
        )
    return error
