import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from teka import Grid
from teka.audit.subpixel import bilinear_shift, fourier_shift

ODD = [(11,), (5, 7), (3, 5, 7)]
ANY = [(11,), (6, 7), (3, 4, 2)]
STEPS = st.floats(-8.0, 8.0)


def noise(*sizes, batch=2):
    return torch.randn(batch, 3, *sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def wave(side, frequency, phase=0.3):
    """One wave sampled at cells 0 … S − 1, and what it is after a move by s."""

    def moved(step):
        cells = torch.arange(side, dtype=torch.float64) - step
        return torch.cos(2 * math.pi * frequency * cells / side + phase).reshape(1, 1, side)

    return moved


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(ODD), st.data())
def test_fourier_moves_are_a_group_on_odd_sides(sizes, data):
    first, second = ([data.draw(STEPS) for _ in sizes] for _ in range(2))
    images = noise(*sizes)
    both = fourier_shift(images, [a + b for a, b in zip(first, second, strict=True)])
    assert_close(fourier_shift(fourier_shift(images, first), second), both)
    assert_close(fourier_shift(fourier_shift(images, first), [-step for step in first]), images)


@settings(max_examples=30, deadline=None)
@given(STEPS, STEPS)
def test_and_on_even_sides_without_the_highest_frequency(first, second):
    alternating = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)
    images = noise(8)
    images -= (images * alternating).mean(-1, keepdim=True) * alternating
    assert_close(fourier_shift(fourier_shift(images, [first]), [second]), fourier_shift(images, [first + second]))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([(7, 3), (8, 3), (9, 0), (12, 5)]), STEPS)
def test_a_wave_is_read_between_its_cells(case, step):
    moved = wave(*case)
    assert_close(fourier_shift(moved(0.0), [step]), moved(step))


@pytest.mark.parametrize("step", [0.25, 0.5, -1.75, 3.0])
def test_the_highest_frequency_of_an_even_side_is_scaled_by_a_cosine_and_stays_real(step):
    alternating = torch.tensor([[[1.0, -1.0] * 3]], dtype=torch.float64)
    assert_close(fourier_shift(alternating, [step]), math.cos(math.pi * step) * alternating)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(ANY), st.data())
def test_whole_steps_are_a_roll(sizes, data):
    steps = [data.draw(st.integers(-side, side)) for side in sizes]
    images = noise(*sizes)
    for move in (fourier_shift, bilinear_shift):
        assert torch.equal(move(images, [float(step) for step in steps]), Grid(sizes).roll(images, steps))
    # As tensors they go through the frequencies, and come out the same but for rounding.
    assert_close(
        fourier_shift(images, [torch.tensor(step, dtype=torch.float64) for step in steps]),
        Grid(sizes).roll(images, steps),
    )


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(ODD), st.data())
def test_fourier_loses_nothing_on_odd_sides_and_keeps_the_mean(sizes, data):
    images = noise(*sizes)
    moved = fourier_shift(images, [data.draw(STEPS) for _ in sizes])
    assert_close(moved.norm(), images.norm())
    assert_close(moved.flatten(2).mean(2), images.flatten(2).mean(2))


@pytest.mark.parametrize("method", ["forward", "backward"])
def test_the_derivative_of_a_moved_wave_is_that_of_the_wave(method):
    side, frequency, step = 12, 5, 0.75
    images = wave(side, frequency)(0.0)

    def moved(time):
        return fourier_shift(images, [time])

    time, one = torch.tensor(step, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    jvp = torch.func.jvp if method == "forward" else torch.autograd.functional.jvp
    speed = jvp(moved, (time,), (one,))[1]
    omega = 2 * math.pi * frequency / side
    cells = torch.arange(side, dtype=torch.float64) - step
    assert_close(speed, (omega * torch.sin(omega * cells + 0.3)).reshape(1, 1, side))


def test_bilinear_at_half_a_cell_is_the_mean_of_two_neighbours():
    line = torch.tensor([[[0.0, 4.0, 0.0, 0.0, 8.0]]], dtype=torch.float64)
    assert bilinear_shift(line, [0.5]).flatten().tolist() == [4.0, 2.0, 2.0, 0.0, 4.0]
    assert bilinear_shift(line, [-0.25]).flatten().tolist() == [1.0, 3.0, 0.0, 2.0, 6.0]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([(7, 3), (12, 5), (12, 6)]), STEPS)
def test_bilinear_dims_a_wave_by_the_stated_share(case, step):
    side, frequency = case
    omega, part = 2 * math.pi * frequency / side, step - math.floor(step)
    kept = abs(1 - part + part * complex(math.cos(omega), -math.sin(omega)))
    moved = wave(side, frequency)(0.0)
    if 2 * frequency < side:  # at the highest frequency the sampled norm depends on the phase
        assert_close(bilinear_shift(moved, [step]).norm(), kept * moved.norm())
    else:
        assert_close(bilinear_shift(moved, [step]).abs(), kept * moved.abs())


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(ANY), st.data())
def test_both_move_along_each_axis_by_itself(sizes, data):
    steps = [data.draw(STEPS) for _ in sizes]
    images = noise(*sizes)
    for move in (fourier_shift, bilinear_shift):
        by_axis = images
        for axis, step in reversed(list(enumerate(steps))):
            by_axis = move(by_axis, [step if other == axis else 0.0 for other in range(len(sizes))])
        assert_close(move(images, steps), by_axis)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_dtype_stays(dtype):
    images = noise(6, 7)
    for move in (fourier_shift, bilinear_shift):
        moved = move(images.to(dtype), [0.5, 1.25])
        assert moved.dtype == dtype
        tolerance = 8 * torch.finfo(dtype).eps
        assert_close(moved.double(), move(images.to(dtype).double(), [0.5, 1.25]), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("move", [fourier_shift, bilinear_shift])
def test_a_step_for_each_axis_is_asked_for(move):
    with pytest.raises(ValueError, match=r"shift is \[0.5\], expected a number for each of the 2 axes"):
        move(noise(5, 7), [0.5])


@pytest.mark.parametrize("move", [fourier_shift, bilinear_shift])
def test_the_images_are_left_alone(move):
    images = noise(5, 7)
    before = images.clone()
    for shift in ([0.0, 0.0], [0.5, 2.0]):
        move(images, shift).zero_()
    assert torch.equal(images, before)
