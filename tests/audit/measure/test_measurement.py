import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from teka.audit import axis_shifts, square_shifts, translate
from teka.audit.measure import measurement
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.measure.measurement import MovedImages
from teka.audit.model_call import ModelError
from teka.audit.movement import Movement
from tests.audit.measure import models
from tests.raising import raises_for

CIRCULAR, ZERO = Movement("circular"), Movement("zero")
SQUARE = square_shifts(3)
IMAGES = torch.zeros(5, 2, 9, 11, dtype=torch.float64)
IMAGES[:, :, 3:6, 3:8] = torch.rand(
    5, 2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)
SHIFTS = axis_shifts(3)
MOVEMENTS = (
    Movement("circular"),
    Movement("lossless"),
    Movement("zero", 0.5),
    Movement("canvas", (0.0, 0.0), (15, 17)),
    Movement("reflect"),
    Movement("crop", crop_size=(3, 5)),
    Movement("fourier"),
    Movement("bilinear"),
)


def by_hand(movement, image, shift):
    settings = {
        "background": movement.background,
        "canvas_size": movement.canvas_size,
        "crop_size": movement.crop_size,
    }
    return translate(IMAGES[image : image + 1], shift, mode=movement.mode, **settings)[0]


@pytest.mark.parametrize("movement", MOVEMENTS, ids=lambda movement: movement.mode)
def test_a_batch_has_the_images_of_translate(movement):
    moved = MovedImages(IMAGES, SHIFTS, movement)
    for entries in (range(3), range(4, 23), range(60, 65)):
        batch = moved.batch(moved.segments(entries))
        for row, entry in enumerate(entries):
            expected = by_hand(movement, entry % 5, moved.shifts[entry // 5])
            torch.testing.assert_close(batch[row], expected, rtol=0, atol=0)


def test_a_batch_may_be_changed():
    for movement in MOVEMENTS:
        images = IMAGES.clone()
        moved = MovedImages(images, SHIFTS, movement)
        segments = moved.segments(range(5))
        first = moved.batch(segments)
        expected = first.clone()
        first.fill_(7.0)
        assert torch.equal(images, IMAGES), movement
        assert torch.equal(moved.batch(segments), expected), movement


@given(st.integers(0, 5 * 13 - 1), st.integers(1, 5 * 13))
def test_segments_cover_their_entries(start, size):
    moved = MovedImages(IMAGES, SHIFTS, Movement("circular"))
    entries = range(start, min(start + size, 5 * 13))
    covered, rows = [], []
    for segment in moved.segments(entries):
        covered += [segment.rank * 5 + image for image in range(5)[segment.images]]
        rows += range(len(entries))[segment.rows]
    assert covered == list(entries)
    assert rows == list(range(len(entries)))


def test_the_first_entries_are_the_images_unmoved():
    moved = MovedImages(IMAGES, SHIFTS[::-1], Movement("zero"))
    assert len(moved) == 5 * 13
    assert torch.equal(moved.batch(moved.segments(range(5))), IMAGES)
    assert moved.given_shifts == SHIFTS[::-1]


def test_a_batch_is_named_by_its_shifts_and_images():
    moved = MovedImages(IMAGES, [(0, 0), (0, 2)], Movement("zero"))
    assert moved.where(moved.segments(range(1, 4))) == "at shift (0, 0), images 1 to 3"
    expected = "in a batch from shift (0, 0), images 3 to 4 on, to shift (0, 2), images 0 to 1"
    assert moved.where(moved.segments(range(3, 7))) == expected


def test_what_cannot_be_moved_is_refused(unchecked_annotations):
    for images, shifts, movement, message in [
        (IMAGES[:0], SHIFTS, Movement("zero"), r"images must have .*got \(0, 2, 9, 11\)"),
        (IMAGES[0, 0], SHIFTS, Movement("zero"), r"images must have .*got \(9, 11\)"),
        (IMAGES, [(0, 1)], Movement("zero"), "with the zero shift"),
        (IMAGES, [(0, 0), (0, 12)], Movement("zero"), r"shifts must be .*got \(0, 12\)"),
        (IMAGES, [(0, 0), (4, 0)], Movement("lossless"), "5 of 5 images lose pixels"),
    ]:
        with raises_for((shifts, movement), ValueError, match=message):
            MovedImages(images, shifts, movement)


def test_maps_that_do_not_fit_into_the_cache_have_the_same_errors(monkeypatch):
    expected = measure_responses(
        lambda images: images.cumsum(3), models.IMAGES, SQUARE, ZERO, batch_size=7
    )
    monkeypatch.setattr(measurement, "CACHED_BYTES", 0)
    models.assert_same(
        measure_responses(
            lambda images: images.cumsum(3), models.IMAGES, SQUARE, ZERO, batch_size=7
        ),
        expected,
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_output_that_is_not_finite_is_reported_with_its_shift(bad):
    # The output is not finite for images whose point is in the last column.
    def function(images):
        return torch.where(images[:, 0, :, -1:].sum((1, 2))[:, None] > 0, bad, 1.0) * torch.ones(
            1, 2
        )

    with pytest.raises(
        ModelError, match=r"NaN or infinity at shift \(0, 2\) for 2 of 3 images$"
    ) as caught:
        measure_responses(
            function, models.points([10, 4, 10]), [(0, 0), (0, 1), (0, 2)], CIRCULAR, batch_size=6
        )
    # The shifts are measured in the order 0, 2, 1. Results from before the first NaN are kept.
    assert models.present(caught.value.responses).evaluated.tolist() == [
        [True] * 3,
        [False] * 3,
        [False] * 3,
    ]


def test_large_numbers_whose_sum_is_infinite_are_measured():
    result = measure_responses(
        lambda images: 3e38 * torch.ones(len(images), 9), models.IMAGES, SQUARE, ZERO
    )
    assert result.evaluated.all()
    assert not result.error_squared.any()


def test_outputs_of_changing_shape_are_refused():
    sizes = itertools.chain([6], itertools.repeat(5))
    with pytest.raises(
        ModelError,
        match=r"at shift .* of shape \(5, 5\), expected .* of shape \(5, 6\), as at first",
    ):
        measure_responses(
            lambda images: images[:, 0, 0, : next(sizes)], models.IMAGES, SQUARE, ZERO, batch_size=5
        )
