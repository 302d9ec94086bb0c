import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from teka import Grid
from teka.audit import random_permutations, square_shifts
from teka.codec import encode
from teka.convert import attention_from_convolution
from teka.nn import Attention, AttentionPool, SinusoidalPositionEmbedding
from teka.testing import assert_equivariant, assert_permutation_equivariant, permutation_error
from tests.raising import raises_for

GRID = Grid((3, 5))
ORDERS = random_permutations(15, 4)
TOLERANCE = 1e-10


def draw_tokens(dim: int = 8) -> Tensor:
    return torch.randn(2, 15, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def make_attention(**options: Any) -> Attention:
    torch.manual_seed(0)
    return Attention(8, 2, **options).double().eval()


def make_convolution(kernel_size: int, **options: Any) -> Callable[[Tensor], Tensor]:
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 6, kernel_size, padding="same", dtype=torch.float64, **options).eval()
    return lambda tokens: GRID.flatten(layer(GRID.unflatten(tokens)))


@pytest.mark.parametrize("kernel", ["softmax", "squared_relu", "taylor2", "positive", "constant"])
def test_attention_without_positions_is_permutation_equivariant(kernel: str):
    layer = make_attention(kernel=kernel, relative=None)
    error = assert_permutation_equivariant(layer, draw_tokens(), ORDERS, tolerance=TOLERANCE)
    assert (error.output, error.noise_floor, len(error.errors)) == ("dense", 0.0, 4)
    if kernel != "constant":  # All outputs of this kernel are the mean of the values.
        with pytest.raises(AssertionError, match="not permutation invariant"):
            assert_permutation_equivariant(
                layer, draw_tokens(), ORDERS, tolerance=0.01, output="invariant"
            )


@pytest.mark.parametrize(
    "relative", ["rotary", "rotation", "clipped", "quadratic", "table", "fourier"]
)
def test_attention_with_positions_is_not_permutation_equivariant(relative: str):
    layer = make_attention(relative=relative)
    zero_initialized = {"clipped": "distance_embedding", "table": "tables"}
    if relative in zero_initialized:
        nn.init.normal_(layer.get_parameter(f"relative.{zero_initialized[relative]}"))
    with pytest.raises(AssertionError, match="not permutation equivariant"):
        assert_permutation_equivariant(
            lambda tokens: layer(tokens, GRID), draw_tokens(), ORDERS, tolerance=0.005
        )


def test_absolute_positions_break_permutation_equivariance():
    layer, position = make_attention(relative=None), SinusoidalPositionEmbedding(8).double()
    assert (
        permutation_error(
            lambda tokens: layer(position(tokens, GRID)), draw_tokens(), ORDERS
        ).maximum
        > 0.01
    )


@pytest.mark.parametrize("num_queries", [1, 4, 15])
def test_attention_with_learned_queries_is_permutation_invariant(num_queries: int):
    torch.manual_seed(0)
    pool = AttentionPool(8, 2, num_queries=num_queries).double().eval()
    error = assert_permutation_equivariant(
        pool, draw_tokens(), ORDERS, tolerance=TOLERANCE, output="invariant"
    )
    assert error.output == "invariant"
    with pytest.raises(AssertionError if num_queries == 15 else ValueError):
        assert_permutation_equivariant(pool, draw_tokens(), ORDERS, tolerance=0.01)


def test_convolution_of_kernel_size_1_is_permutation_equivariant():
    assert_permutation_equivariant(make_convolution(1), draw_tokens(), ORDERS, tolerance=TOLERANCE)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_convolution_of_kernel_size_3_is_not_permutation_equivariant(padding_mode: str):
    function = make_convolution(3, padding_mode=padding_mode)
    for output in ("dense", "invariant"):
        with raises_for(output, AssertionError, match="not permutation"):
            assert_permutation_equivariant(
                function, draw_tokens(), ORDERS, tolerance=0.1, output=output
            )


def test_convolution_of_kernel_size_3_is_translation_equivariant():
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 6, 3, padding="same", padding_mode="circular", dtype=torch.float64).eval()
    assert_equivariant(layer, GRID.unflatten(draw_tokens()), square_shifts(2), tolerance=TOLERANCE)


