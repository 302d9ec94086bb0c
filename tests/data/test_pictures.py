import io
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

import teka
from teka.data import resize_bilinear
from teka.data.pictures import PictureFiles, read_picture, read_picture_header

GRAY = np.random.default_rng(0).integers(0, 256, (23, 31), dtype=np.uint8)
COLOR = np.random.default_rng(1).integers(0, 256, (23, 31, 3), dtype=np.uint8)
SIZES = [(28, 28, 32, 32), (28, 28, 14, 14), (7, 11, 13, 5), (5, 3, 2, 17), (31, 29, 1, 1)]


def save_picture(
    folder: Path, picture: Image.Image, name: str = "picture.png", **options: Any
) -> Path:
    picture.save(folder / name, **options)
    return folder / name


def test_the_exif_orientation_is_applied(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save_picture(tmp_path, Image.fromarray(GRAY), exif=exif)
    assert np.array_equal(read_picture(path)[0], np.rot90(GRAY, -1))


def test_first_frame_of_a_picture_is_used(tmp_path: Path):
    frames = [Image.fromarray(levels) for levels in (GRAY, 255 - GRAY)]
    path = save_picture(tmp_path, frames[0], "picture.tif", save_all=True, append_images=frames[1:])
    assert np.array_equal(read_picture(path)[0], GRAY)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [7_100, 20_000])
def test_a_picture_with_too_many_pixels_is_an_error_before_decoding(side: int, tmp_path: Path):
    Image.new("1", (side, side)).save(tmp_path / "large.png")
    with pytest.raises(
        ValueError,
        match=r"large\.png must be a readable picture of at most 50,000,000 pixels, got .* pixels",
    ):
        read_picture(tmp_path / "large.png")


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("format_", ["png", "jpeg", "bmp", "gif", "tiff", "webp"])
def test_a_truncated_picture_is_an_error_with_its_path(format_: str, tmp_path: Path):
    file = io.BytesIO()
    Image.fromarray(np.stack([GRAY, GRAY.T.reshape(23, 31), 255 - GRAY], axis=2)).save(
        file, format_
    )
    content, path = file.getvalue(), tmp_path / "cut"
    for kept in range(0, len(content) // 2, 1 + len(content) // 60):
        path.write_bytes(content[:kept])
        with pytest.raises(ValueError, match=f"{path} must be a readable picture"):
            read_picture(path)


@pytest.mark.skipif(
    ".avif" not in Image.registered_extensions(), reason="this Pillow reads no AVIF"
)
def test_an_unknown_format_is_named_without_objects_of_pillow(tmp_path: Path):
    path = tmp_path / "unknown.png"
    path.write_bytes(b"no picture")
    with pytest.raises(ValueError, match="got a damaged file or another format"):
        read_picture(path)


def test_a_damaged_picture_is_an_error_with_its_path(tmp_path: Path):
    path = save_picture(tmp_path, Image.fromarray(COLOR[:8, :8]), "one.avif")
    content, refused = path.read_bytes(), 0
    for at in range(0, len(content), 5):
        path.write_bytes(content[:at] + b"\0" + content[at + 1 :])
        try:
            read_picture(path)
        except ValueError as error:
            refused += f"{path} must be a readable picture" in str(error)
    assert refused > len(content) // 20


def test_unsupported_formats_are_an_error_with_any_file_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        subprocess, "Popen", lambda *command, **_: pytest.fail(f"{command} was started")
    )
    path = tmp_path / "photo.png"
    for content in (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n",
        b"SIMPLE  =                    T" + b" " * 50,
    ):
        path.write_bytes(content)
        for read in (read_picture, read_picture_header):
            with pytest.raises(
                ValueError,
                match=r"photo\.png must be a readable picture .* The formats are PNG, JPEG, GIF",
            ):
                read(path)


def test_pictures_are_opened_in_one_module():
    package = Path(teka.__file__).parent
    paths = [
        path for path in package.rglob("*.py") if "Image.open(" in path.read_text(encoding="utf-8")
    ]
    opening = {str(path.relative_to(package)) for path in paths}
    assert opening == {"data/pictures.py"}


@pytest.mark.parametrize("name", ["none.png", "."], ids=["no file", "a folder"])
def test_a_missing_file_is_an_error(name: str, tmp_path: Path):
    with pytest.raises(ValueError, match=r"picture must be an existing file.*got '.*'"):
        read_picture(tmp_path / name)


