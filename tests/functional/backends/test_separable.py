import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.cases import relative_change
from torch import Generator, Tensor

from teka.functional.backends.separable import axis_sums, axis_sums_gradients
from teka.functional.backends.toeplitz import plain_axis_sums

SIDES = [((11,), (7,)), ((5, 7), (3, 4)), ((2, 3, 5), (4, 2, 3)), ((1, 6), (5, 1))]


def draw(
    query_sides: tuple[int, ...], key_sides: tuple[int, ...], num_features: int = 13, seed: int = 0
) -> list[Tensor]:
    """φ(q), φ(k), values, and a matrix an axis; sizes that are all different."""
    generator = Generator().manual_seed(seed)
    num_queries, num_keys = math.prod(query_sides), math.prod(key_sides)
    shapes = [
        (2, 3, num_queries, num_features),
        (2, 3, num_keys, num_features),
        (2, 3, num_keys, 4),
    ]
    shapes += [(3, *sides) for sides in zip(query_sides, key_sides, strict=True)]
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    ]


def check(inputs: list[Tensor]) -> None:
    """Check that values and gradients are those of the plain form."""
    expected = plain_axis_sums(*inputs)
    gradient = torch.cos(torch.arange(expected.numel(), dtype=torch.float64)).reshape(
        expected.shape
    )
    truths = [expected, *torch.autograd.grad(expected, inputs, gradient)]
    query_features, key_features, value, *matrices = (tensor.detach() for tensor in inputs)
    arguments = (query_features, key_features, value, matrices)
    found = [
        axis_sums(*arguments),
        *axis_sums_gradients(gradient, [*arguments[:3], *matrices], [True] * len(inputs)),
    ]
    for one, truth in zip(found, truths, strict=True):
        assert one is not None
        assert relative_change(one, truth) < 1e-13


@pytest.mark.parametrize("sides", SIDES)
def test_values_and_gradients_are_those_of_the_plain_sums_whatever_the_chunks(
    sides: tuple[tuple[int, ...], tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
):
    for elements in (1, 40, 100, 2**20):
        monkeypatch.setattr(sys.modules[axis_sums.__module__], "CACHED_ELEMENTS", elements)
        check(draw(*sides))


@given(
    sides=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=3),
    num_features=st.integers(1, 11),
    seed=st.integers(0, 2**16),
)
def test_any_two_grids_will_do(sides: list[tuple[int, int]], num_features: int, seed: int):
    query_sides, key_sides = zip(*sides, strict=True)
    check(draw(query_sides, key_sides, num_features, seed))


def test_only_the_gradients_asked_for_are_made():
    query_features, key_features, value, *matrices = (
        tensor.detach() for tensor in draw((5, 7), (3, 4))
    )
    arguments = (query_features, key_features, value, matrices)
    gradient = torch.ones_like(axis_sums(*arguments))
    whole = axis_sums_gradients(gradient, [*arguments[:3], *matrices], [True] * 5)
    for place in range(5):
        flags = [place == other for other in range(5)]
        found = axis_sums_gradients(gradient, [*arguments[:3], *matrices], flags)
        for one, truth, asked in zip(found, whole, flags, strict=True):
            assert (one is not None) == asked
            assert one is None or (truth is not None and relative_change(one, truth) < 1e-13)


def test_inputs_that_lie_scattered_in_memory_give_the_same():
    check([tensor.detach().mT.contiguous().mT.requires_grad_() for tensor in draw((5, 7), (3, 4))])
    check(
        [
            tensor.detach()[..., :1].expand(tensor.shape).requires_grad_()
            for tensor in draw((5, 7), (3, 4))
        ]
    )
