import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from teka.audit import axis_shifts, square_shifts, translate
from teka.audit.measure.measure_responses import BatchEvaluator, measure_responses, split_batches
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


def translated_image(movement, image, shift):
    settings = {
        "background": movement.background,
        "canvas_size": movement.canvas_size,
        "crop_size": movement.crop_size,
    }
    return translate(IMAGES[image : image + 1], shift, mode=movement.mode, **settings)[0]


def measure_and_record(images, shifts, movement, batch_size):
    """Return a complete evaluator and a copy of each batch of images that the model received."""
    batches = []

    def model(batch):
        batches.append(batch.clone())
        return batch.flatten(1).sum(1, keepdim=True).expand(-1, 3).clone()

    evaluator = BatchEvaluator(
        model, images, shifts, movement, None, "logits", None, None, batch_size
    )
    for batch in evaluator.batches:
        evaluator.evaluate_batch(batch)
    assert evaluator.responses().evaluated.all()
    return evaluator, batches


@pytest.mark.parametrize("batch_size", [3, 12, 100])
@pytest.mark.parametrize("movement", MOVEMENTS, ids=lambda movement: movement.mode)
def test_model_receives_the_images_of_translate(movement, batch_size):
    evaluator, batches = measure_and_record(IMAGES, SHIFTS, movement, batch_size)
    for (shifts, images), batch in zip(evaluator.batches, batches, strict=True):
        expected = [
            translated_image(movement, image, evaluator.shifts[shift])
            for shift in shifts
            for image in range(5)[images]
        ]
        torch.testing.assert_close(batch, torch.stack(expected), rtol=0, atol=0)


@given(st.integers(1, 7), st.integers(0, 3), st.integers(1, 300))
def test_batches_contain_every_image_at_every_shift_once(num_images, max_shift, batch_size):
    shifts = square_shifts(max_shift)
    entries = []
    for indices, images in split_batches(shifts, num_images, batch_size):
        batch = list(itertools.product(indices, range(num_images)[images]))
        assert 1 <= len(batch) <= batch_size
        entries += batch
    assert sorted(entries) == list(itertools.product(range(len(shifts)), range(num_images)))
    zero = shifts.index((0, 0))
    assert sorted(entries[:num_images]) == [(zero, image) for image in range(num_images)]


def test_invalid_shifts_and_images_are_errors(unchecked_annotations):
    for images, shifts, movement, message in [
        (IMAGES[:0], SHIFTS, Movement("zero"), r"images must have .*got \(0, 2, 9, 11\)"),
        (IMAGES[0, 0], SHIFTS, Movement("zero"), r"images must have .*got \(9, 11\)"),
        (IMAGES, [(0, 1)], Movement("zero"), "contains the zero shift"),
        (IMAGES, [(0, 0), (0, 12)], Movement("zero"), r"shifts must be .*got \(0, 12\)"),
        (IMAGES, [(0, 0), (4, 0)], Movement("lossless"), "5 of 5 images have a smaller margin"),
    ]:
        with raises_for((shifts, movement), ValueError, match=message):
            measure_responses(lambda batch: batch.flatten(1), images, shifts, movement)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_error_of_non_finite_outputs_names_the_shift(bad):
    # The output is not finite for images whose lit pixel is in the last column.
    def function(images):
        return torch.where(images[:, 0, :, -1:].sum((1, 2))[:, None] > 0, bad, 1.0) * torch.ones(
            1, 2
        )

    with pytest.raises(
        ModelError, match=r"NaN or infinity at shift \(0, 2\) for 2 of 3 images$"
    ) as caught:
        measure_responses(
            function,
            models.images_of_columns([10, 4, 10]),
            [(0, 0), (0, 1), (0, 2)],
            CIRCULAR,
            batch_size=6,
        )
    # The shifts are measured in the order 0, 2, 1. Results from before the first NaN are kept.
    assert models.not_none(caught.value.responses).evaluated.tolist() == [
        [True] * 3,
        [False] * 3,
        [False] * 3,
    ]


def test_large_outputs_with_an_infinite_sum_are_measured():
    result = measure_responses(
        lambda images: 3e38 * torch.ones(len(images), 9), models.IMAGES, SQUARE, ZERO
    )
    assert result.evaluated.all()
    assert not result.error_squared.any()


def test_outputs_of_changing_shape_are_an_error():
    sizes = itertools.chain([6], itertools.repeat(5))
    with pytest.raises(
        ModelError,
        match=r"at shift .*, images 0 to 4 is .* of shape \(5, 5\), expected .* of shape \(5, 6\), as at first",
    ):
        measure_responses(
            lambda images: images[:, 0, 0, : next(sizes)], models.IMAGES, SQUARE, ZERO, batch_size=5
        )
