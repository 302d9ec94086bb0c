import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from teka.audit import ShiftAccuracy, accuracy_by_shift, axis_shifts, square_shifts, wilson_interval

HEIGHT, WIDTH = 11, 13
SHIFTS = axis_shifts(3)


def points(columns, height=HEIGHT, width=WIDTH):
    """One image for each column, with one lit pixel in it, in the middle row."""
    images = torch.zeros(len(columns), 1, height, width, dtype=torch.float64)
    for image, column in enumerate(columns):
        images[image, 0, height // 2, column] = 1.0
    return images


def column_of(images):
    """Logits of a classifier that answers with the column of the lit pixel."""
    return images.sum((1, 2))


def right_half_of(images):
    """Logits of two classes: is the lit pixel at or beyond column 7?"""
    columns = images.sum((1, 2))
    return torch.stack([columns[:, :7].sum(1), columns[:, 7:].sum(1)], dim=1)


def test_a_classifier_of_the_column_is_right_only_where_the_column_stays():
    columns = [3, 5, 6, 8, 9]
    result = accuracy_by_shift(column_of, points(columns), torch.tensor(columns), SHIFTS, batch_size=2)
    assert result.along(0) == dict.fromkeys(range(-3, 4), 1.0)
    assert result.along(1) == {step: float(step == 0) for step in range(-3, 4)}
    for row, (_, right) in enumerate(result.shifts):
        assert result.predictions[row].tolist() == [column + right for column in columns]
    assert (result.minimum_accuracy, result.worst_shift_accuracy) == (0.0, 0.0)
    assert result.consistency == 0.5  # six shifts downwards agree, six to the right do not


def test_a_threshold_on_the_column_has_the_accuracies_worked_out_by_hand():
    # Classes by column ≥ 7 before the shift. At step s the answer is wrong for columns in [7 − s, 7) if s > 0, and in
    # [7, 7 − s) if s < 0: columns 5, 6 and 8 cross at s ≥ 2, s ≥ 1 and s ≤ −2.
    columns = torch.tensor([3, 5, 6, 8, 9])
    result = accuracy_by_shift(right_half_of, points(columns.tolist()), (columns >= 7).long(), range(-3, 4))
    assert result.along(1) == {-3: 0.6, -2: 0.8, -1: 1.0, 0: 1.0, 1: 0.8, 2: 0.6, 3: 0.6}
    assert result.accuracy.tolist() == list(result.along(-1).values())
    assert result.minimum_accuracy == 0.6
    # Column 3 never crosses; column 9 does at s = −3 only; so one of five is right everywhere.
    assert result.worst_shift_accuracy == 0.2
    assert result.consistency == pytest.approx((0.6 + 0.8 + 1.0 + 0.8 + 0.6 + 0.6) / 6)
    lower, upper = result.interval()
    for row, correct in enumerate((3, 4, 5, 5, 4, 3, 3)):
        assert (lower[row].item(), upper[row].item()) == wilson_interval(correct, 5)


def test_a_constant_predictor_is_consistent_and_as_good_as_its_class_is_frequent():
    labels = torch.tensor([2, 0, 2, 1, 2])
    result = accuracy_by_shift(lambda images: torch.eye(3)[[2] * len(images)], points([6] * 5), labels, SHIFTS)
    assert result.accuracy.tolist() == [0.6] * len(SHIFTS)
    assert result.worst_shift_accuracy == result.minimum_accuracy == 0.6
    assert result.consistency == 1.0


def test_a_delayed_classifier_is_wrong_by_its_delay():
    columns = [3, 4, 6]
    result = accuracy_by_shift(
        lambda images: column_of(images).roll(1, dims=-1), points(columns), torch.tensor(columns), [-1, 0, 1]
    )
    assert result.along(1) == {-1: 1.0, 0: 0.0, 1: 0.0}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_the_batch_size_changes_nothing_and_the_measures_keep_their_order(seed, batch_size):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(7, 2, 5, 7, generator=generator)
    weight = torch.randn(2 * 5 * 7, 3, generator=generator)
    labels = torch.randint(3, (7,), generator=generator)

    def predict(batch):
        return torch.stack([(image.flatten()[:, None] * weight).sum(0) for image in batch])

    whole = accuracy_by_shift(predict, images, labels, square_shifts(1), mode="circular")
    parts = accuracy_by_shift(predict, images, labels, square_shifts(1), mode="circular", batch_size=batch_size)
    assert torch.equal(whole.predictions, parts.predictions)
    assert torch.equal(whole.correct, whole.predictions == labels)
    assert whole.worst_shift_accuracy <= whole.minimum_accuracy <= whole.accuracy.mean()


def test_a_canvas_gives_room_and_is_named():
    columns = [0, 2, 4]
    images = points(columns, 5, 5)
    arguments = {"labels": torch.tensor([4, 6, 8]), "shifts": axis_shifts(4)}
    with pytest.raises(ValueError, match="lose pixels"):
        accuracy_by_shift(column_of, images, **arguments)
    result = accuracy_by_shift(column_of, images, mode="canvas", canvas_size=(11, 13), batch_size=2, **arguments)
    assert (result.mode, result.canvas_size) == ("canvas", (11, 13))
    assert result.predictions[result.shifts.index((0, -4))].tolist() == [0, 2, 4]
    assert result.along(1) == {step: float(step == 0) for step in range(-4, 5)}
    with pytest.raises(ValueError, match=r"axis 0 \(size 11\) 3 of 3 images"):
        accuracy_by_shift(column_of, images, torch.tensor([4, 6, 8]), [(6, 0)], mode="canvas", canvas_size=(11, 13))


def test_content_that_would_be_lost_is_found_before_the_first_prediction():
    calls = []
    with pytest.raises(ValueError, match=r"axis 1 \(size 13\)"):
        accuracy_by_shift(calls.append, points([6, 1, 0]), torch.tensor([0, 0, 0]), [1, -2], batch_size=1)
    assert calls == []


def test_in_mode_zero_the_background_enters():
    seen = []

    def predict(images):
        seen.append(images)
        return torch.zeros(len(images), 2)

    accuracy_by_shift(predict, torch.ones(1, 1, 7), torch.tensor([0]), [2, -3], mode="zero", background=0.25)
    assert [batch.flatten().tolist() for batch in seen] == [[0.25] * 2 + [1.0] * 5, [1.0] * 4 + [0.25] * 3]


def test_volumes_have_three_axes():
    volumes = torch.zeros(1, 1, 5, 7, 3)
    volumes[0, 0, 2, 3, 1] = 1.0
    result = accuracy_by_shift(lambda batch: batch.sum((1, 2, 4)), volumes, torch.tensor([3]), axis_shifts(1, 3))
    assert [result.along(axis) for axis in range(3)] == [
        {-1: 1.0, 0: 1.0, 1: 1.0},
        {-1: 0.0, 0: 1.0, 1: 0.0},
        {-1: 1.0, 0: 1.0, 1: 1.0},
    ]


def test_prediction_runs_in_inference_mode_and_its_results_are_plain_tensors():
    modes = []

    def predict(images):
        modes.append(torch.is_inference_mode_enabled())
        return column_of(images)

    result = accuracy_by_shift(predict, points([6]), torch.tensor([6]), [0], device="cpu")
    assert modes == [True]
    assert not result.predictions.is_inference()


def test_progress_counts_every_call():
    counts = []
    accuracy_by_shift(
        column_of,
        points([5, 6, 7]),
        torch.tensor([5, 6, 7]),
        [-1, 0, 1],
        batch_size=2,
        progress=lambda done, total: counts.append((done, total)),
    )
    assert counts == [(done, 6) for done in range(1, 7)]


def test_the_numbers_survive_json():
    columns = torch.tensor([3, 5, 6, 8, 9])
    result = accuracy_by_shift(right_half_of, points(columns.tolist()), (columns >= 7).long(), [0, 2])
    written = json.loads(json.dumps(result.to_dict()))
    assert written == {
        "mode": "lossless",
        "canvas_size": None,
        "num_images": 5,
        "shifts": [[0, 0], [0, 2]],
        "accuracy": [1.0, 0.6],
        "confidence": 0.95,
        "interval": {"lower": result.interval()[0].tolist(), "upper": [1.0, result.interval()[1][1].item()]},
        "minimum_accuracy": 0.6,
        "worst_shift_accuracy": 0.6,
        "consistency": 0.6,
    }


@pytest.mark.parametrize("shifts", [((0, 1), (0, 2)), ((0, 0),)])
def test_consistency_needs_the_zero_shift_and_another(shifts):
    right = torch.ones(len(shifts), 3, dtype=torch.bool)
    result = ShiftAccuracy(shifts, right, right.long(), "lossless")
    with pytest.raises(ValueError, match="the zero shift and at least one other"):
        _ = result.consistency
    assert result.to_dict()["consistency"] is None


def test_an_axis_that_is_not_there_or_was_not_moved_along_is_refused():
    result = accuracy_by_shift(column_of, points([6]), torch.tensor([6]), [1, 2])
    with pytest.raises(ValueError, match="axis is 2"):
        result.along(2)
    with pytest.raises(ValueError, match="axis is 0"):
        result.along(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"predict": nn.Dropout()}, r"call \.eval\(\)"),
        ({"predict": lambda images: column_of(images) * torch.nan}, "predict has NaN"),
        ({"predict": lambda images: [0] * len(images)}, "is 'list', expected a tensor"),
        ({"predict": lambda images: column_of(images)[:1]}, r"shape \(1, 13\), expected \(2, classes\)"),
        ({"predict": lambda images: images}, r"expected \(2, classes\)"),
        ({"predict": lambda images: torch.zeros(len(images), 0)}, r"expected \(2, classes\)"),
        ({"images": torch.zeros(0, 1, 5, 7), "labels": torch.zeros(0, dtype=torch.long)}, "images has shape"),
        ({"images": torch.zeros(2, 7)}, "images has shape"),
        ({"labels": torch.tensor([6])}, "labels has shape"),
        ({"labels": torch.tensor([[6, 6]])}, "labels has shape"),
        ({"labels": torch.tensor([6.0, 7.0])}, "labels.dtype is torch.float32"),
        ({"labels": torch.tensor([6, -1])}, "labels is -1"),
        ({"labels": torch.tensor([6, 13])}, "labels is 13, expected classes below 13"),
        ({"shifts": []}, "at least one shift"),
        ({"shifts": [14]}, "shift is"),
        ({"mode": "losless"}, "did you mean 'lossless'"),
        ({"mode": "canvas"}, "canvas_size is None"),
        ({"canvas_size": 20}, "has no canvas"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"background": 0.5}, "lose pixels"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    sound = {"predict": column_of, "images": points([6, 7]), "labels": torch.tensor([6, 7]), "shifts": [1]}
    with pytest.raises(ValueError, match=message):
        accuracy_by_shift(**{**sound, **arguments})
