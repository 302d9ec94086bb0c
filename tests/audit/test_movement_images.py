import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from teka import Grid
from teka.audit import paste_on_canvas
from teka.audit.movement import (
    Movement,
    background_to_tensor,
    bilinear_shift,
    blank_margins,
    check_margins,
    crop,
    fourier_shift,
    parse_window_size,
    reflect_shift,
)
from tests.raising import raises_for


def test_blank_margins_count_cells_before_and_after_the_content():
    image = torch.zeros(1, 2, 5, 7)
    image[0, 0, 1, 2] = 1.0
    image[0, 1, 3, 4] = -1.0
    assert blank_margins(image).tolist() == [[[1, 1], [2, 2]]]


@given(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 2)))
def test_blank_margins_of_one_voxel(index):
    volume = torch.zeros(1, 1, 5, 7, 3)
    volume[(0, 0, *index)] = 1.0
    expected = [[before, side - 1 - before] for before, side in zip(index, (5, 7, 3), strict=True)]
    assert blank_margins(volume).tolist() == [expected]


def test_blank_margins_of_a_blank_image_are_its_size():
    assert blank_margins(torch.full((1, 1, 5, 7), 0.25), 0.25).tolist() == [[[5, 5], [7, 7]]]


def test_blank_margins_accept_a_background_for_each_channel():
    image = torch.tensor([0.5, -2.0]).reshape(1, 2, 1).repeat(1, 1, 7)
    image[0, 1, 3] = 0.5
    assert blank_margins(image, (0.5, -2.0)).tolist() == [[[3, 3]]]


def test_blank_margins_count_nan_as_content():
    image = torch.zeros(1, 1, 7)
    image[0, 0, 2] = torch.nan
    assert blank_margins(image).tolist() == [[[2, 4]]]


def test_error_names_the_possible_steps_and_the_number_of_images():
    margins = torch.tensor([[[0, 2], [3, 1]], [[4, 2], [3, 0]], [[4, 2], [3, 0]]])
    check_margins([(2, -3)], margins, "shifts")
    with pytest.raises(ValueError, match=r"from 0 to 2 along axis 0, got .*1 of 3 images"):
        check_margins([(-1, 1)], margins, "shifts")
    with pytest.raises(ValueError, match=r"from -3 to 0 along axis 1, got .*2 of 3 images"):
        check_margins([(0, 1)], margins, "shifts")


def test_background_of_wrong_length_or_not_finite_is_an_error():
    for background in [(0.0, 1.0, 2.0), float("nan"), float("inf")]:
        with raises_for(background, ValueError, match="background must be"):
            background_to_tensor(torch.zeros(1, 2, 5), background)


def test_background_outside_the_range_of_the_dtype_is_an_error():
    for background in [0.5, -1.0, 256.0]:
        with raises_for(background, ValueError, match=r"torch.uint8 holds"):
            background_to_tensor(torch.zeros(1, 1, 5, dtype=torch.uint8), background)


def test_blank_margins_of_invalid_images_are_errors():
    for images in [
        torch.zeros(5, 7),
        torch.zeros(2, 1, 0),
        torch.zeros(2, 1, 5, dtype=torch.complex64),
    ]:
        with raises_for(images.shape, ValueError, match=r"images(\.dtype)? must"):
            blank_margins(images)


def test_empty_batch_has_no_margins():
    assert blank_margins(torch.zeros(0, 1, 5, 7)).shape == (0, 2, 2)


def ramp(*sizes):
    return 1.0 + torch.arange(torch.Size((2, 3, *sizes)).numel(), dtype=torch.float64).reshape(
        2, 3, *sizes
    )


def test_images_are_centered_on_the_canvas():
    images = ramp(5, 7)
    canvas = paste_on_canvas(images, (8, 11), (1.5, 2.5, 3.5))
    assert canvas.shape == (2, 3, 8, 11)
    assert torch.equal(canvas[..., 1:6, 2:9], images)
    outside = torch.ones(8, 11, dtype=torch.bool)
    outside[1:6, 2:9] = False
    for channel, value in enumerate((1.5, 2.5, 3.5)):
        assert (canvas[:, channel, outside] == value).all()


