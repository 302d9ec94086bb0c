import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from teka.codec import decode, encode
from teka.prediction import (
    PictureSettings,
    center_drawing,
    choose_picture_settings,
    measure_stroke_width,
    read_images,
)

SETTINGS = PictureSettings("ink", (28, 28), (20, 20))


def draw_seven(height: int = 20, width: int = 12) -> np.ndarray:
    """Return a seven that touches all edges, with strokes of three pixels."""
    levels = np.zeros((height, width), dtype=np.uint8)
    levels[: max(1, 3 * height // 20)] = 255
    for row in range(height):
        end = width - row * width // (2 * height)
        levels[row, max(0, end - 3 * width // 12) : end] = 255
    return levels


def fit(
    levels: np.ndarray, settings: PictureSettings = SETTINGS, ground: str = "auto"
) -> torch.Tensor:
    return center_drawing(torch.from_numpy(levels), settings, ground=ground).double()


def center_of(canvas: torch.Tensor) -> list[float]:
    return [
        float((canvas.sum(axis) * (torch.arange(28) + 0.5)).sum() / canvas.sum()) for axis in (1, 0)
    ]


def test_ink_of_the_box_size_is_centered_unchanged():
    canvas = fit(np.pad(draw_seven(), ((3, 40), (17, 5))))
    rows, columns = canvas.any(1).nonzero(), canvas.any(0).nonzero()
    top, left = int(rows[0]), int(columns[0])
    assert torch.equal(
        canvas[top : top + 20, left : left + 12], torch.from_numpy(draw_seven()).double()
    )
    assert canvas.sum() == draw_seven().astype(float).sum()
    assert all(abs(place - 14) <= 0.5 for place in center_of(canvas))


def test_the_position_of_the_ink_makes_no_difference():
    first = fit(np.pad(draw_seven(), ((3, 40), (17, 5))))
    for margins in (((0, 0), (0, 0)), ((60, 0), (0, 60)), ((1, 2), (30, 0))):
        assert torch.equal(fit(np.pad(draw_seven(), margins)), first)


def test_dark_on_light_and_light_on_dark_give_the_same():
    levels = np.pad(draw_seven(), 9)
    assert torch.equal(fit(255 - levels), fit(levels))
    assert torch.equal(
        fit((200 - 0.5 * levels).astype(np.uint8)), fit((40 + 0.5 * levels).astype(np.uint8))
    )


def test_the_ground_can_be_chosen():
    levels = np.pad(draw_seven(), 9)
    assert torch.equal(fit(levels, ground="dark"), fit(levels))
    assert torch.equal(fit(255 - levels, ground="light"), fit(levels))
    picture = Image.fromarray(levels)
    with pytest.raises(ValueError, match=r"ground must be .*got 'lihgt'.*Did you mean 'light'"):
        read_images([picture], asdict(SETTINGS), image_size=(28, 28), in_channels=1, ground="lihgt")


def test_the_scale_makes_little_difference():
    picture = Image.fromarray(np.pad(draw_seven(), 9))
    expected = fit(np.array(picture))
    for factor, error in ((0.75, 0.1), (2, 0.05), (3.3, 0.05), (11, 0.05)):
        size = (round(picture.width * factor), round(picture.height * factor))
        scaled = np.array(picture.resize(size, Image.Resampling.BICUBIC))
        assert (fit(scaled) - expected).abs().mean() < error * 255, factor


def test_the_aspect_ratio_is_kept():
    for height, width in ((40, 8), (8, 40)):
        canvas = fit(np.pad(np.full((height, width), 255, dtype=np.uint8), 5))
        sides = [int((canvas > 127).any(axis).sum()) for axis in (1, 0)]
        assert sides == [20 * height // 40, 20 * width // 40]


def test_noise_of_the_ground_is_removed():
    levels = np.pad(draw_seven(), 20) * 0.6 + np.random.default_rng(0).normal(100, 4, (60, 52))
    canvas = fit(levels.clip(0, 255).astype(np.uint8))
    assert (canvas - fit(np.pad(draw_seven(), 20))).abs().mean() < 0.05 * 255


def test_only_thin_strokes_are_thickened():
    thin = np.zeros((200, 200), dtype=np.uint8)
    thin[20:180, 98:102] = 255  # half a pixel of the canvas
    settings = PictureSettings("ink", (28, 28), (20, 20), 1.6)
    assert int((fit(thin) > 127).any(0).sum()) == 1
    assert measure_stroke_width(fit(thin, settings).numpy() > 127) > 1.3
    thick = np.pad(draw_seven(), 9)
    assert torch.equal(fit(thick, settings), fit(thick))


def test_stroke_width_measures_drawn_strokes():
    upright = np.zeros((60, 60), dtype=bool)
    upright[5:55, 20:24] = True
    across = np.zeros((200, 200), dtype=bool)
    position = np.arange(200)
    across[20:180] = np.abs(position - position[20:180, None]) / 2**0.5 <= 3
    assert measure_stroke_width(upright) == pytest.approx(4, rel=0.3)
    assert measure_stroke_width(across) == pytest.approx(6, rel=0.3)
    assert measure_stroke_width(np.zeros((5, 5), dtype=bool)) == 0


def test_a_picture_without_ink_is_an_error():
    for levels in (np.zeros((9, 9)), np.full((1, 1), 77), np.full((9, 9), 255)):
        with pytest.raises(
            ValueError, match=r"ink must be a drawing that differs from the ground, got none"
        ):
            fit(levels.astype(np.uint8))


def test_settings_of_data_sets_survive_json():
    for data in ("digits", "mnist", "fashion-mnist", "cifar10", "pictures"):
        settings = choose_picture_settings(data, (16, 20))
        assert decode(PictureSettings, json.loads(json.dumps(encode(settings)))) == settings
        assert settings.fit == ("whole" if data in ("cifar10", "pictures") else "ink"), data


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"fit": "inc"}, r"fit must be .*got 'inc'.*Did you mean 'ink'"),
    ({"fit": "ink", "canvas": [28, 28]}, r"box must be .*got None"),
    ({"fit": "ink", "canvas": [28, 28], "box": [20]}, "pictures.box must be"),
    (
        {"fit": "ink", "canvas": [0, 28], "box": [20, 20]},
        r"canvas must be .*at least 1 pixels, got \[?\(?0, 28",
    ),
    ({"fit": "ink", "canvas": [28, 28], "box": [20, 29]}, r"box must be .* fits the canvas"),
    ({"fit": "ink", "canvas": [28, 28], "box": [20, 20], "stroke": -1}, r"stroke must be .*got -1"),
    ({"fit": "whole", "box": [20, 20]}, r"canvas and box must be None with fit='whole'"),
    ({"fitt": "ink"}, r"pictures must be .*no field 'fitt': .*Did you mean 'fit'"),
)


def test_wrong_settings_are_an_error(unchecked_annotations: None):
    for fields, message in WRONG:
        with pytest.raises(ValueError, match=message):
            decode(PictureSettings, fields, "pictures")
