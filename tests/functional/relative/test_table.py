from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from teka import Grid
from teka.functional import Softmax, Table
from teka.functional.positions import Positions


def build(num_axes: int = 2) -> Table:
    return Table.draw(torch.Generator().manual_seed(1), heads=3, dim=5, num_axes=num_axes, kernel="softmax")


def between(query: Grid, key: Grid | None = None) -> Positions:
    return Positions(query, key=Positions(query if key is None else key))


@pytest.mark.parametrize("spacing", [(1.0, 1.0), (0.1, 3.7)])
def test_it_is_row_plus_column_of_the_offset_in_cells(spacing: tuple[float, float]):
    grid = Grid((5, 7), spacing)
    relative = build().on(between(grid))
    found = relative.log_at(grid.offsets(dtype=torch.float64))
    for i in range(35):
        for j in range(35):
            down, right = i // 7 - j // 7, i % 7 - j % 7
            row = relative.tables[:, 0, 3 + max(-3, min(3, down))]
            column = relative.tables[:, 1, 3 + max(-3, min(3, right))]
            assert torch.allclose(found[:, i, j], row + column, atol=1e-12)


def test_a_table_of_one_entry_is_a_constant():
    relative = Table(torch.full((2, 1, 1), 0.5))
    assert relative.max_offset == 0
    assert relative.log_at(torch.tensor([[-4.0], [0.0], [9.0]])).tolist() == [[0.5] * 3] * 2


@given(turns=st.integers(-3, 3), spacing=st.floats(0.2, 3))
def test_on_a_torus_rolling_the_cells_changes_nothing(turns: int, spacing: float):
    grid = Grid((4, 7), spacing, periodic=(False, True))
    relative, offsets = build().on(between(grid)), grid.offsets(dtype=torch.float64)
    positions = grid.positions(dtype=torch.float64)
    rolled = positions + torch.tensor([0.0, turns * grid.spacing[1]], dtype=torch.float64)
    moved = grid.wrap(rolled[:, None] - rolled[None, :])
    assert torch.equal(relative.log_at(moved), relative.log_at(offsets))


@pytest.mark.parametrize(
    ("query", "key", "width"),
    [
        (Grid(8, 2.0), Grid(16), 1.0),
        (Grid(16, 0.1, origin=0.7), Grid(5, 0.3), 0.1),
        (Grid(1, 17.0, origin=3.0), Grid(5, 0.5), 0.5),
        (Grid(5, 0.5), Grid(1, 17.0, origin=3.0), 0.5),
        (Grid(1, 2.0, origin=4.0), Grid(1, 3.0), 2.0),
    ],
)
def test_between_two_grids_a_cell_is_the_finer_ones(query: Grid, key: Grid, width: float):
    assert build(1).on(between(query, key)).spacing == (width,)


@pytest.mark.parametrize(
    ("query", "key"),
    [
        (Grid(8, 2.0, origin=0.5), Grid(16)),
        (Grid(8, 2.0), Grid(16, 3.0)),
        (Grid(8), Grid(16, origin=0.25)),
        (Grid((5, 8)), Grid((5, 8), (1.0, 0.7))),
    ],
)
def test_grids_whose_cells_do_not_align_are_refused(query: Grid, key: Grid):
    with pytest.raises(ValueError, match=r"key_grid is .*, expected cells that lie a whole number of cells from those"):
        build(query.num_axes).on(between(query, key))


def test_bare_positions_are_refused():
    bare, grid = Positions(points=torch.zeros(7, 2)), Positions(Grid((5, 7)))
    for argument, placement in (("grid", bare), ("key_grid", replace(grid, key=bare))):
        with pytest.raises(ValueError, match=f"^{argument} is None, expected a grid, not bare positions, with"):
            build().on(placement)


def test_every_entry_that_occurs_has_a_gradient():
    tables = build().tables.requires_grad_()
    Table(tables).log_at(Grid((4, 5)).offsets(dtype=torch.float64)).sum().backward()
    assert tables.grad is not None
    assert torch.count_nonzero(tables.grad) == tables.numel()


@pytest.mark.parametrize("size", [(3, 7), (3, 2, 6)])
def test_tables_of_another_shape_are_refused(size: tuple[int, ...], as_users_run_it: None):
    with pytest.raises(ValueError, match=r"tables has shape .*, expected \(heads, axes, 2 max_offset \+ 1\)"):
        Table(torch.ones(size))


@pytest.mark.parametrize(("heads", "num_axes"), [(2, 2), (3, 3)])
def test_other_numbers_of_heads_and_axes_are_refused(heads: int, num_axes: int):
    build().check(heads=3, dim=5, num_axes=2, kernel=Softmax())
    with pytest.raises(ValueError, match=rf"relative.tables has shape \(3, 2, 7\), expected \({heads}, {num_axes}"):
        build().check(heads=heads, dim=5, num_axes=num_axes, kernel=Softmax())