def test_canvas_smaller_than_the_images_is_an_error():
    for canvas_size in [(4, 9), (9, 6), (9, 9, 9), 6]:
        with raises_for(canvas_size, ValueError, match="canvas_size must be"):
            paste_on_canvas(ramp(5, 7), canvas_size)


@st.composite
def windows(draw):
    sizes = draw(st.sampled_from([(11,), (8, 13), (5, 6, 7)]))
    window = tuple(draw(st.integers(1, side)) for side in sizes)
    rooms = [((side - part) // 2, side - part) for side, part in zip(sizes, window, strict=True)]
    return sizes, window, tuple(draw(st.integers(start - room, start)) for start, room in rooms)


@given(windows())
def test_crop_moves_content_like_a_roll_of_the_whole_image(case):
    sizes, window, shift = case
    images = ramp(*sizes)
    Movement("crop", crop_size=window).parse_shifts(images, [shift])
    no_shift = (0,) * len(sizes)
    assert torch.equal(
        crop(images, window, shift), crop(Grid(sizes).roll(images, shift), window, no_shift)
    )


def test_largest_shifts_of_a_crop_reach_the_image_edges():
    images = ramp(8, 13)
    assert torch.equal(crop(images, (5, 13), (1, 0)), images[..., 0:5, :])
    assert torch.equal(crop(images, (5, 13), (-2, 0)), images[..., 3:8, :])


def test_crop_shift_beyond_the_image_is_an_error():
    for shift, steps in [
        ((2, 0), "from -2 to 1 along axis 0"),
        ((-3, 0), "from -2 to 1 along axis 0"),
        ((0, 1), "from 0 to 0 along axis 1"),
    ]:
        with raises_for(shift, ValueError, match=steps):
            Movement("crop", crop_size=(5, 13)).parse_shifts(ramp(8, 13), [shift])


def test_crop_larger_than_the_image_is_an_error():
    for crop_size in [9, (5,), (5, 14), (0, 5)]:
        with raises_for(crop_size, ValueError, match="crop_size must be"):
            parse_window_size("crop_size", (8, 13), crop_size)


def test_single_crop_size_applies_to_every_axis():
    assert parse_window_size("crop_size", (8, 13), 5) == (5, 5)


@st.composite
def sizes_and_step(draw):
    sizes = draw(st.sampled_from([(11,), (5, 7), (3, 4, 2)]))
    return sizes, tuple(draw(st.integers(-side, side)) for side in sizes)


@given(sizes_and_step())
def test_reflect_shift_equals_a_crop_of_the_reflected_image(case):
    sizes, shift = case
    images = np.arange(6 * np.prod(sizes), dtype=np.float64).reshape(2, 3, *sizes)
    mirrored = np.pad(images, [(0, 0), (0, 0), *((side, side) for side in sizes)], mode="reflect")
    inside = tuple(
        slice(side - step, 2 * side - step) for side, step in zip(sizes, shift, strict=True)
    )
    moved = reflect_shift(torch.from_numpy(images), shift)
    assert np.array_equal(moved.numpy(), mirrored[(slice(None), slice(None), *inside)])


def test_reflect_shift_does_not_repeat_the_edge_cell():
    line = torch.arange(5).reshape(1, 1, 5)
    assert reflect_shift(line, (2,)).flatten().tolist() == [2, 1, 0, 1, 2]
    assert reflect_shift(line, (-2,)).flatten().tolist() == [2, 3, 4, 3, 2]


def test_reflect_shift_keeps_a_single_cell():
    assert torch.equal(reflect_shift(torch.ones(1, 1, 1, 3), (1, 0)), torch.ones(1, 1, 1, 3))


ODD = [(11,), (5, 7), (3, 5, 7)]
ANY = [(11,), (6, 7), (3, 4, 2)]
STEPS = st.floats(-8.0, 8.0)


def noise(*sizes, batch=2):
    return torch.randn(
        batch, 3, *sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )


def shifted_cosine(side, frequency, phase=0.3):
    """Return a function of a shift, which gives a shifted cosine at cells 0 … S − 1."""

    def moved(step):
        cells = torch.arange(side, dtype=torch.float64) - step
        return torch.cos(2 * math.pi * frequency * cells / side + phase).reshape(1, 1, side)

    return moved


@given(st.sampled_from(ODD), st.data())
def test_fourier_shifts_compose_on_odd_sides(sizes, data):
    first, second = ([data.draw(STEPS) for _ in sizes] for _ in range(2))
    images = noise(*sizes)
    both = fourier_shift(images, [a + b for a, b in zip(first, second, strict=True)])
    assert_close(fourier_shift(fourier_shift(images, first), second), both)
    assert_close(fourier_shift(fourier_shift(images, first), [-step for step in first]), images)


@given(STEPS, STEPS)
def test_fourier_shifts_compose_on_even_sides_below_nyquist(first, second):
    alternating = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)
    images = noise(8)
    images -= (images * alternating).mean(-1, keepdim=True) * alternating
    assert_close(
        fourier_shift(fourier_shift(images, [first]), [second]),
        fourier_shift(images, [first + second]),
    )


@given(st.sampled_from([(7, 3), (8, 3), (9, 0), (12, 5)]), STEPS)
def test_fourier_shift_interpolates_a_cosine_exactly(case, step):
    moved = shifted_cosine(*case)
    assert_close(fourier_shift(moved(0.0), [step]), moved(step))


def test_fourier_shift_scales_the_nyquist_frequency_by_a_cosine():
    for step in [0.25, 0.5, -1.75, 3.0]:
        alternating = torch.tensor([[[1.0, -1.0] * 3]], dtype=torch.float64)
        assert_close(fourier_shift(alternating, [step]), math.cos(math.pi * step) * alternating)


@given(st.sampled_from(ODD), st.data())
def test_fourier_shift_on_odd_sides_keeps_norm_and_mean(sizes, data):
    images = noise(*sizes)
    moved = fourier_shift(images, [data.draw(STEPS) for _ in sizes])
    assert_close(moved.norm(), images.norm())
    assert_close(moved.flatten(2).mean(2), images.flatten(2).mean(2))


@given(st.sampled_from([(7, 3), (12, 5), (12, 6)]), STEPS)
def test_bilinear_shift_attenuates_a_cosine_by_a_closed_form(case, step):
    side, frequency = case
    omega, part = 2 * math.pi * frequency / side, step - math.floor(step)
    attenuation = abs(1 - part + part * complex(math.cos(omega), -math.sin(omega)))
    moved = shifted_cosine(side, frequency)(0.0)
    if 2 * frequency < side:  # The norm of samples at the Nyquist frequency depends on the phase.
        assert_close(bilinear_shift(moved, [step]).norm(), attenuation * moved.norm())
    else:
        assert_close(bilinear_shift(moved, [step]).abs(), attenuation * moved.abs())


def test_bilinear_shift_splits_a_cell_between_its_targets():
    lit = torch.tensor([[[0.0, 0.0, 1.0, 0.0, 0.0]]])
    for step, expected in (
        (0.25, [0.0, 0.0, 0.75, 0.25, 0.0]),
        (-1.25, [0.25, 0.75, 0.0, 0.0, 0.0]),
    ):
        assert bilinear_shift(lit, [step]).flatten().tolist() == expected


@given(st.sampled_from(ANY), st.data())
def test_subpixel_shifts_are_separable(sizes, data):
    steps = [data.draw(STEPS) for _ in sizes]
    images = noise(*sizes)
    for move in (fourier_shift, bilinear_shift):
        by_axis = images
        for axis, step in reversed(list(enumerate(steps))):
            by_axis = move(by_axis, [step if other == axis else 0.0 for other in range(len(sizes))])
        assert_close(move(images, steps), by_axis)


def test_subpixel_shifts_keep_the_dtype():
    for dtype in [torch.float32, torch.float16, torch.bfloat16]:
        images = noise(6, 7)
        for move in (fourier_shift, bilinear_shift):
            moved = move(images.to(dtype), [0.5, 1.25])
            assert moved.dtype == dtype, dtype
            tolerance = 8 * torch.finfo(dtype).eps
            assert_close(
                moved.double(),
                move(images.to(dtype).double(), [0.5, 1.25]),
                rtol=tolerance,
                atol=tolerance,
            )
