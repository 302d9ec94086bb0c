from fractions import Fraction

import pytest

from teka.audit.layers.layouts import Layout
from teka.audit.layers.shift_errors import (
    is_multiple_of_stride,
    mask_cells_inside,
    mask_compared_cells,
    round_shift_to_cells,
)
from teka.audit.layers.trace import TracedTensor

STRIDE = (Fraction(2), Fraction(3))
MAP = TracedTensor(Layout("map", (5, 7), STRIDE), (4, 5, 7), 0.0, ((1, 0), (2, 1)), 1e-7)


def test_shift_must_be_a_multiple_of_the_stride_along_every_axis():
    for shift, multiple in [
        ((4, -3), True),
        ((0, 0), True),
        ((3, 3), False),
        ((2, 2), False),
        ((2.0, 1.5), False),
    ]:
        assert is_multiple_of_stride(shift, STRIDE) == multiple, (shift, multiple)


@pytest.mark.parametrize(
    ("shift", "moves"),
    [
        ((4, -3), [(2, -1)]),
        ((1, 3), [(0, 1), (1, 1)]),
        ((-1, -1), [(-1, -1), (-1, 0), (0, -1), (0, 0)]),
    ],
)
def test_candidates_are_the_nearest_shifts_by_whole_cells(shift, moves):
    assert round_shift_to_cells(shift, MAP.layout) == moves


def test_vector_does_not_move():
    assert round_shift_to_cells((1, -3), Layout("vector", (), STRIDE)) == [(0, 0)]


def test_all_cells_are_inside_only_for_circular_shifts_of_full_maps():
    for wraps, seen_size, is_whole in [
        (True, (10, 21), True),
        (False, (10, 21), False),
        (True, (11, 21), False),
    ]:
        is_torus = wraps and MAP.layout.covers_image(seen_size)
        rows, columns, *interior = mask_compared_cells(MAP, (2, -1), is_torus)
        assert bool(rows.all() and columns.all()) == is_whole, (wraps, seen_size)
        assert [int(cells.sum()) for cells in interior] == [2, 3], (wraps, seen_size)


def test_cells_that_entered_at_an_edge_are_not_inside():
    assert mask_cells_inside(5, 2).tolist() == [0, 0, 1, 1, 1]
    assert mask_cells_inside(5, -1).tolist() == [1, 1, 1, 1, 0]


def test_interior_excludes_the_border_before_and_after_the_shift():
    assert mask_cells_inside(5, 1, (1, 0)).tolist() == [0, 0, 1, 1, 1]
    assert mask_cells_inside(7, -1, (2, 1)).tolist() == [0, 0, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("move", [6, -5])
def test_shift_by_the_whole_grid_leaves_no_cells(move):
    assert not mask_cells_inside(5, move).any()
