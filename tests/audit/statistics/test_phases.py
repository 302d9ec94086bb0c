from teka.audit import square_shifts
from teka.audit.statistics.phases import sort_by_phase


def test_phases_of_negative_shifts_are_those_of_the_shift_a_stride_away():
    phases, members = sort_by_phase([(-1, 0), (2, 5), (0, 0), (5, -5)], (3, 5))
    assert phases == ((0, 0), (2, 0))
    assert members.tolist() == [[0, 0, 1, 0], [1, 1, 0, 1]]


def test_every_shift_has_one_phase_and_a_whole_square_fills_them_evenly():
    phases, members = sort_by_phase(square_shifts(4), (3, 3))
    assert len(phases) == 9
    assert members.sum(dim=0).unique().tolist() == [1.0]
    assert members.sum(dim=1).tolist() == [9.0] * 9


def test_fractions_that_differ_by_the_stride_are_of_one_phase():
    phases, _ = sort_by_phase([(0.1, 0.0), (1.1, 2.0), (-0.9, 3), (0.30000000000000004, 0), (-1.7, 0)], (1, 1))
    assert phases == ((0.1, 0), (0.3, 0))
