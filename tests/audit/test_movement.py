import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from teka import Grid
from teka.audit import paste_on_canvas, translate
from teka.audit.movement import TRANSLATION_MODES, Movement
from teka.codec import decode, encode
from tests.raising import raises_for

SIZES = [(11,), (5, 7), (3, 5, 2)]


def ramp(*sizes):
    return 1.0 + torch.arange(torch.Size((2, 3, *sizes)).numel(), dtype=torch.float64).reshape(
        2, 3, *sizes
    )


@st.composite
def sizes_and_shift(draw):
    sizes = draw(st.sampled_from(SIZES))
    return sizes, tuple(draw(st.integers(-side, side)) for side in sizes)


def reference_shift(images, shift, background, *, wrap):
    """Return images shifted cell by cell, so that content at index i moves to i + shift."""
    sizes = images.shape[2:]
    moved = torch.full_like(images, background)
    for index in (
        torch.cartesian_prod(*(torch.arange(side) for side in sizes))
        .reshape(-1, len(sizes))
        .tolist()
    ):
        target = [start + step for start, step in zip(index, shift, strict=True)]
        if wrap:
            target = [place % side for place, side in zip(target, sizes, strict=True)]
        if all(0 <= place < side for place, side in zip(target, sizes, strict=True)):
            moved[(..., *target)] = images[(..., *index)]
    return moved


@given(sizes_and_shift())
def test_circular_and_zero_equal_the_reference_shift(case):
    sizes, shift = case
    images = ramp(*sizes)
    assert torch.equal(
        translate(images, shift, mode="circular"), reference_shift(images, shift, 0.0, wrap=True)
    )
    zero = translate(images, shift, mode="zero", background=-3.0)
    assert torch.equal(zero, reference_shift(images, shift, -3.0, wrap=False))


def test_single_int_moves_along_the_last_axis():
    images = ramp(5, 7)
    assert torch.equal(
        translate(images, 3, mode="circular"), translate(images, (0, 3), mode="circular")
    )


def test_zero_shift_returns_an_equal_copy():
    for sizes in SIZES:
        for mode in ["circular", "lossless", "zero", "reflect", "fourier", "bilinear"]:
            images = ramp(*sizes)
            moved = translate(images, (0,) * len(sizes), mode=mode)
            assert torch.equal(moved, images), (mode, sizes)
            assert moved.data_ptr() != images.data_ptr(), (mode, sizes)


@given(sizes_and_shift())
def test_shift_and_its_inverse_on_a_canvas_restore_the_images(case):
    sizes, shift = case
    canvas = tuple(3 * side for side in sizes)
    pasted = paste_on_canvas(ramp(*sizes), canvas)
    moved = translate(ramp(*sizes), shift, mode="canvas", canvas_size=canvas)
    assert torch.equal(moved, Grid(canvas).roll(pasted, shift))
    assert torch.equal(translate(moved, [-step for step in shift], mode="lossless"), pasted)


def test_lossless_allows_shifts_up_to_the_margins_of_the_content():
    image = torch.full((3, 2, 5, 7), 0.5)
    image[1, 1, 2, 4] = 9.0
    assert translate(image, (-2, 2), mode="lossless", background=0.5)[1, 1, 0, 6] == 9.0
    with pytest.raises(
        ValueError, match=r"from -4 to 2 along axis 1, got .*1 of 3 images"
    ) as error:
        translate(image, (-2, 3), mode="lossless", background=0.5)
    assert "axis 0" not in str(error.value)
    with pytest.raises(ValueError, match=r"from 0 to 0 along axis 0, got .*3 of 3 images"):
        translate(image, (1, 0), mode="lossless")


def test_shift_longer_than_the_canvas_is_an_error():
    for mode in TRANSLATION_MODES:
        sizes = {"canvas": {"canvas_size": (5, 7)}, "crop": {"crop_size": (3, 5)}}.get(mode, {})
        with raises_for(mode, ValueError, match=r"shift must be .*got \(0, -8\)"):
            translate(torch.zeros(1, 1, 5, 7), (0, -8), mode=mode, **sizes)


def test_unknown_mode_is_an_error_that_suggests_the_closest():
    with pytest.raises(ValueError, match="Did you mean 'circular'"):
        translate(ramp(5), 1, mode="circula")
    with pytest.raises(ValueError, match=r"mode must be one of 'bilinear'.*got 'rotation'"):
        translate(ramp(5), 1, mode="rotation")


@given(sizes_and_shift())
def test_subpixel_modes_equal_circular_at_integer_shifts(case):
    sizes, shift = case
    images = ramp(*sizes)
    for mode in ("fourier", "bilinear"):
        assert torch.equal(
            translate(images, shift, mode=mode), translate(images, shift, mode="circular")
        )


def test_fractional_shifts_need_a_subpixel_mode():
    assert translate(ramp(5, 7), (0.5, 1), mode="bilinear").shape == (2, 3, 5, 7)
    with pytest.raises(
        ValueError, match=r"shift must be whole numbers, because mode 'reflect'.*got \(0.5, 1\)"
    ):
        translate(ramp(5, 7), (0.5, 1), mode="reflect")


def test_integer_images_in_subpixel_modes_are_an_error():
    with pytest.raises(
        ValueError, match=r"images.dtype must be a floating-point dtype.*got torch.uint8"
    ):
        translate(torch.zeros(1, 1, 5, 7, dtype=torch.uint8), 1, mode="fourier")