@pytest.mark.parametrize(("kernel_size", "largest"), [(1, 1e-10), (3, math.inf)])
def test_attention_from_a_convolution_has_its_equivariance(kernel_size: int, largest: float):
    layer = attention_from_convolution(
        nn.Conv2d(8, 6, kernel_size, padding="same", dtype=torch.float64).eval()
    )
    error = permutation_error(lambda tokens: layer(tokens, GRID), draw_tokens(), ORDERS)
    assert error.maximum <= largest
    assert (error.maximum > 0.1) == (kernel_size == 3)


def test_errors_equal_hand_computed_values():
    tokens = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64).reshape(1, 3, 1)
    steps = torch.arange(3.0, dtype=torch.float64)[:, None]
    orders = [(0, 1, 2), (1, 0, 2)]
    # f(x) = x + index is (1, 3, 6). With the first two tokens exchanged it is (2, 2, 6), and P f(x) is (3, 1, 6).
    dense = permutation_error(lambda inputs: inputs + steps, tokens, orders)
    assert dense.errors == (0.0, pytest.approx(math.sqrt(2 / 46)))
    assert dense.mean == pytest.approx(dense.maximum / 2)
    # The first token is 1 before the permutation and 2 after it.
    invariant = permutation_error(lambda inputs: inputs[:, 0], tokens, orders)
    assert invariant.errors == (0.0, 1.0)
    assert json.loads(json.dumps(encode(invariant))) == {
        "output": "invariant",
        "errors": [0.0, 1.0],
        "noise_floor": 0.0,
    }


def test_failure_names_permutation_error_tolerance_and_noise_floor():
    with pytest.raises(AssertionError) as caught:
        assert_permutation_equivariant(
            lambda tokens: tokens[:, 0],
            torch.tensor([1.0, 2.0]).reshape(1, 2, 1),
            [(0, 1), (1, 0)],
            tolerance=0.5,
            output="invariant",
        )
    for part in (
        "not permutation invariant",
        "error 1 at permutation 1 of 2",
        "tolerance 0.5",
        "noise floor 0",
    ):
        assert part in str(caught.value)


def test_function_may_change_its_input():
    tokens = draw_tokens()
    original = tokens.clone()
    assert permutation_error(lambda inputs: inputs.mul_(2.0), tokens, ORDERS).maximum == 0.0
    assert torch.equal(tokens, original)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": nn.Dropout()}, r"Call \.eval\(\)"),
        (
            {"function": lambda tokens: tokens[:, :4], "output": "dense"},
            r"\(2, 15, dim\).*got \(2, 4, 8\)",
        ),
        ({"function": lambda tokens: tokens * 0}, "got only zeros"),
        ({"output": "dens"}, "Did you mean 'dense'"),
        ({"tokens": torch.ones(2, 0, 8)}, "tokens must have"),
        ({"permutations": [range(14)]}, "every whole number from 0 to 14 once"),
        (
            {"permutations": [range(15), [0] * 15]},
            r"permutations must be every whole number from 0 to 14 once.*got \[0, 0.*",
        ),
        ({"permutations": []}, "at least one permutation"),
    ],
)
def test_invalid_arguments_are_errors(arguments: dict[str, Any], message: str):
    valid_arguments = {
        "function": lambda tokens: tokens,
        "tokens": draw_tokens(),
        "permutations": ORDERS,
        **arguments,
    }
    with pytest.raises(ValueError, match=message):
        permutation_error(
            valid_arguments.pop("function"),
            valid_arguments.pop("tokens"),
            valid_arguments.pop("permutations"),
            **valid_arguments,
        )


def test_negative_tolerance_is_an_error():
    with pytest.raises(ValueError, match=r"tolerance must be .*got -1"):
        assert_permutation_equivariant(lambda tokens: tokens, draw_tokens(), ORDERS, tolerance=-1.0)


def test_random_permutations_are_reproducible_and_never_the_identity():
    drawn = random_permutations(3, 200)
    assert set(drawn) == {(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)}
    assert (
        random_permutations(11, 5, seed=1)
        == random_permutations(11, 5, seed=1)
        != random_permutations(11, 5)
    )
    assert all(sorted(order) == list(range(11)) for order in random_permutations(11, 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((1,), r"num_tokens must be .*got 1"), ((5, 0), r"number must be .*got 0")],
)
def test_invalid_numbers_of_random_permutations_are_errors(
    arguments: tuple[int, ...], message: str
):
    with pytest.raises(ValueError, match=message):
        random_permutations(*arguments)
