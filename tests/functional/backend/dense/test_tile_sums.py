import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.cases import relative_change
from tests.functional.backend.toeplitz.test_axis_form import plain_tile
from tests.functional.backend.toeplitz.test_axis_sums import SIDES, draw
from torch import Tensor

from teka.functional.backend.dense import tile_sums, tile_sums_gradients
from teka.functional.plan import dense


def check(inputs: list[Tensor]) -> None:
    """Check that values and gradients are those of the plain form."""
    expected = plain_tile(*inputs)
    gradient = torch.cos(torch.arange(expected.numel(), dtype=torch.float64)).reshape(expected.shape)
    truths = [expected, *torch.autograd.grad(expected, inputs, gradient)]
    query_features, key_features, value, *log_matrices = (tensor.detach() for tensor in inputs)
    arguments = (query_features, key_features, value, [torch.exp(one) for one in log_matrices])
    found = [tile_sums(*arguments), *tile_sums_gradients(gradient, *arguments, [True] * len(inputs))]
    for one, truth in zip(found, truths, strict=True):
        assert one is not None
        assert relative_change(one, truth) < 1e-13


@pytest.mark.parametrize(("elements", "rows"), [(1, 1), (1, 3), (100, 2), (2**17, 64)])
@pytest.mark.parametrize("sides", SIDES)
def test_values_and_gradients_are_those_of_the_plain_sums_whatever_the_tiles(
    sides: tuple[tuple[int, ...], tuple[int, ...]], elements: int, rows: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dense, "TILE_ELEMENTS", elements)
    monkeypatch.setattr(dense, "LEAST_ROWS", rows)
    check(draw(*sides))


@given(
    sides=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=3),
    num_features=st.integers(1, 5),
    seed=st.integers(0, 2**16),
)
def test_any_two_grids_will_do(sides: list[tuple[int, int]], num_features: int, seed: int):
    query_sides, key_sides = zip(*sides, strict=True)
    check(draw(query_sides, key_sides, num_features, seed))


def test_factors_that_underflow_give_finite_gradients():
    inputs = draw((5, 7), (3, 4))
    query_features, key_features, value, *log_matrices = (tensor.detach().float() for tensor in inputs)
    matrices = [torch.exp(200 * one.clamp_max(0.0)) for one in log_matrices]
    arguments = (query_features, key_features, value, matrices)
    assert any((matrix == 0).any() for matrix in matrices)
    gradient = torch.ones_like(tile_sums(*arguments))
    for one in tile_sums_gradients(gradient, *arguments, [True] * len(inputs)):
        assert one is not None
        assert torch.isfinite(one).all()


def test_only_the_gradients_asked_for_are_made():
    query_features, key_features, value, *log_matrices = (tensor.detach() for tensor in draw((5, 7), (3, 4)))
    arguments = (query_features, key_features, value, [torch.exp(one) for one in log_matrices])
    gradient = torch.ones_like(tile_sums(*arguments))
    whole = tile_sums_gradients(gradient, *arguments, [True] * 5)
    for place in range(5):
        flags = [place == other for other in range(5)]
        found = tile_sums_gradients(gradient, *arguments, flags)
        for one, truth, asked in zip(found, whole, flags, strict=True):
            assert (one is not None) == asked
            assert one is None or (truth is not None and relative_change(one, truth) < 1e-13)
