import base64

import pytest
import torch
from torch import Tensor

from teka.audit.example import Example, encode_levels, make_examples, worst_images
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.movement import Movement
from teka.codec import decode, encode

SHIFTS = [(0, 0), (0, 1), (0, 2)]


def left_or_right(images: Tensor) -> Tensor:
    return torch.stack([images[..., :4].sum((1, 2, 3)), images[..., 4:].sum((1, 2, 3))], dim=1)


def dots(*columns: int) -> Tensor:
    images = torch.zeros(len(columns), 1, 5, 8)
    for image, column in zip(images, columns, strict=True):
        image[0, 2, column] = 1.0
    return images


def test_images_that_change_at_most_shifts_come_first_and_those_with_something_to_lose_before():
    # The dot at 3 leaves the left half at both shifts, the one at 2 at one of them, the one at 0 never.
    images = dots(0, 2, 3, 3)
    labels = torch.tensor([0, 0, 1, 0])
    responses = measure_responses(left_or_right, images, SHIFTS, Movement("circular"), labels=labels)
    assert worst_images(responses, 4) == (3, 1, 2, 0)
    assert worst_images(responses, 2) == (3, 1)


def test_an_example_has_the_answer_and_its_probability_at_every_shift():
    images = dots(2)
    responses = measure_responses(left_or_right, images, SHIFTS, Movement("circular"))
    (example,) = make_examples(left_or_right, images, responses, [0], batch_size=2)
    shown = dict(zip(example.shifts, zip(example.predictions, example.probabilities, strict=True), strict=True))
    share = float(torch.tensor([1.0, 0.0]).softmax(0)[0])
    assert shown == {
        (0, 0): (0, pytest.approx(share, abs=1e-4)),
        (0, 1): (0, pytest.approx(share, abs=1e-4)),
        (0, 2): (1, pytest.approx(share, abs=1e-4)),
    }
    assert example.label is None
    assert decode(Example, encode(example)) == example


def test_levels_are_rows_of_pixels_of_channels():
    image = torch.tensor([[[0.0, 1.0, 0.5]], [[0.2, 0.4, 0.6]], [[1.0, 0.0, 0.0]]])
    assert list(base64.b64decode(encode_levels(image))) == [0, 51, 255, 255, 102, 0, 128, 153, 0]


def test_values_outside_the_unit_range_are_spread_over_it():
    assert list(base64.b64decode(encode_levels(torch.tensor([[[-2.0, 0.0, 2.0]]])))) == [0, 128, 255]


def test_other_numbers_of_channels_are_shown_grey():
    assert list(base64.b64decode(encode_levels(torch.tensor([[[0.0]], [[1.0]]])))) == [128]


def test_maps_have_no_examples():
    images = dots(2)
    responses = measure_responses(lambda batch: batch, images, SHIFTS, Movement("circular"))
    assert make_examples(lambda batch: batch, images, responses, [0]) == ()
