from teka.audit import square_shifts
from teka.audit.traps import phases_unseen


def test_shifts_by_whole_patches_alone_are_found():
    (trap,) = phases_unseen([(0, 0), (0, 4), (-8, 12)], (4, 4))
    assert "a multiple of the model's grid of 4 × 4 pixels" in trap.message


def test_a_square_of_shifts_sees_every_phase():
    assert phases_unseen(square_shifts(2), (4, 4)) == ()


def test_half_pixels_are_between_the_cells():
    assert phases_unseen([(0, 0), (0, 0.5)], (2, 2)) == ()


def test_a_model_without_a_coarser_grid_has_one_phase():
    assert phases_unseen([(0, 0), (0, 3)], (1, 1)) == ()


def test_the_zero_shift_alone_says_nothing():
    assert phases_unseen([(0, 0)], (4, 4)) == ()
