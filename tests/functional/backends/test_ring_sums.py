import itertools

import pytest
import torch
from tests.contracts.cases import relative_change
from tests.functional.backends.ring_cases import GRIDS, MAX_DISTANCE, distances, members, noise

from teka import Grid
from teka.functional.backends import ring_sums
from teka.functional.backends.ring_sums import RingSums, mix_rings, read_rings, spread_rings
from teka.functional.backends.rings import FarSums


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_rings_are_those_of_brute_force_and_may_be_taken_again(grid: Grid):
    first = noise(grid, 4).unflatten(2, grid.shape)
    sums = RingSums(first, MAX_DISTANCE, grid)
    for seed in (0, 1):
        tokens = noise(grid, 4, seed)
        sums.start(tokens.unflatten(2, grid.shape))
        for distance in range(MAX_DISTANCE):
            found = sums.ring(distance).flatten(2, -2)
            assert relative_change(found, members(grid)[distance] @ tokens) < 1e-12


def test_a_single_token_spreads_to_the_cells_of_each_ring():
    tokens = torch.zeros(1, 1, 7, 7, 1)
    tokens[0, 0, 3, 3] = 1
    sums = RingSums(tokens, 4, Grid((7, 7)))
    sums.start(tokens)
    assert [int(sums.ring(distance).sum()) for distance in range(4)] == [1, 4, 8, 12]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_three_maps_are_those_of_brute_force_in_parts_of_any_size(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
):
    weights, tokens, others = (
        noise(grid, size, seed) for seed, size in enumerate((MAX_DISTANCE + 1, 4, 4))
    )
    pairs = members(grid)
    rings = torch.einsum("rij,bhjc->bhirc", pairs, tokens)
    mixed = torch.einsum("bhir,bhirc->bhic", weights, rings)
    spread = torch.einsum("rij,bhjr,bhjc->bhic", pairs, weights, others)
    read = torch.einsum("bhirc,bhic->bhir", rings, others)
    for elements in (1, 40, 2**15):
        monkeypatch.setattr(ring_sums, "MAP_ELEMENTS", elements)
        monkeypatch.setattr(ring_sums, "LEAST_CHANNELS", min(elements, 16))
        assert relative_change(mix_rings(weights, tokens, grid), mixed) < 1e-12, elements
        assert relative_change(spread_rings(weights, others, grid), spread) < 1e-12, elements
        assert relative_change(read_rings(tokens, others, MAX_DISTANCE, grid), read) < 1e-12, (
            elements
        )


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_far_sums_are_those_of_brute_force_in_parts_of_any_size(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
):
    tokens = noise(grid, 4)
    for distance, elements in itertools.product((1, 2, MAX_DISTANCE), (2**15, 1)):
        monkeypatch.setattr(ring_sums, "MAP_ELEMENTS", elements)
        expected = (distances(grid) >= distance).double() @ tokens
        assert relative_change(FarSums(distance, grid).of(tokens), expected) < 1e-12, (
            distance,
            elements,
        )


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_an_enormous_near_token_leaves_no_trace_in_a_far_sum(grid: Grid):
    tokens = torch.ones(1, 1, grid.num_tokens, 1, dtype=torch.float64)
    counts = FarSums(MAX_DISTANCE, grid).of(tokens)
    tokens[:, :, 0] = 1e30
    near = distances(grid)[:, 0] < MAX_DISTANCE
    assert torch.equal(FarSums(MAX_DISTANCE, grid).of(tokens)[:, :, near], counts[:, :, near])
