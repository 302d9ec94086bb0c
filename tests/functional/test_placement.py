import torch

from teka import Grid
from teka.functional.placement import Placement


def test_a_grids_offsets_wrap_and_those_of_its_positions_do_not():
    grid = Grid((5,), periodic=True)
    like = torch.zeros((), dtype=torch.float64)
    assert Placement(grid, None).offsets_like(like)[0, 4, 0] == 1
    assert Placement(None, grid.positions()).offsets_like(like)[0, 4, 0] == -4


def test_offsets_are_the_queries_position_minus_the_keys_in_the_dtype_asked_for():
    positions = torch.rand(2, 3, 4)
    offsets = Placement(None, positions).offsets_like(torch.zeros((), dtype=torch.float64))
    assert offsets.dtype == torch.float64
    assert torch.equal(offsets[1, 0, 2], (positions[1, 0].double() - positions[1, 2].double()))


def test_the_number_of_axes_is_the_grids_or_the_positions():
    assert Placement(Grid((3, 5, 2)), None).num_axes == 3
    assert Placement(None, torch.zeros(7, 4)).num_axes == 4
    assert Placement(None, None).num_axes == 0


def test_a_prefix_gets_zeros_before_both_queries_and_keys():
    padded = Placement(Grid((3,)), None, num_prefix_tokens=2).with_prefix(torch.ones(1, 2, 3, 3))
    assert padded.shape == (1, 2, 5, 5)
    assert padded.sum() == 18
    assert (padded[..., 2:, 2:] == 1).all()
