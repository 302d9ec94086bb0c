from fractions import Fraction

import torch

from teka.audit.layers.layouts import Layout
from teka.audit.layers.shift_errors import is_multiple, plan_moves

GRID = (5, 7)
STRIDE = (Fraction(2), Fraction(3))
LAYOUT = Layout("map", GRID, STRIDE)
NO_BORDER = ((0, 0), (0, 0))
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
    (moves,) = plan_moves(LAYOUT, NO_BORDER, [(4, -3)], True)
    assert torch.equal(moves.source[0].reshape(GRID), CELLS.roll((2, -1), (0, 1)))
    assert moves.inside.all()


def test_between_multiples_all_neighbours_are_tried():
    for shift, moves in [
        ((1, 3), {(0, 1), (1, 1)}),
        ((-1, -1), {(-1, -1), (-1, 0), (0, -1), (0, 0)}),
        ((2, 4.5), {(1, 1), (1, 2)}),
    ]:
        plans = plan_moves(LAYOUT, NO_BORDER, [shift], True)
        expected = {tuple(CELLS.roll(move, (0, 1)).flatten().tolist()) for move in moves}
        assert {tuple(one.source[0].tolist()) for one in plans} == expected, (shift, moves)
        assert len(plans) == len(expected), (shift, moves)


def test_shifts_with_fewer_neighbours_repeat_their_last():
    plans = plan_moves(LAYOUT, NO_BORDER, [(2, 3), (1, 1)], True)
    assert len(plans) == 4
    assert all(torch.equal(one.source[0], plans[0].source[0]) for one in plans)


def test_cells_that_entered_over_an_edge_are_not_inside():
    (moves,) = plan_moves(LAYOUT, NO_BORDER, [(4, -3)], False)
    inside = moves.inside[0].reshape(GRID)
    assert inside[2:, :6].all()
    assert inside.sum() == 3 * 6


def test_the_interior_is_out_of_the_border_before_the_move_and_after_it():
    (moves,) = plan_moves(LAYOUT, ((1, 0), (2, 1)), [(2, -3)], True)
    interior = moves.interior[0].reshape(GRID)
    assert interior[2:, 2:5].all()
    assert interior.sum() == 3 * 3


def test_nothing_is_left_after_a_move_over_the_whole_grid():
    (moves,) = plan_moves(LAYOUT, NO_BORDER, [(12, 0)], False)
    assert not moves.inside.any()


def test_a_vector_is_one_cell_that_stays_and_has_no_interior():
    (moves,) = plan_moves(Layout("vector", (), STRIDE), (), [(1, 1), (5, 5)], False)
    assert moves.source.tolist() == [[0], [0]]
    assert moves.inside.all()
    assert not moves.interior.any()
