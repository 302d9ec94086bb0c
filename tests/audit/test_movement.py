import json

import pytest
import torch

from teka.audit import TRANSLATION_MODES, paste_on_canvas, square_shifts, translate
from teka.audit.movement import Movement

SIZES = {"canvas": {"canvas_size": (15, 17)}, "crop": {"crop_size": (5, 7)}}


def movement(mode: str, background: float | tuple[float, ...] = 0.0) -> Movement:
    return Movement(mode, background, **SIZES.get(mode, {}))


def spot(*sizes):
    """Noise in the middle, on a background of zeros with room for shifts of up to 2."""
    images = torch.zeros(3, 2, *sizes, dtype=torch.float64)
    images[..., 3:-3, 3:-3] = torch.rand(images[..., 3:-3, 3:-3].shape, generator=torch.Generator().manual_seed(1)) + 1
    return images


@pytest.mark.parametrize("mode", TRANSLATION_MODES)
def test_place_check_and_move_are_translate(mode):
    images, moving = spot(9, 11), movement(mode)
    placed = moving.place(images)
    steps = moving.check(placed, square_shifts(2))
    assert steps == square_shifts(2)
    for step in steps:
        seen = moving.move(placed, step)
        assert tuple(seen.shape[2:]) == moving.seen_size((9, 11))
        assert torch.equal(seen, translate(images, step, mode=mode, **SIZES.get(mode, {})))


@pytest.mark.parametrize("mode", TRANSLATION_MODES)
def test_in_every_mode_content_moves_downwards_and_to_the_right(mode):
    images = torch.zeros(1, 1, 9, 11)
    images[0, 0, 4, 5] = 1.0
    moving = movement(mode)
    placed = moving.place(images)
    start, end = (moving.move(placed, shift).nonzero()[0, 2:] for shift in ((0, 0), (2, 1)))
    assert (end - start).tolist() == [2, 1]


@pytest.mark.parametrize("mode", TRANSLATION_MODES)
def test_what_is_moved_is_new_memory(mode):
    images, moving = spot(9, 11), movement(mode)
    placed = moving.place(images)
    before = placed.clone()
    for shift in ((0, 0), (1, -1)):
        moving.move(placed, shift).fill_(7.0)
    assert torch.equal(placed, before)


@pytest.mark.parametrize("mode", ["lossless", "canvas"])
def test_what_would_be_lost_is_looked_for_once(mode):
    moving = movement(mode)
    placed = moving.place(spot(9, 11))
    with pytest.raises(ValueError, match=r"axis 1 .* 3 of 3 images lose pixels"):
        moving.check(placed, [(0, 0), (0, 7)])


@pytest.mark.parametrize("mode", ["fourier", "bilinear"])
def test_sub_pixel_modes_take_fractions_and_keep_whole_steps_whole(mode):
    moving = movement(mode)
    images = spot(9, 11)
    steps = moving.check(moving.place(images), [(0, 0), (0.5, 2.0), (0.5, 2)])
    assert steps == ((0, 0), (0.5, 2))
    assert type(steps[1][1]) is int
    assert torch.equal(moving.move(images, (0.5, 2)), translate(images, (0.5, 2), mode=mode))


@pytest.mark.parametrize("mode", [mode for mode in TRANSLATION_MODES if mode not in ("fourier", "bilinear")])
def test_the_other_modes_refuse_fractions(mode):
    moving = movement(mode)
    with pytest.raises(ValueError, match=rf"whole numbers, since mode '{mode}'"):
        moving.check(moving.place(spot(9, 11)), [(0, 0.5)])


def test_in_a_crop_the_shift_is_bounded_by_the_image_around_it():
    moving = movement("crop")
    assert moving.check(spot(9, 11), [(-2, 2)]) == ((-2, 2),)
    with pytest.raises(ValueError, match=r"from -2 to 2 along axis 0, for crops of 5 from images of 9"):
        moving.check(spot(9, 11), [(3, 0)])


def test_background_enters_in_mode_zero_and_lies_around_in_mode_canvas():
    images = spot(9, 11)
    moving = movement("zero", (0.25, 0.5))
    moved = moving.move(moving.place(images), (2, 0))
    assert (moved[:, 0, :2] == 0.25).all()
    assert (moved[:, 1, :2] == 0.5).all()
    canvas = movement("canvas", (0.25, 0.5)).place(images)
    assert torch.equal(canvas, paste_on_canvas(images, (15, 17), (0.25, 0.5)))


def test_the_size_seen_is_that_of_the_canvas_the_window_or_the_image():
    assert movement("circular").seen_size((9, 11)) == (9, 11)
    assert movement("canvas").seen_size((9, 11)) == (15, 17)
    assert Movement("canvas", canvas_size=20).seen_size((9, 11)) == (20, 20)
    assert movement("crop").seen_size((9, 11)) == (5, 7)
    assert Movement("crop", crop_size=5).seen_size((9, 11)) == (5, 5)
    with pytest.raises(ValueError, match="canvas_size is"):
        movement("canvas").seen_size((16, 11))
    with pytest.raises(ValueError, match="crop_size is"):
        movement("crop").seen_size((4, 11))


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "circula"},
        {"mode": "canvas"},
        {"mode": "crop"},
        {"mode": "zero", "canvas_size": 9},
        {"mode": "canvas", "canvas_size": 9, "crop_size": 5},
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings):
    with pytest.raises(ValueError, match=r"(mode|canvas_size|crop_size) is"):
        Movement(**settings)


@pytest.mark.parametrize("mode", TRANSLATION_MODES)
@pytest.mark.parametrize("background", [0.5, 1, (0.0, 0.25)])
def test_settings_survive_json(mode, background):
    moving = movement(mode, background)
    assert Movement.from_dict(json.loads(json.dumps(moving.to_dict()))) == moving