def test_images_without_spatial_axes_or_cells_are_errors():
    for shape in [(5,), (5, 7), (2, 0, 7), (2, 3, 0)]:
        with raises_for(shape, ValueError, match="images must have"):
            translate(torch.zeros(shape), 1, mode="circular")


SIZE_OPTIONS: dict[str, Any] = {"canvas": {"canvas_size": (15, 17)}, "crop": {"crop_size": (5, 7)}}


def make_movement(mode: str, background: float | tuple[float, ...] = 0.0) -> Movement:
    return Movement(mode, background, **SIZE_OPTIONS.get(mode, {}))


def centered_noise(*sizes):
    """Return images with noise in the middle and zero margins for shifts up to 2."""
    images = torch.zeros(3, 2, *sizes, dtype=torch.float64)
    images[..., 3:-3, 3:-3] = (
        torch.rand(images[..., 3:-3, 3:-3].shape, generator=torch.Generator().manual_seed(1)) + 1
    )
    return images


def test_content_moves_down_and_to_the_right_in_every_mode():
    for mode in TRANSLATION_MODES:
        images = torch.zeros(1, 1, 9, 11)
        images[0, 0, 4, 5] = 1.0
        moving = make_movement(mode)
        placed = moving.prepare_images(images)
        start, end = (moving.move(placed, shift).nonzero()[0, 2:] for shift in ((0, 0), (2, 1)))
        assert (end - start).tolist() == [2, 1], mode


def test_shifted_images_do_not_share_memory():
    for mode in TRANSLATION_MODES:
        images, moving = centered_noise(9, 11), make_movement(mode)
        placed = moving.prepare_images(images)
        before = placed.clone()
        for shift in ((0, 0), (1, -1)):
            moving.move(placed, shift).fill_(7.0)
        assert torch.equal(placed, before), mode


def test_parse_shifts_rejects_shifts_that_lose_pixels():
    for mode in ["lossless", "canvas"]:
        moving = make_movement(mode)
        placed = moving.prepare_images(centered_noise(9, 11))
        with raises_for(mode, ValueError, match=r"axis 1, .* 3 of 3 images have a smaller margin"):
            moving.parse_shifts(placed, [(0, 0), (0, 7)])


def test_subpixel_modes_keep_integer_steps_as_ints():
    for mode in ["fourier", "bilinear"]:
        moving = make_movement(mode)
        images = centered_noise(9, 11)
        steps = moving.parse_shifts(moving.prepare_images(images), [(0, 0), (0.5, 2.0), (0.5, 2)])
        assert steps == ((0, 0), (0.5, 2)), mode
        assert type(steps[1][1]) is int, mode
        assert torch.equal(moving.move(images, (0.5, 2)), translate(images, (0.5, 2), mode=mode)), (
            mode
        )


def test_background_of_modes_zero_and_canvas():
    images = centered_noise(9, 11)
    moving = make_movement("zero", (0.25, 0.5))
    moved = moving.move(moving.prepare_images(images), (2, 0))
    assert (moved[:, 0, :2] == 0.25).all()
    assert (moved[:, 1, :2] == 0.5).all()
    canvas = make_movement("canvas", (0.25, 0.5)).prepare_images(images)
    assert torch.equal(canvas, paste_on_canvas(images, (15, 17), (0.25, 0.5)))


def test_seen_size_is_the_size_of_canvas_crop_or_image():
    assert make_movement("circular").seen_size((9, 11)) == (9, 11)
    assert make_movement("canvas").seen_size((9, 11)) == (15, 17)
    assert Movement("canvas", canvas_size=20).seen_size((9, 11)) == (20, 20)
    assert make_movement("crop").seen_size((9, 11)) == (5, 7)
    assert Movement("crop", crop_size=5).seen_size((9, 11)) == (5, 5)
    with pytest.raises(ValueError, match="canvas_size must be"):
        make_movement("canvas").seen_size((16, 11))
    with pytest.raises(ValueError, match="crop_size must be"):
        make_movement("crop").seen_size((4, 11))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"mode": "canvas"},
            "canvas_size must be the size of the canvas for mode 'canvas'.*got None",
        ),
        ({"mode": "crop"}, "crop_size must be the size of the crop for mode 'crop'.*got None"),
        ({"mode": "zero", "canvas_size": 9}, r"canvas_size must be .*'zero' has no canvas.*got 9"),
        (
            {"mode": "canvas", "canvas_size": 9, "crop_size": 5},
            r"crop_size must be .*'canvas' has no crop.*got 5",
        ),
    ],
)
def test_conflicting_movement_settings_are_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        Movement(**settings)


def test_size_of_wrong_type_is_an_error(unchecked_annotations: None):
    for size in (torch.zeros(2), "9", (2.5, 3)):
        with raises_for(size, ValueError, match="canvas_size must be"):
            Movement("canvas", canvas_size=size).seen_size((1, 1))  # pyright: ignore


def test_movement_survives_json():
    for background in [0.5, 1, (0.0, 0.25)]:
        for mode in TRANSLATION_MODES:
            moving = make_movement(mode, background)
            assert decode(Movement, json.loads(json.dumps(encode(moving)))) == moving, (
                mode,
                background,
            )
