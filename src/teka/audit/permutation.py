"""How far any function of tokens is from permutation equivariance or invariance: sets, the meter, and assertions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.equivariance import RelativeErrors, check_asked, check_tolerance, is_dense
from teka.audit.function import evaluate, evaluate_twice, relative_difference
from teka.errors import wrong_shape, wrong_value


@dataclass(frozen=True)
class PermutationError(RelativeErrors):
    """Relative error of equivariance or invariance at every permutation; `RelativeErrors` describes it."""


def random_permutations(num_tokens: int, number: int = 8, *, seed: int = 0) -> tuple[tuple[int, ...], ...]:
    """Permutations of tokens drawn uniformly from all but the one that moves nothing.

    Args:
        num_tokens: Number of tokens, at least 2.
        number: How many to draw.
        seed: Seed of the draw; the same gives the same permutations.

    Raises:
        ValueError: Fewer than 2 tokens or 1 permutation.
    """
    if num_tokens < 2:
        raise wrong_value("num_tokens", num_tokens, "at least 2")
    if number < 1:
        raise wrong_value("number", number, "at least 1")
    generator = torch.Generator().manual_seed(seed)
    drawn: list[tuple[int, ...]] = []
    while len(drawn) < number:
        order = tuple(torch.randperm(num_tokens, generator=generator).tolist())
        if order != tuple(range(num_tokens)):
            drawn.append(order)
    return tuple(drawn)


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
    check_asked(function, output)
    if tokens.ndim != 3 or tokens.numel() == 0:
        raise wrong_shape("tokens", tokens.shape, "(batch, tokens, dim), none of them 0")
    orders = [list(map(int, order)) for order in permutations]
    if not orders:
        raise wrong_value("permutations", orders, "at least one permutation")
    for order in orders:
        if sorted(order) != list(range(tokens.shape[1])):
            expected = f"every number from 0 to {tokens.shape[1] - 1} once in each"
            raise wrong_value("permutations", order, expected)
    with torch.no_grad():
        reference, noise_floor = evaluate_twice(function, tokens)
        expected = f"({tokens.shape[0]}, {tokens.shape[1]}, dim) if dense"
        fits = reference.ndim == 3 and reference.shape[1] == tokens.shape[1]
        dense = is_dense(reference, output, fits, expected)
        errors = []
        for order in orders:
            response = evaluate(function, tokens[:, order], reference.shape)
            errors.append(relative_difference(response, reference[:, order] if dense else reference))
    return PermutationError(tuple(errors), noise_floor, "dense" if dense else "invariant")


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
    check_tolerance(tolerance)
    if error.maximum > tolerance:
        worst = error.errors.index(error.maximum)
        raise AssertionError(
            f"not permutation {name}: error {error.maximum:.3g} at permutation {worst} of {len(error.errors)}, "
            f"tolerance {tolerance:.3g}, noise floor {error.noise_floor:.3g}"
        )
    return error
