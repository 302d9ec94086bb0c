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


def build(**options: Any) -> Attention:
    torch.manual_seed(0)
    return Attention(8, 2, **options).double().eval()


def convolution(kernel_size: int, **options: Any) -> Callable[[Tensor], Tensor]:
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 6, kernel_size, padding="same", dtype=torch.float64, **options).eval()
    return lambda tokens: GRID.flatten(layer(GRID.unflatten(tokens)))


@pytest.mark.parametrize("kernel", ["softmax", "squared_relu", "taylor2", "positive", "constant"])
def test_self_attention_without_positions_is_permutation_equivariant_and_not_invariant(kernel: str):
    layer = build(kernel=kernel, relative=None)
    error = assert_permutation_equivariant(layer, draw_tokens(), ORDERS, tolerance=TOLERANCE)
    assert (error.output, error.noise_floor, len(error.errors)) == ("dense", 0.0, 4)
    if kernel != "constant":  # whose outputs are all the mean of the values
        with pytest.raises(AssertionError, match="not permutation invariant"):
            assert_permutation_equivariant(
                layer, draw_tokens(), ORDERS, tolerance=0.01, output="invariant"
            )


@pytest.mark.parametrize(
    "relative", ["rotary", "rotation", "clipped", "quadratic", "table", "fourier"]
)
def test_attention_that_sees_where_tokens_are_is_not_permutation_equivariant(relative: str):
    layer = build(relative=relative)
    begins_the_same_everywhere = {"clipped": "distance_embedding", "table": "tables"}
    if relative in begins_the_same_everywhere:
        nn.init.normal_(layer.get_parameter(f"relative.{begins_the_same_everywhere[relative]}"))
    with pytest.raises(AssertionError, match="not permutation equivariant"):
        assert_permutation_equivariant(
            lambda tokens: layer(tokens, GRID), draw_tokens(), ORDERS, tolerance=0.005
        )


def test_absolute_positions_end_permutation_equivariance():
    layer, position = build(relative=None), SinusoidalPositionEmbedding(8).double()
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


def test_a_convolution_of_kernel_size_1_is_permutation_equivariant():
    assert_permutation_equivariant(convolution(1), draw_tokens(), ORDERS, tolerance=TOLERANCE)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_a_convolution_of_kernel_size_3_is_neither_equivariant_nor_invariant(padding_mode: str):
    function = convolution(3, padding_mode=padding_mode)
    for output in ("dense", "invariant"):
        with raises_for(output, AssertionError, match="not permutation"):
            assert_permutation_equivariant(
                function, draw_tokens(), ORDERS, tolerance=0.1, output=output
            )


def test_a_convolution_of_kernel_size_3_is_translation_equivariant():
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 6, 3, padding="same", padding_mode="circular", dtype=torch.float64).eval()
    assert_equivariant(layer, GRID.unflatten(draw_tokens()), square_shifts(2), tolerance=TOLERANCE)


@pytest.mark.parametrize(("kernel_size", "largest"), [(1, 1e-10), (3, math.inf)])
def test_attention_that_is_a_convolution_shares_its_property(kernel_size: int, largest: float):
    layer = attention_from_convolution(
        nn.Conv2d(8, 6, kernel_size, padding="same", dtype=torch.float64).eval()
    )
    error = permutation_error(lambda tokens: layer(tokens, GRID), draw_tokens(), ORDERS)
    assert error.maximum <= largest
    assert (error.maximum > 0.1) == (kernel_size == 3)


def test_the_errors_are_those_worked_out_by_hand():
    tokens = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64).reshape(1, 3, 1)
    steps = torch.arange(3.0, dtype=torch.float64)[:, None]
    orders = [(0, 1, 2), (1, 0, 2)]
    # f(x) = x + place: (1, 3, 6); with the first two exchanged (2, 2, 6), and f permuted is (3, 1, 6).
    dense = permutation_error(lambda one: one + steps, tokens, orders)
    assert dense.errors == (0.0, pytest.approx(math.sqrt(2 / 46)))
    assert dense.mean == pytest.approx(dense.maximum / 2)
    # The first token: 1, and 2 afterwards.
    invariant = permutation_error(lambda one: one[:, 0], tokens, orders)
    assert invariant.errors == (0.0, 1.0)
    assert json.loads(json.dumps(encode(invariant))) == {
        "output": "invariant",
        "errors": [0.0, 1.0],
        "noise_floor": 0.0,
    }


def test_the_failure_names_the_permutation_its_error_the_tolerance_and_the_noise_floor():
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


def test_a_function_that_writes_into_its_input_is_measured_all_the_same():
    tokens = draw_tokens()
    kept = tokens.clone()
    assert permutation_error(lambda one: one.mul_(2.0), tokens, ORDERS).maximum == 0.0
    assert torch.equal(tokens, kept)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": nn.Dropout()}, r"call \.eval\(\)"),
        (
            {"function": lambda tokens: tokens[:, :4], "output": "dense"},
            r"\(2, 15, dim\).*got \(2, 4, 8\)",
        ),
        ({"function": lambda tokens: tokens * 0}, "got only 0"),
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
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str):
    given = {
        "function": lambda tokens: tokens,
        "tokens": draw_tokens(),
        "permutations": ORDERS,
        **arguments,
    }
    with pytest.raises(ValueError, match=message):
        permutation_error(
            given.pop("function"), given.pop("tokens"), given.pop("permutations"), **given
        )


def test_a_tolerance_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"tolerance must be .*got -1"):
        assert_permutation_equivariant(lambda tokens: tokens, draw_tokens(), ORDERS, tolerance=-1.0)


def test_they_are_permutations_that_move_something_and_the_seed_decides_which():
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
def test_numbers_that_make_no_sense_are_refused(arguments: tuple[int, ...], message: str):
    with pytest.raises(ValueError, match=message):
        random_permutations(*arguments)
