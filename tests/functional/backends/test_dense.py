import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.cases import (
    build_relative,
    draw_inputs,
    draw_mask,
    relative_change,
    with_leaves,
)
from tests.functional.backends.test_separable import SIDES, draw
from tests.functional.backends.test_toeplitz import plain_tile
from torch import Tensor

from teka import Grid
from teka.functional import FeatureKernel, Kernel, Softmax, SquaredRelu
from teka.functional.backends import dense
from teka.functional.backends.dense import tile_sums, tile_sums_gradients
from teka.functional.kernels.base import Pairwise
from teka.functional.positions import Positions
from teka.functional.relative.stationary import SeparableRelative


def placed(grid: Grid, num_prefix_tokens: int) -> Positions:
    return Positions(grid, num_prefix_tokens=num_prefix_tokens)


@pytest.mark.parametrize("kernel", [SquaredRelu(), Softmax()], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["rotation", "quadratic", "table"])
def test_it_is_the_normalised_product_of_content_and_relative_weights(
    kernel: Kernel, name: str, masked: bool, is_causal: bool
):
    grid = Grid((3, 5))
    mask = draw_mask(2, 16) if masked else torch.ones(2, 16, dtype=torch.bool)
    query, key, value = draw_inputs(16)
    relative = build_relative(name, heads=3, dim=5, num_axes=2)
    assert isinstance(relative, SeparableRelative)
    positions = placed(grid, 1)
    pairs = Pairwise(
        query, key, value, kernel, scale=0.4, key_mask=mask if masked else None, is_causal=is_causal
    )
    output = relative.on(positions).dense(pairs, positions)
    if isinstance(kernel, FeatureKernel):
        content = kernel.query_features(query, scale=0.4) @ kernel.key_features(key, scale=0.4).mT
    else:
        content = torch.exp(0.4 * query @ key.mT)
    factor = torch.ones(1, 3, 16, 16, dtype=torch.float64)
    offsets = grid.offsets(dtype=torch.float64)
    factor[..., 1:, 1:] = relative.log_kernel(query[:, :, 1:], offsets, scale=0.4).exp()
    weights = content * factor * mask[:, None, None, :]
    weights = weights.tril() if is_causal else weights
    total = weights.sum(dim=-1, keepdim=True)
    expected = torch.where(total > 0, weights @ value / total.clamp_min(1e-300), 0.0)
    assert relative_change(output, expected) < 1e-12


def gradients(grid: Grid, key_grid: Grid, num_prefix_tokens: int) -> list[Tensor]:
    """The output and the gradient of everything that went in."""
    num_queries, num_keys = (num_prefix_tokens + one.num_tokens for one in (grid, key_grid))
    query, key, value = draw_inputs(max(num_queries, num_keys))
    query, key, value = (
        tensor[:, :, :size].clone().requires_grad_()
        for tensor, size in ((query, num_queries), (key, num_keys), (value, num_keys))
    )
    relative = build_relative("rotation", heads=3, dim=5, num_axes=grid.num_axes)
    assert relative is not None
    relative, leaves = with_leaves(relative)
    positions = Positions(grid, key=Positions(key_grid), num_prefix_tokens=num_prefix_tokens)
    pairs = Pairwise(query, key, value, SquaredRelu(), scale=0.4, key_mask=None, is_causal=False)
    output = relative.dense(pairs, positions)
    return [output, *torch.autograd.grad(output.sin().sum(), [query, key, value, *leaves.values()])]


@pytest.mark.parametrize("num_prefix_tokens", [0, 2])
@pytest.mark.parametrize("shape", [(13,), (5, 7), (2, 3, 5)])
def test_tiles_in_the_cache_change_neither_values_nor_gradients(
    shape: tuple[int, ...], num_prefix_tokens: int, monkeypatch: pytest.MonkeyPatch
):
    grid = Grid(shape, periodic=(True, *[False] * (len(shape) - 1)))
    plain = gradients(grid, grid, num_prefix_tokens)
    monkeypatch.setattr(dense, "LEAST_TILED_PAIRS", 1)
    for found, expected in zip(gradients(grid, grid, num_prefix_tokens), plain, strict=True):
        assert relative_change(found, expected) < 1e-12


def test_tiles_in_the_cache_between_two_grids(monkeypatch: pytest.MonkeyPatch):
    grids = Grid((5, 7)), Grid((3, 4), spacing=2.0, origin=0.5)
    plain = gradients(*grids, 0)
    monkeypatch.setattr(dense, "LEAST_TILED_PAIRS", 1)
    for found, expected in zip(gradients(*grids, 0), plain, strict=True):
        assert relative_change(found, expected) < 1e-12


def test_rows_at_a_time_change_neither_values_nor_gradients(monkeypatch: pytest.MonkeyPatch):
    grid = Grid((5, 7))
    whole = gradients(grid, grid, 1)
    monkeypatch.setattr(dense, "MATRIX_ELEMENTS", 500)
    for found, expected in zip(gradients(grid, grid, 1), whole, strict=True):
        assert relative_change(found, expected) < 1e-12


def check(inputs: list[Tensor]) -> None:
    """Check that values and gradients are those of the plain form."""
    expected = plain_tile(*inputs)
    gradient = torch.cos(torch.arange(expected.numel(), dtype=torch.float64)).reshape(
        expected.shape
    )
    truths = [expected, *torch.autograd.grad(expected, inputs, gradient)]
    query_features, key_features, value, *log_matrices = (tensor.detach() for tensor in inputs)
    arguments = (query_features, key_features, value, [torch.exp(one) for one in log_matrices])
    found = [
        tile_sums(*arguments),
        *tile_sums_gradients(gradient, arguments[:3], arguments[3], [True] * len(inputs)),
    ]
    for one, truth in zip(found, truths, strict=True):
        assert one is not None
        assert relative_change(one, truth) < 1e-13


@pytest.mark.parametrize("sides", SIDES)
def test_values_and_gradients_are_those_of_the_plain_sums_whatever_the_tiles(
    sides: tuple[tuple[int, ...], tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
):
    for elements, rows in ((1, 1), (1, 3), (100, 2), (2**17, 64)):
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
    query_features, key_features, value, *log_matrices = (
        tensor.detach().float() for tensor in inputs
    )
    matrices = [torch.exp(200 * one.clamp_max(0.0)) for one in log_matrices]
    arguments = (query_features, key_features, value, matrices)
    assert any((matrix == 0).any() for matrix in matrices)
    gradient = torch.ones_like(tile_sums(*arguments))
    for one in tile_sums_gradients(gradient, arguments[:3], arguments[3], [True] * len(inputs)):
        assert one is not None
        assert torch.isfinite(one).all()


def test_only_the_gradients_asked_for_are_made():
    query_features, key_features, value, *log_matrices = (
        tensor.detach() for tensor in draw((5, 7), (3, 4))
    )
    arguments = (query_features, key_features, value, [torch.exp(one) for one in log_matrices])
    gradient = torch.ones_like(tile_sums(*arguments))
    whole = tile_sums_gradients(gradient, arguments[:3], arguments[3], [True] * 5)
    for place in range(5):
        flags = [place == other for other in range(5)]
        found = tile_sums_gradients(gradient, arguments[:3], arguments[3], flags)
        for one, truth, asked in zip(found, whole, flags, strict=True):
            assert (one is not None) == asked
            assert one is None or (truth is not None and relative_change(one, truth) < 1e-13)
