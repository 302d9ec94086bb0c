from fractions import Fraction

import pytest
import torch

from teka.audit.layers.shift_errors import NO_BORDER, candidate_moves, cells_within, is_multiple

GRID = (5, 7)
STRIDE = (Fraction(2), Fraction(3))
CELLS = torch.arange(35).reshape(GRID)


def test_a_shift_is_a_multiple_if_it_is_one_along_every_axis():
    for shift, multiple in [
        ((4, -3), True),
        ((0, 0), True),
        ((3, 3), False),
        ((2, 2), False),
        ((2.0, 1.5), False),
    ]:
        assert is_multiple(shift, STRIDE) == multiple, (shift, multiple)


def test_at_a_multiple_there_is_one_move_by_whole_cells():
    assert list(candidate_moves((4, -3), STRIDE)) == [(2, -1)]


@pytest.mark.parametrize(
    ("shift", "moves"),
    [
        ((1, 3), {(0, 1), (1, 1)}),
        ((-1, -1), {(-1, -1), (-1, 0), (0, -1), (0, 0)}),
        ((2, 4.5), {(1, 1), (1, 2)}),
    ],
)
def test_between_multiples_all_neighboring_moves_are_candidates(shift, moves):
    candidates = list(candidate_moves(shift, STRIDE))
    assert set(candidates) == moves
    assert len(candidates) == len(moves)


def test_cells_that_entered_over_an_edge_are_not_inside():
    assert cells_within(GRID, NO_BORDER, (2, -1)) == (slice(2, 5), slice(0, 6))


def test_the_interior_is_out_of_the_border_before_and_after_the_move():
    assert cells_within(GRID, ((1, 0), (2, 1)), (1, -1)) == (slice(2, 5), slice(2, 5))


def test_nothing_is_left_after_a_move_over_the_whole_grid():
    rows, _ = cells_within(GRID, NO_BORDER, (6, 0))
    assert CELLS[rows].numel() == 0
