import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from teka import Grid
from teka.audit.crop import check_room, crop, crop_window


def ramp(*sizes):
    return torch.arange(torch.Size((2, 3, *sizes)).numel(), dtype=torch.float64).reshape(2, 3, *sizes)


@st.composite
def windows(draw):
    sizes = draw(st.sampled_from([(11,), (8, 13), (5, 6, 7)]))
    window = tuple(draw(st.integers(1, side)) for side in sizes)
    rooms = [((side - part) // 2, side - part) for side, part in zip(sizes, window, strict=True)]
    return sizes, window, tuple(draw(st.integers(start - room, start)) for start, room in rooms)


@settings(max_examples=50, deadline=None)
@given(windows())
def test_in_the_window_content_moves_as_in_the_whole_image(case):
    sizes, window, shift = case
    check_room(sizes, window, shift)
    images = ramp(*sizes)
    centre = (0,) * len(sizes)
    assert torch.equal(crop(images, window, shift), crop(Grid(sizes).roll(images, shift), window, centre))


def test_the_zero_shift_is_the_centre_crop():
    assert torch.equal(crop(ramp(8, 13), (4, 5), (0, 0)), ramp(8, 13)[..., 2:6, 4:9])


def test_the_largest_shifts_reach_the_edges_of_the_image():
    images = ramp(8, 13)
    assert torch.equal(crop(images, (5, 13), (1, 0)), images[..., 0:5, :])
    assert torch.equal(crop(images, (5, 13), (-2, 0)), images[..., 3:8, :])


@pytest.mark.parametrize(("shift", "axis"), [((2, 0), 0), ((-3, 0), 0), ((0, 1), 1)])
def test_a_window_that_would_leave_the_image_is_refused(shift, axis):
    with pytest.raises(ValueError, match=rf"from -?\d to \d along axis {axis}"):
        check_room((8, 13), (5, 13), shift)


@pytest.mark.parametrize("crop_size", [9, (5,), (5, 14), (0, 5)])
def test_a_window_that_does_not_fit_is_refused(crop_size):
    with pytest.raises(ValueError, match="crop_size is"):
        crop_window((8, 13), crop_size)


def test_one_size_serves_every_axis():
    assert crop_window((8, 13), 5) == (5, 5)


def test_a_crop_is_new_memory():
    images = ramp(7)
    crop(images, (7,), (0,)).zero_()
    assert images.sum() > 0
