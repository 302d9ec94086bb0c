import pytest
import torch
from tests.contracts.cases import relative_change
from tests.functional.backend.rings.ring_cases import GRIDS, MAX_DISTANCE, distances, noise

from teka import Grid
from teka.functional.backend import ring_sums
from teka.functional.backend.rings import far_sums


@pytest.mark.parametrize("distance", [1, 2, MAX_DISTANCE])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_far_sums_are_those_of_brute_force_in_parts_of_any_size(
    grid: Grid, distance: int, monkeypatch: pytest.MonkeyPatch
):
    tokens = noise(grid, 4)
    expected = (distances(grid) >= distance).double() @ tokens
    for elements in (2**15, 1):
        monkeypatch.setattr(ring_sums, "MAP_ELEMENTS", elements)
        assert relative_change(far_sums(tokens, distance, grid), expected) < 1e-12


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_an_enormous_near_token_leaves_no_trace_in_a_far_sum(grid: Grid):
    tokens = torch.ones(1, 1, grid.num_tokens, 1, dtype=torch.float64)
    counts = far_sums(tokens, MAX_DISTANCE, grid)
    tokens[:, :, 0] = 1e30
    near = distances(grid)[:, 0] < MAX_DISTANCE
    assert torch.equal(far_sums(tokens, MAX_DISTANCE, grid)[:, :, near], counts[:, :, near])
