from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from teka.prediction.read_picture import read_picture

GREY = np.random.default_rng(0).integers(0, 256, (5, 7)).astype(np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (5, 7, 3)).astype(np.uint8)


def put(folder: Path, picture: Image.Image, name: str = "picture.png", **options: Any) -> Path:
    picture.save(folder / name, **options)
    return folder / name


def test_grey_and_colour_are_read_as_they_are(tmp_path: Path):
    assert torch.equal(read_picture(put(tmp_path, Image.fromarray(GREY))), torch.from_numpy(GREY)[None])
    colour = read_picture(put(tmp_path, Image.fromarray(COLOUR)), in_channels=3)
    assert torch.equal(colour, torch.from_numpy(COLOUR).permute(2, 0, 1))


def test_grey_becomes_equal_channels_and_colour_its_luminance(tmp_path: Path):
    grey = read_picture(put(tmp_path, Image.fromarray(GREY)), in_channels=3)
    assert torch.equal(grey, torch.from_numpy(GREY).expand(3, -1, -1))
    luminance = read_picture(put(tmp_path, Image.fromarray(COLOUR)))[0].double()
    expected = torch.from_numpy(COLOUR).double() @ torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    assert (luminance - expected).abs().max() <= 1


@pytest.mark.parametrize("mode", ["1", "P", "CMYK", "LA", "RGBA"])
def test_other_kinds_of_pixels_are_read(mode: str, tmp_path: Path):
    picture = Image.fromarray(np.where(GREY > 127, 255, 0).astype(np.uint8))
    path = put(tmp_path, picture.convert(mode), "picture.tif" if mode == "CMYK" else "picture.png")
    assert torch.equal(read_picture(path)[0], torch.from_numpy(np.array(picture)))


def test_deep_levels_are_rounded_to_bytes(tmp_path: Path):
    deep = put(tmp_path, Image.fromarray(GREY.astype(np.uint16) * 257))
    assert torch.equal(read_picture(deep)[0], torch.from_numpy(GREY))
    assert torch.equal(read_picture(deep, in_channels=3), torch.from_numpy(GREY).expand(3, *GREY.shape))
    for top in (1, 255):
        floating = put(tmp_path, Image.fromarray((GREY * (top / 255)).astype(np.float32)), "picture.tif")
        assert torch.equal(read_picture(floating)[0], torch.from_numpy(GREY))
    with pytest.raises(ValueError, match=r"the levels of .*picture\.tif is 'from -1 to 1'"):
        read_picture(put(tmp_path, Image.fromarray(np.array([[-1, 1]], dtype=np.float32)), "picture.tif"))


@pytest.mark.parametrize(("level", "ground"), [(0, 255), (255, 0)], ids=["dark ink", "light ink"])
@pytest.mark.parametrize("kind", ["alpha", "palette"])
def test_what_is_transparent_shows_a_ground_that_the_visible_stands_out_from(
    kind: str, level: int, ground: int, tmp_path: Path
):
    opaque = np.zeros((5, 7), dtype=bool)
    opaque[2, 1:4] = True
    if kind == "alpha":
        levels = np.full((5, 7, 4), 77, dtype=np.uint8)
        levels[opaque], levels[..., 3] = level, 255 * opaque
        path = put(tmp_path, Image.fromarray(levels))
    else:
        picture = Image.fromarray(opaque.astype(np.uint8), mode="P")
        picture.putpalette([77, 77, 77, level, level, level])
        path = put(tmp_path, picture, transparency=0)
    assert torch.equal(read_picture(path)[0], torch.from_numpy(np.where(opaque, level, ground)).byte())
    given = {"dark": 0, "light": 255}
    for name, under in given.items():
        found = read_picture(path, ground=name)[0]
        assert torch.equal(found, torch.from_numpy(np.where(opaque, level, under)).byte())


def test_pixels_that_become_no_grey_are_an_error_that_names_the_file(tmp_path: Path):
    path = put(tmp_path, Image.new("LAB", (7, 5)), "picture.tif")
    with pytest.raises(ValueError, match=r"the pixel type of .*picture\.tif is 'LAB'"):
        read_picture(path)


def test_other_channels_or_grounds_are_an_error(tmp_path: Path):
    with pytest.raises(ValueError, match="in_channels is 2, expected 1 or 3"):
        read_picture(tmp_path, in_channels=2)
    with pytest.raises(ValueError, match=r"ground is 'drak', .*did you mean 'dark'"):
        read_picture(tmp_path, ground="drak")
