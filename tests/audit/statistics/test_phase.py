import json

import pytest
import torch

from teka.audit import square_shifts, wilson_interval
from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement
from teka.audit.statistics.phase import best_stride, error_by_phase, sort_by_phase
from teka.codec import decode, encode
from tests.raising import raises_for


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
    phases, _ = sort_by_phase(
        [(0.1, 0.0), (1.1, 2.0), (-0.9, 3), (0.30000000000000004, 0), (-1.7, 0)], (1, 1)
    )
    assert phases == ((0.1, 0), (0.3, 0))


SQUARE = square_shifts(3)
NUM_IMAGES = 23


def responses_of(error, agrees=lambda dy, dx: True, labels=True):
    """Images that all have one error and one answer at a shift, on top of a spread between images."""
    spread = torch.linspace(0.5, 1.5, NUM_IMAGES, dtype=torch.float64)
    errors = torch.tensor(
        [error(*shift) if any(shift) else 0.0 for shift in SQUARE], dtype=torch.float64
    )
    answers = torch.tensor([0 if agrees(*shift) or not any(shift) else 1 for shift in SQUARE])
    norm = torch.ones(len(SQUARE), NUM_IMAGES, dtype=torch.float64)
    return Responses(
        Movement("circular"),
        SQUARE,
        "logits",
        torch.ones(len(SQUARE), NUM_IMAGES, dtype=torch.bool),
        errors[:, None].square() * spread,
        norm,
        torch.zeros(NUM_IMAGES, dtype=torch.int64) if labels else None,
        answers[:, None].repeat(1, NUM_IMAGES),
    )


def test_an_error_by_phase_comes_out_phase_by_phase():
    responses = responses_of(
        lambda dy, dx: 1.0 + dy % 2 + 10 * (dx % 2), lambda dy, dx: dx % 2 == 0
    )
    table = error_by_phase(responses, 2, num_resamples=100)
    assert table.stride == (2, 2)
    assert table.phases == ((0, 0), (0, 1), (1, 0), (1, 1))
    # Along an axis −2, 0, 2 are even and −3, −1, 1, 3 odd; the zero shift does not count.
    assert table.num_shifts == (8, 12, 12, 16)
    assert [number.value for number in table.values["error"]] == pytest.approx(
        [1.0, 11.0, 2.0, 12.0]
    )
    assert [number.value for number in table.values["agreement"]] == [1.0, 0.0, 1.0, 0.0]
    assert table.values["accuracy"] == table.values["agreement"]


def test_each_mean_has_an_interval():
    table = error_by_phase(responses_of(lambda dy, dx: 1.0 + dx % 2), 2, num_resamples=200)
    for number in table.values["error"]:
        assert number.lower < number.value < number.upper
    # All images agree everywhere: an image counts as one trial, not each of its shifts.
    for number in table.values["agreement"]:
        assert (number.lower, number.upper) == wilson_interval(NUM_IMAGES, NUM_IMAGES)


def test_axes_may_have_strides_of_their_own():
    table = error_by_phase(responses_of(lambda dy, dx: 1.0 + dy % 3), (3, 1), num_resamples=100)
    assert table.stride == (3, 1)
    assert table.phases == ((0, 0), (1, 0), (2, 0))
    assert [number.value for number in table.values["error"]] == pytest.approx([1.0, 2.0, 3.0])


def test_a_stride_of_one_has_one_phase_with_the_means_of_all():
    table = error_by_phase(responses_of(lambda dy, dx: 2.0, labels=False), 1, num_resamples=100)
    assert table.phases == ((0, 0),)
    assert table.num_shifts == (48,)
    assert "accuracy" not in table.values
    assert table.values["error"][0].value == pytest.approx(2.0)


def test_phases_that_only_the_zero_shift_has_are_not_there():
    assert (0, 0) not in error_by_phase(
        responses_of(lambda dy, dx: 1.0), 7, num_resamples=100
    ).phases


def test_a_stride_that_does_not_fit_is_refused():
    for stride in [0, -2, (2,), (2, 0), (2, 2, 2)]:
        with raises_for(stride, ValueError, match=r"^stride must be"):
            error_by_phase(responses_of(lambda dy, dx: 1.0), stride)


def test_the_zero_shift_alone_is_refused():
    ones = torch.ones(1, 3)
    only = Responses(Movement("circular"), ((0, 0),), "features", ones.bool(), 0 * ones, ones)
    with pytest.raises(ValueError, match="zero shift only"):
        error_by_phase(only, 2)


SHIFTS = square_shifts(6)
CANDIDATES = (2, 3, 4, 5, 6, 8)


@pytest.fixture
def with_error(respond):
    """Responses whose error at each shift is given."""

    def made(error):
        values = torch.tensor([error(*shift) if any(shift) else 0.0 for shift in SHIFTS])
        predictions = torch.zeros(len(SHIFTS), 11, dtype=torch.int64)
        squares = values[:, None].square().repeat(1, 11)
        return respond(
            SHIFTS, predictions, error_squared=squares, norm_squared=torch.ones_like(squares)
        )

    return made


@pytest.mark.parametrize("stride", [2, 3, 4, 5])
def test_an_error_by_phase_alone_is_explained_in_full_by_the_stride_and_not_by_its_multiples_first(
    with_error, stride
):
    choice = best_stride(
        with_error(lambda dy, dx: 1 + (dy % stride != 0) + 2 * (dx % stride != 0)), CANDIDATES
    )
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
    choice = best_stride(
        with_error(lambda dy, dx: 5 + abs(dy) + (dx % 4 != 0) + 0.2 * next(noise)), CANDIDATES
    )
    assert choice.stride == 4
    assert 0.5 < choice.share < 0.95
    assert choice.p_value == 0.001


def test_noise_alone_gives_small_p_values_as_seldom_as_they_say(with_error):
    small = 0
    for seed in range(40):
        noise = iter(
            torch.rand(len(SHIFTS), generator=torch.Generator().manual_seed(seed)).tolist()
        )
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
    with pytest.raises(ValueError, match=r"^candidates must be .*got \[1, 2\]"):
        best_stride(responses, (1, 2))
    with pytest.raises(ValueError, match=r"^candidates"):
        best_stride(responses, ())
    with pytest.raises(ValueError, match="Did you mean 'error'"):
        best_stride(responses, (2,), number="errors")
    with pytest.raises(ValueError, match=r"^number must be .*got 'accuracy'"):
        best_stride(responses, (2,), number="accuracy")
    with pytest.raises(ValueError, match=r"^num_permutations must be .*got 0"):
        best_stride(responses, (2,), num_permutations=0)


def test_the_zero_shift_alone_has_no_stride(respond):
    assert best_stride(respond([(0, 0)], torch.zeros(1, 3, dtype=torch.int64)), (2,)).stride is None


def test_tables_and_choices_survive_json(with_error):
    table = error_by_phase(responses_of(lambda dy, dx: 1.0 + dx % 2), 2, num_resamples=100)
    choice = best_stride(with_error(lambda dy, dx: float(dx % 2)), CANDIDATES)
    for saved in (table, choice):
        assert decode(type(saved), json.loads(json.dumps(encode(saved), allow_nan=False))) == saved
