import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from teka import Grid
from teka.audit import TRANSLATION_MODES, paste_on_canvas, translate

SIZES = [(11,), (5, 7), (3, 5, 2)]


def ramp(*sizes):
    return 1.0 + torch.arange(torch.Size((2, 3, *sizes)).numel(), dtype=torch.float64).reshape(2, 3, *sizes)


@st.composite
def sizes_and_shift(draw):
    sizes = draw(st.sampled_from(SIZES))
    return sizes, tuple(draw(st.integers(-side, side)) for side in sizes)


def moved_by_hand(images, shift, background, *, wrap):
    """Cell by cell, from the definition: content at index i moves to i + t."""
    sizes = images.shape[2:]
    moved = torch.full_like(images, background)
    for index in torch.cartesian_prod(*(torch.arange(side) for side in sizes)).reshape(-1, len(sizes)).tolist():
        target = [start + step for start, step in zip(index, shift, strict=True)]
        if wrap:
            target = [place % side for place, side in zip(target, sizes, strict=True)]
        if all(0 <= place < side for place, side in zip(target, sizes, strict=True)):
            moved[(..., *target)] = images[(..., *index)]
    return moved


@settings(max_examples=40, deadline=None)
@given(sizes_and_shift())
def test_circular_and_zero_are_their_definitions(case):
    sizes, shift = case
    images = ramp(*sizes)
    assert torch.equal(translate(images, shift, mode="circular"), moved_by_hand(images, shift, 0.0, wrap=True))
    zero = translate(images, shift, mode="zero", background=-3.0)
    assert torch.equal(zero, moved_by_hand(images, shift, -3.0, wrap=False))


def test_content_moves_downwards_and_to_the_right():
    image = torch.zeros(1, 1, 5, 7)
    image[0, 0, 1, 2] = 1.0
    assert translate(image, (2, 3), mode="lossless").nonzero().tolist() == [[0, 0, 3, 5]]


def test_a_single_int_moves_along_the_last_axis():
    images = ramp(5, 7)
    assert torch.equal(translate(images, 3, mode="circular"), translate(images, (0, 3), mode="circular"))


@pytest.mark.parametrize("mode", ["circular", "lossless", "zero"])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_shift_by_zero_changes_nothing_and_gives_new_images(mode, sizes):
    images = ramp(*sizes)
    moved = translate(images, (0,) * len(sizes), mode=mode)
    assert torch.equal(moved, images)
    assert moved.data_ptr() != images.data_ptr()


@settings(max_examples=40, deadline=None)
@given(sizes_and_shift())
def test_there_and_back_on_a_canvas_with_room_changes_nothing(case):
    sizes, shift = case
    canvas = tuple(3 * side for side in sizes)
    pasted = paste_on_canvas(ramp(*sizes), canvas)
    moved = translate(ramp(*sizes), shift, mode="canvas", canvas_size=canvas)
    assert torch.equal(moved, Grid(canvas).roll(pasted, shift))
    assert torch.equal(translate(moved, [-step for step in shift], mode="lossless"), pasted)


def test_lossless_allows_just_as_far_as_the_content_reaches():
    image = torch.full((3, 2, 5, 7), 0.5)
    image[1, 1, 2, 4] = 9.0
    assert translate(image, (-2, 2), mode="lossless", background=0.5)[1, 1, 0, 6] == 9.0
    with pytest.raises(ValueError, match=r"axis 1 \(size 7\) 1 of 3 images lose pixels") as caught:
        translate(image, (-2, 3), mode="lossless", background=0.5)
    assert "axis 0" not in str(caught.value)
    with pytest.raises(ValueError, match=r"axis 0 \(size 5\) 3 of 3 images"):
        translate(image, (1, 0), mode="lossless")


def test_canvas_refuses_to_lose_content():
    with pytest.raises(ValueError, match=r"axis 0 \(size 9\) 2 of 2 images"):
        translate(ramp(5, 7), (3, 0), mode="canvas", canvas_size=(9, 11))


def test_the_image_lies_in_the_middle_of_its_canvas():
    images = ramp(5, 7)
    canvas = paste_on_canvas(images, (8, 11), (1.5, 2.5, 3.5))
    assert canvas.shape == (2, 3, 8, 11)
    assert torch.equal(canvas[..., 1:6, 2:9], images)
    outside = torch.ones(8, 11, dtype=torch.bool)
    outside[1:6, 2:9] = False
    for channel, value in enumerate((1.5, 2.5, 3.5)):
        assert (canvas[:, channel, outside] == value).all()


def test_one_canvas_size_serves_every_axis_and_the_dtype_stays():
    images = torch.ones(2, 1, 3, 5, dtype=torch.uint8)
    canvas = paste_on_canvas(images, 7, 255.0)
    assert canvas.shape == (2, 1, 7, 7)
    assert canvas.dtype == torch.uint8
    assert canvas[0, 0, 0, 0] == 255


@pytest.mark.parametrize("canvas_size", [(4, 9), (9, 6), (9, 9, 9), 6])
def test_a_canvas_that_does_not_hold_the_images_is_refused(canvas_size):
    with pytest.raises(ValueError, match="canvas_size is"):
        paste_on_canvas(ramp(5, 7), canvas_size)


@pytest.mark.parametrize("mode", TRANSLATION_MODES)
def test_a_shift_longer_than_the_canvas_is_refused(mode):
    size = (5, 7) if mode == "canvas" else None
    with pytest.raises(ValueError, match=r"shift is \(0, -8\)"):
        translate(torch.zeros(1, 1, 5, 7), (0, -8), mode=mode, canvas_size=size)


def test_an_unknown_mode_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'circular'"):
        translate(ramp(5), 1, mode="circula")


def test_a_canvas_size_goes_with_mode_canvas_and_with_no_other():
    with pytest.raises(ValueError, match="canvas_size is None"):
        translate(ramp(5), 1, mode="canvas")
    with pytest.raises(ValueError, match=r"canvas_size is \(9,\).*'zero' has no canvas"):
        translate(ramp(5), 1, mode="zero", canvas_size=(9,))


@pytest.mark.parametrize("shape", [(5,), (5, 7), (2, 0, 7), (2, 3, 0)])
def test_images_without_spatial_axes_or_cells_are_refused(shape):
    with pytest.raises(ValueError, match="images has shape"):
        translate(torch.zeros(shape), 1, mode="circular")