def test_gray_and_color_pictures_are_converted_to_the_channels(tmp_path: Path):
    path = save_picture(tmp_path, Image.fromarray(GRAY))
    for channels in (1, 3):
        assert torch.equal(
            read_picture(path, in_channels=channels),
            torch.from_numpy(GRAY).expand(channels, -1, -1),
        )
    path = save_picture(tmp_path, Image.fromarray(COLOR))
    assert torch.equal(read_picture(path, in_channels=3), torch.from_numpy(COLOR).permute(2, 0, 1))
    expected = torch.from_numpy(COLOR).double() @ torch.tensor(
        [0.299, 0.587, 0.114], dtype=torch.float64
    )
    assert (read_picture(path)[0].double() - expected).abs().max() <= 1


@pytest.mark.parametrize("mode", ["1", "P", "CMYK", "LA", "RGBA"])
def test_every_picture_mode_is_read(mode: str, tmp_path: Path):
    picture = Image.fromarray(np.where(GRAY > 127, 255, 0).astype(np.uint8))
    path = save_picture(
        tmp_path, picture.convert(mode), "picture.tif" if mode == "CMYK" else "picture.png"
    )
    assert torch.equal(read_picture(path)[0], torch.from_numpy(np.array(picture)))


def test_16_bit_levels_are_rounded_to_bytes(tmp_path: Path):
    deep = save_picture(tmp_path, Image.fromarray(GRAY.astype(np.uint16) * 257))
    assert torch.equal(read_picture(deep)[0], torch.from_numpy(GRAY))
    assert torch.equal(
        read_picture(deep, in_channels=3), torch.from_numpy(GRAY).expand(3, *GRAY.shape)
    )
    for top in (1, 255):
        floating = save_picture(
            tmp_path, Image.fromarray((GRAY * (top / 255)).astype(np.float32)), "picture.tif"
        )
        assert torch.equal(read_picture(floating)[0], torch.from_numpy(GRAY))
    with pytest.raises(
        ValueError, match=r"the levels of .*picture\.tif must be .*got from -1 to 1"
    ):
        read_picture(
            save_picture(
                tmp_path, Image.fromarray(np.array([[-1, 1]], dtype=np.float32)), "picture.tif"
            )
        )


@pytest.mark.parametrize(("level", "ground"), [(0, 255), (255, 0)], ids=["dark ink", "light ink"])
@pytest.mark.parametrize("kind", ["alpha", "palette"])
def test_transparent_pixels_become_a_contrasting_background(
    kind: str, level: int, ground: int, tmp_path: Path
):
    opaque = np.zeros((5, 7), dtype=bool)
    opaque[2, 1:4] = True
    if kind == "alpha":
        levels = np.full((5, 7, 4), 77, dtype=np.uint8)
        levels[opaque], levels[..., 3] = level, 255 * opaque
        path = save_picture(tmp_path, Image.fromarray(levels))
    else:
        picture = Image.fromarray(opaque.astype(np.uint8), mode="P")
        picture.putpalette([77, 77, 77, level, level, level])
        path = save_picture(tmp_path, picture, transparency=0)
    for name, under in {"auto": ground, "dark": 0, "light": 255}.items():
        found = read_picture(path, ground=name)[0]
        assert torch.equal(found, torch.from_numpy(np.where(opaque, level, under)).byte())


def test_invalid_modes_channels_and_grounds_are_an_error(tmp_path: Path):
    path = save_picture(tmp_path, Image.new("LAB", (7, 5)), "picture.tif")
    with pytest.raises(ValueError, match=r"the mode of .*picture\.tif must be .*got 'LAB'"):
        read_picture(path)
    with pytest.raises(ValueError, match=r"in_channels must be 1 for gray or 3.*got 2"):
        read_picture(tmp_path, in_channels=2)
    with pytest.raises(ValueError, match=r"ground must be .*got 'drak'.*Did you mean 'dark'"):
        read_picture(tmp_path, ground="drak")


