import math
from statistics import NormalDist

import pytest
import torch

from teka import Grid
from teka.functional import relative
from teka.models.encodings import ENCODINGS
from teka.training.heads.grid import chance_head_grid, head_grid
from teka.training.heads.measure import look

GRID = Grid((11, 13))
WINDOW = [(float(down), float(right)) for down in (-1, 0, 1) for right in (-1, 0, 1)]


def gaussians(centers: list[tuple[float, float]], precision: float) -> relative.Quadratic:
    return relative.Quadratic(
        torch.tensor(centers, dtype=torch.float64), torch.full((len(centers),), precision, dtype=torch.float64)
    )


def test_the_heads_of_a_convolution_form_the_grid():
    found = head_grid(look(gaussians(WINDOW, 20.0), GRID))
    assert (found.heads, found.local, found.distinct) == (9, 9, 9)
    assert (found.window_3, found.local_window_3, found.window_5) == (9, 9, 9)
    assert found.spread < 1e-3
    assert found.distance == pytest.approx(1.0)


def test_wide_heads_take_offsets_and_are_not_local():
    found = head_grid(look(gaussians(WINDOW, 0.5), GRID))
    assert (found.local, found.local_window_3, found.window_3) == (0, 0, 9)
    assert found.spread == pytest.approx(1.0, abs=1e-3)


def test_heads_at_one_offset_count_once_and_those_outside_not_at_all():
    found = head_grid(look(gaussians([(0, 1), (0.2, 1.1), (2, -2), (4, 4), (-5, 0)], 20.0), GRID))
    assert (found.distinct, found.window_3, found.window_5) == (4, 1, 2)


def test_the_spread_is_that_of_the_widest_direction():
    factor = torch.tensor([[[1.0, 1.0], [-1 / 3, 1 / 3]]], dtype=torch.float64) / math.sqrt(2)
    heads = look(relative.GeneralizedQuadratic(torch.zeros(1, 2, dtype=torch.float64), factor), Grid((41, 41)))
    assert head_grid(heads).spread == pytest.approx(3.0, rel=1e-3)


def test_random_centers_take_as_many_offsets_as_their_distribution_says():
    heads, cell = 7, NormalDist(0, 2)
    along = [cell.cdf(place + 0.5) - cell.cdf(place - 0.5) for place in (-1, 0, 1)]
    expected = sum(1 - (1 - down * right) ** heads for down in along for right in along)
    found = chance_head_grid("quadratic", heads=heads, grid=Grid((23, 23)), embedding_dim=4)
    # The standard deviation of one draw is about 1.1, and of the mean of 200 therefore 0.08.
    assert found.window_3 == pytest.approx(expected, abs=0.3)
    assert found.heads == heads


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_chance_is_the_same_every_time_and_leaves_the_random_state(encoding):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = chance_head_grid(encoding, heads=3, grid=Grid((5, 7)), embedding_dim=4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert chance_head_grid(encoding, heads=3, grid=Grid((5, 7)), embedding_dim=4) == first


def test_heads_that_are_no_numbers_do_not_end_a_training():
    found = head_grid(look(gaussians([(math.nan, 0.0), (0.0, 0.0)], 1.0), GRID))
    assert math.isnan(found.spread)
