import json

import pytest
import torch

from teka.audit import square_shifts
from teka.audit.statistics.stride_choice import StrideChoice, best_stride

SHIFTS = square_shifts(6)
CANDIDATES = (2, 3, 4, 5, 6, 8)


@pytest.fixture
def with_error(respond):
    """Responses whose error at each shift is given."""

    def made(error):
        values = torch.tensor([error(*shift) if any(shift) else 0.0 for shift in SHIFTS])
        predictions = torch.zeros(len(SHIFTS), 11, dtype=torch.int64)
        squares = values[:, None].square().repeat(1, 11)
        return respond(SHIFTS, predictions, error_squared=squares, norm_squared=torch.ones_like(squares))

    return made


@pytest.mark.parametrize("stride", [2, 3, 4, 5])
def test_an_error_by_phase_alone_is_explained_in_full_by_the_stride_and_not_by_its_multiples_first(with_error, stride):
    choice = best_stride(with_error(lambda dy, dx: 1 + (dy % stride != 0) + 2 * (dx % stride != 0)), CANDIDATES)
    assert choice.stride == stride
    assert choice.share == pytest.approx(1.0)
    assert choice.p_value == 0.001
    for other, share in choice.shares.items():
        assert (share == pytest.approx(1.0)) == (other % stride == 0)


def test_a_trend_with_distance_has_no_stride(with_error):
    choice = best_stride(with_error(lambda dy, dx: 0.3 * abs(dy) + 0.02 * dx**2), CANDIDATES)
    assert (choice.stride, choice.share, choice.p_value) == (None, 0.0, 1.0)


def test_a_stride_is_found_upon_a_trend_and_noise(with_error):
    noise = iter(torch.randn(len(SHIFTS), generator=torch.Generator().manual_seed(0)).tolist())
    choice = best_stride(with_error(lambda dy, dx: 5 + abs(dy) + (dx % 4 != 0) + 0.2 * next(noise)), CANDIDATES)
    assert choice.stride == 4
    assert 0.5 < choice.share < 0.95
    assert choice.p_value == 0.001


def test_noise_alone_gives_small_p_values_as_seldom_as_they_say(with_error):
    small = 0
    for seed in range(40):
        noise = iter(torch.rand(len(SHIFTS), generator=torch.Generator().manual_seed(seed)).tolist())
        responses = with_error(lambda dy, dx, noise=noise: 1 + next(noise))
        small += best_stride(responses, CANDIDATES, num_permutations=99, seed=seed).p_value <= 0.1
    # Four are expected, with a standard deviation of 1.9.
    assert small <= 10


def test_a_stride_with_hardly_more_shifts_than_phases_is_not_tested(with_error):
    choice = best_stride(with_error(lambda dy, dx: float(dx % 2)), (2, 11))
    assert set(choice.shares) == {2}
    assert best_stride(with_error(lambda dy, dx: float(dx % 2)), (11,)).stride is None


def test_accuracy_and_agreement_can_be_asked_about(respond):
    labels = torch.arange(11) % 2
    predictions = torch.stack([labels if dx % 3 == 0 else 1 - labels for _, dx in SHIFTS])
    responses = respond(SHIFTS, predictions, labels)
    for number in ("accuracy", "agreement"):
        choice = best_stride(responses, CANDIDATES, number=number)
        assert (choice.stride, choice.number) == (3, number)


def test_what_makes_no_sense_is_refused(respond, with_error):
    responses = with_error(lambda dy, dx: 1.0)
    with pytest.raises(ValueError, match=r"^candidates is \(1, 2\)"):
        best_stride(responses, (1, 2))
    with pytest.raises(ValueError, match=r"^candidates"):
        best_stride(responses, ())
    with pytest.raises(ValueError, match="did you mean 'error'"):
        best_stride(responses, (2,), number="errors")
    with pytest.raises(ValueError, match=r"^number is 'accuracy'"):
        best_stride(responses, (2,), number="accuracy")
    with pytest.raises(ValueError, match=r"^num_permutations is 0"):
        best_stride(responses, (2,), num_permutations=0)


def test_the_zero_shift_alone_has_no_stride(respond):
    assert best_stride(respond([(0, 0)], torch.zeros(1, 3, dtype=torch.int64)), (2,)).stride is None


def test_the_choice_survives_json(with_error):
    choice = best_stride(with_error(lambda dy, dx: float(dx % 2)), CANDIDATES)
    assert StrideChoice.from_dict(json.loads(json.dumps(choice.to_dict()))) == choice
