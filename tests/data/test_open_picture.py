import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from teka.data.open_picture import open_picture

LEVELS = np.random.default_rng(0).integers(0, 256, (23, 31), dtype=np.uint8)


def test_the_orientation_that_a_camera_noted_is_applied(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(LEVELS).save(tmp_path / "picture.png", exif=exif)
    assert np.array_equal(np.asarray(open_picture(tmp_path / "picture.png")), np.rot90(LEVELS, -1))


def test_of_several_frames_the_first_is_taken(tmp_path: Path):
    frames = [Image.fromarray(levels) for levels in (LEVELS, 255 - LEVELS)]
    frames[0].save(tmp_path / "picture.tif", save_all=True, append_images=frames[1:])
    assert np.array_equal(np.asarray(open_picture(tmp_path / "picture.tif")), LEVELS)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [7_100, 20_000])
def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(side: int, tmp_path: Path):
    Image.new("1", (side, side)).save(tmp_path / "large.png")
    with pytest.raises(ValueError, match=r"the size of .*large\.png is .*, expected at most 50,000,000 pixels"):
        open_picture(tmp_path / "large.png")


@pytest.mark.parametrize("content", [b"", b"not a picture"], ids=["an empty file", "a text"])
def test_a_file_that_is_no_picture_is_an_error_that_names_it(content: bytes, tmp_path: Path):
    (tmp_path / "notes.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"notes\.png is no picture that can be read"):
        open_picture(tmp_path / "notes.png")


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("format_", ["png", "jpeg", "bmp", "gif", "tiff", "webp"])
def test_a_picture_that_is_cut_off_anywhere_is_an_error_that_names_it(format_: str, tmp_path: Path):
    file = io.BytesIO()
    Image.fromarray(np.stack([LEVELS, LEVELS.T.reshape(23, 31), 255 - LEVELS], axis=2)).save(file, format_)
    content, path = file.getvalue(), tmp_path / "cut"
    for kept in range(0, len(content) // 2, 1 + len(content) // 60):
        path.write_bytes(content[:kept])
        with pytest.raises(ValueError, match=f"{path} is no picture that can be read"):
            open_picture(path)


@pytest.mark.parametrize("name", ["none.png", "."], ids=["no file", "a folder"])
def test_what_is_no_file_is_an_error(name: str, tmp_path: Path):
    with pytest.raises(ValueError, match=r"picture is '.*', expected an existing file"):
        open_picture(tmp_path / name)