def make_images(height: int, width: int, channels: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(height * 100 + width)
    return torch.randint(
        0, 256, (19, channels, height, width), generator=generator, dtype=torch.uint8
    )


@pytest.mark.parametrize(("height", "width", "new_height", "new_width"), SIZES)
def test_resize_bilinear_equals_pillow(height: int, width: int, new_height: int, new_width: int):
    images = make_images(height, width, channels=3)
    planes = [Image.fromarray(plane) for plane in images.flatten(0, 1).numpy()]
    # Two calls, because the order of the axes depends on the version of Pillow.
    narrowed = [plane.resize((new_width, height), Image.Resampling.BILINEAR) for plane in planes]
    resized = [
        plane.resize((new_width, new_height), Image.Resampling.BILINEAR) for plane in narrowed
    ]
    expected = torch.from_numpy(np.stack([np.asarray(plane) for plane in resized])).unflatten(
        0, (19, 3)
    )
    found = resize_bilinear(images, (new_height, new_width))
    assert torch.equal(found, expected)
    assert found.is_contiguous()


def test_resize_bilinear_equals_the_definition_of_the_filter():
    """Compare with the definition of the filter.

    Weights are multiples of 2⁻²². Levels are rounded half up after the width and after the height.
    """
    images, (height, width) = make_images(7, 11), (13, 4)
    for axis, side in ((3, width), (2, height)):
        old = torch.arange(images.shape[axis], dtype=torch.float64) + 0.5
        ratio = images.shape[axis] / side
        distance = (old - ((torch.arange(side, dtype=torch.float64) + 0.5) * ratio)[:, None]).abs()
        weights = (1 - distance / max(ratio, 1)).clamp(min=0)
        weights = (weights / weights.sum(dim=1, keepdim=True) * 2**22 + 0.5).floor()
        sums = (images.transpose(axis, 3).double() @ weights.T).transpose(axis, 3)
        images = ((sums + 2**21) / 2**22).floor().clamp(0, 255)
    assert torch.equal(resize_bilinear(make_images(7, 11), (height, width)), images.byte())


def test_resize_bilinear_is_close_to_interpolate():
    images = make_images(7, 11)
    exact = interpolate(
        images.double(), size=(13, 17), mode="bilinear", align_corners=False, antialias=True
    )
    assert (resize_bilinear(images, (13, 17)).double() - exact).abs().max() <= 1


def test_resize_bilinear_accepts_equal_sizes_squares_and_empty_batches():
    images = make_images(7, 11)
    assert torch.equal(resize_bilinear(images, (7, 11)), images)
    assert torch.equal(resize_bilinear(images, 13), resize_bilinear(images, (13, 13)))
    assert resize_bilinear(images[:0], (13, 17)).shape == (0, 1, 13, 17)


def test_invalid_image_size_is_an_error():
    for image_size in [0, -1, (5, 0), (5,), (5, 5, 5)]:
        with pytest.raises(ValueError, match="image_size must be"):
            resize_bilinear(make_images(7, 11), image_size)


def test_images_of_another_rank_or_dtype_are_an_error():
    with pytest.raises(ValueError, match=r"images must have .*got \(1, 7, 11\)"):
        resize_bilinear(make_images(7, 11)[0], 13)
    with pytest.raises(ValueError, match=r"images\.dtype must be torch\.uint8.*got torch\.float32"):
        resize_bilinear(make_images(7, 11).float(), 13)


def test_picture_files_are_indexed_like_a_tensor(tmp_path: Path):
    levels = make_images(5, 7)[:6]
    paths = [save_picture(tmp_path, Image.fromarray(image[0].numpy()), f"{number}.png")
             for number, image in enumerate(levels)]  # fmt: skip
    files = PictureFiles(paths, in_channels=1, image_size=(5, 7))
    images = levels / 255
    assert (len(files), files.shape, files.dtype) == (6, images.shape, images.dtype)
    for index in (2, -1, slice(None), slice(1, 5, 2), slice(0, 0), [3, 3, 0], []):
        assert torch.equal(files[index], images[index])
    for index in (torch.tensor([4, 1]), torch.arange(6) > 3):
        assert torch.equal(files[index], images[index])
    assert torch.equal(files.take(torch.tensor([4, -5]))[:], images[[4, -5]])
    with pytest.raises(IndexError):
        files[6]


def test_picture_files_of_another_size_are_resized_or_are_an_error(tmp_path: Path):
    levels = make_images(5, 7)[:1]
    path = save_picture(tmp_path, Image.fromarray(levels[0, 0].numpy()))
    resized = PictureFiles([path], in_channels=1, image_size=(3, 4))
    assert torch.equal(resized[:], resize_bilinear(levels, (3, 4)) / 255)
    fixed = PictureFiles([path], in_channels=1, image_size=(3, 4), resize=False)
    with pytest.raises(ValueError, match=r"the size of .*png must be \(3, 4\).*got \(5, 7\)"):
        fixed[0]
