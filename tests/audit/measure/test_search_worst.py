import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.audit.measure.models import IMAGES, LABELS, WIDTH, Counting, Failing, column_of, linear, points, present

from teka.audit import axis_shifts, square_shifts
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.measure.outputs import ModelError
from teka.audit.measure.search_worst import search_worst
from teka.audit.movement import Movement

CIRCULAR, ZERO = Movement("circular"), Movement("zero")


def right_half(images):
    """Logits of two classes: is the lit pixel at or beyond column 7?"""
    columns = images.sum((1, 2))
    return torch.stack([columns[:, :7].sum(1), columns[:, 7:].sum(1)], dim=1)


def worst(responses):
    return present(responses.correct).all(dim=0)


@given(
    st.lists(st.integers(0, WIDTH - 1), min_size=1, max_size=9),
    st.integers(0, 3),
    st.sampled_from([2, 7, 300]),
    st.integers(0, 2**9 - 1),
)
def test_the_worst_shift_accuracy_is_that_of_the_whole_measurement(columns, max_shift, batch_size, flipped):
    images, shifts = points(columns), square_shifts(max_shift)
    labels = torch.tensor([int(column >= 7) ^ (flipped >> index & 1) for index, column in enumerate(columns)])
    whole = measure_responses(right_half, images, shifts, CIRCULAR, labels=labels)
    searched = search_worst(right_half, images, labels, shifts, CIRCULAR, batch_size=batch_size)
    assert torch.equal(worst(searched), worst(whole))
    shown = searched.evaluated
    assert torch.equal(present(searched.predictions)[shown], present(whole.predictions)[shown])
    torch.testing.assert_close(present(searched.loss)[shown], present(whole.loss)[shown])
    assert shown[:, worst(whole)].all()


def test_one_at_a_time_an_image_is_not_shown_again_once_it_was_wrong():
    columns = [2, 5, 6, 8]
    labels = torch.tensor([0, 0, 0, 0])
    result = search_worst(right_half, points(columns), labels, axis_shifts(3), CIRCULAR, batch_size=1)
    wrong = result.evaluated & ~present(result.correct)
    # Column 2 never is, for −3 comes round to column 12; 5 and 6 cross the middle by 3; 8 is wrong unmoved.
    assert wrong.sum(dim=0).tolist() == [1, 1, 1, 1]
    assert result.evaluated.sum(dim=0).tolist() == [4, 5, 5, 1]
    assert result.calls == 15


def test_a_model_that_is_always_right_is_shown_everything():
    images, shifts = points([3, 5, 8]), square_shifts(2)
    model = Counting(lambda batch: column_of(batch).sum(1, keepdim=True) * torch.tensor([0.0, 1.0]).double())
    result = search_worst(model, images, torch.ones(3, dtype=torch.int64), shifts, CIRCULAR, batch_size=10)
    assert result.evaluated.all()
    assert model.sizes == [10] * 7 + [5]


def test_a_model_that_is_always_wrong_is_shown_the_images_unmoved_only():
    columns = torch.tensor([3, 5, 8])
    model = Counting(column_of)
    result = search_worst(model, points(columns.tolist()), columns - 1, square_shifts(2), CIRCULAR, batch_size=3)
    assert model.sizes == [3]
    assert result.evaluated.sum(dim=1).tolist() == [3 * (not any(shift)) for shift in result.shifts]


def test_batches_are_full_until_the_images_run_out():
    model = Counting(linear)
    search_worst(model, IMAGES, LABELS, square_shifts(3), ZERO, batch_size=4)
    assert set(model.sizes[:-1]) <= {4}


def test_progress_ends_with_all_settled():
    told = []
    search_worst(
        linear, IMAGES, LABELS, square_shifts(3), ZERO, batch_size=4, progress=lambda *numbers: told.append(numbers)
    )
    assert told[-1] == (245, 245, 0.0)
    assert all(one[0] < other[0] for one, other in itertools.pairwise(told))


def test_an_image_that_a_budget_cut_off_does_not_count_as_right():
    images, labels = points([3, 5, 8]), torch.zeros(3, dtype=torch.int64)
    result = search_worst(right_half, images[:2], labels[:2], axis_shifts(1), ZERO, batch_size=3, budget_seconds=1e-9)
    assert result.evaluated.sum() == 3
    assert present(result.correct).sum() == 3
    assert not worst(result).any()


def test_what_was_measured_before_the_classifier_raised_is_kept():
    with pytest.raises(ModelError) as caught:
        search_worst(Failing(linear, 1, OSError()), IMAGES, LABELS, square_shifts(1), ZERO, batch_size=5)
    assert present(caught.value.responses).evaluated.sum() == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"function": lambda images: images}, r"\(batch, classes\) with two or more classes"),
        ({"labels": LABELS + 1}, "labels is 3, expected classes below 3"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"shifts": [(0, 1)]}, "with the zero shift"),
    ],
)
def test_bad_input_is_refused(changes, message):
    given = {"function": linear, "images": IMAGES, "labels": LABELS, "shifts": square_shifts(1), "movement": ZERO}
    with pytest.raises(ValueError, match=message):
        search_worst(**{**given, **changes})
