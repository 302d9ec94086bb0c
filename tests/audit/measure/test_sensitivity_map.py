import json

import pytest
import torch
from torch import nn

from teka.audit import square_shifts
from teka.audit.function import ModelError
from teka.audit.measure.sensitivity_map import SensitivityMap, sensitivity_map
from teka.audit.movement import Movement
from teka.codec import decode, encode


def noise(batch=7):
    return torch.randn(batch, 2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def test_a_value_worked_out_by_hand():
    # f reads the last cell. Lines 0 0 0 0, 1 2 3 4 and 5 5 5 8; at a shift by 1 it reads the third cell: distances
    # 0, 1 and 3; unmoved the outputs 0, 4, 8 lie 4, 8 and 4 apart, with the median 4.
    lines = torch.tensor([[0.0, 0, 0, 0], [1, 2, 3, 4], [5, 5, 5, 8]]).reshape(3, 1, 4)
    measured = sensitivity_map(lambda batch: batch[:, :, -1], lines, [0, 1], Movement("circular"))
    assert measured.shifts == ((0,), (1,))
    assert measured.scale == 4.0
    assert measured.values == pytest.approx((0.0, (0 + 1 + 3) / 3 / 4))
    assert measured.num_images == 3


def test_a_mean_does_not_feel_whole_nor_fourier_shifts():
    for mode, shifts in (("circular", square_shifts(2)), ("fourier", [(0, 0), (0.5, 0.25), (1.5, -2)])):
        measured = sensitivity_map(lambda batch: batch.mean((2, 3)), noise(), shifts, Movement(mode))
        assert max(measured.values) < 1e-12


def test_the_zero_shift_is_no_distance_and_the_map_is_the_mean_over_images():
    def function(batch):
        return batch[:, :, 0] ** 2

    images, movement = noise(), Movement("zero")
    measured = sensitivity_map(function, images, square_shifts(1), movement)
    values = dict(zip(measured.shifts, measured.values, strict=True))
    assert values[0, 0] == 0.0
    moved = movement.move(images, (1, -1))
    distances = (function(moved) - function(images)).flatten(1).norm(dim=1)
    assert values[1, -1] == pytest.approx(float(distances.mean()) / measured.scale)


def test_batches_give_the_same_map():
    def function(batch):
        return batch[:, :, 2]

    whole, parts = (
        sensitivity_map(function, noise(), square_shifts(1), Movement("reflect"), batch_size=size) for size in (7, 3)
    )
    assert parts.values == pytest.approx(whole.values, rel=1e-12)
    assert parts.scale == whole.scale


def test_the_model_sees_what_the_movement_shows():
    seen = set()

    def function(batch):
        seen.add(tuple(batch.shape[2:]))
        return batch.mean((2, 3))

    sensitivity_map(function, noise(), [0], Movement("canvas", canvas_size=9))
    sensitivity_map(function, noise(), [0], Movement("crop", crop_size=(3, 4)))
    assert seen == {(9, 9), (3, 4)}


def test_a_shift_that_loses_content_is_refused_before_the_first_call():
    calls = []
    images = torch.zeros(4, 1, 5, 7)
    images[:3, :, 2, 2:5] = 1.0
    images[3, :, 2, 6] = 1.0
    with pytest.raises(ValueError, match="1 of 1 images lose pixels"):
        sensitivity_map(calls.append, images, [0, 2], Movement("lossless"), batch_size=3)
    assert not calls


def test_outputs_that_are_all_the_same_give_no_scale():
    with pytest.raises(ValueError, match="the same for most pairs of images"):
        sensitivity_map(lambda batch: torch.ones(len(batch), 2), noise(), [0, 1], Movement("circular"))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="images is '1 images', expected at least two"):
        sensitivity_map(lambda batch: batch.mean((2, 3)), noise(1), [0], Movement("circular"))
    with pytest.raises(ValueError, match="batch_size is 0"):
        sensitivity_map(lambda batch: batch.mean((2, 3)), noise(), [0], Movement("circular"), batch_size=0)
    with pytest.raises(ValueError, match="training mode"):
        sensitivity_map(nn.Dropout(), noise(), [0], Movement("circular"))


def test_a_model_that_raises_is_named_with_the_shift():
    def failing(batch):
        if batch[0, 0, 0, 0] != noise()[0, 0, 0, 0]:
            raise RuntimeError("moved")
        return batch.mean((2, 3))

    with pytest.raises(ModelError, match=r"RuntimeError at shift \(0, 1\): moved"):
        sensitivity_map(failing, noise(), [0, 1], Movement("circular"))


def test_the_numbers_survive_json():
    measured = sensitivity_map(lambda batch: batch[:, :, 0], noise(), [(0, 0), (0.5, 1)], Movement("bilinear"))
    assert decode(SensitivityMap, json.loads(json.dumps(encode(measured)))) == measured
