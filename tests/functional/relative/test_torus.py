import torch
from hypothesis import given
from hypothesis import strategies as st

from teka import Grid
from teka.functional.positions import wrap_axis


@given(side=st.integers(1, 11), spacing=st.floats(0.1, 3))
def test_offsets_are_wrapped_as_the_grid_wraps_them(side: int, spacing: float):
    grid = Grid(side, spacing, periodic=True)
    offsets = torch.linspace(-7, 7, 57, dtype=torch.float64)
    assert torch.equal(wrap_axis(offsets, grid.axis_period(0)), grid.wrap_axis(0, offsets))


def test_without_a_period_offsets_stay():
    offsets = torch.linspace(-7, 7, 57)
    assert wrap_axis(offsets, None) is offsets
