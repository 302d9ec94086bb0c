import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from teka.data import load, resize_bilinear
from teka.data.hold_out import hold_out_test
from teka.data.image_folder import read_image_folder

HEIGHT, WIDTH = 5, 7


def pixels(seed: int, channels: int = 1, height: int = HEIGHT, width: int = WIDTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (channels, height, width), generator=generator, dtype=torch.uint8)


def picture(image: torch.Tensor) -> Image.Image:
    return Image.fromarray(image[0].numpy() if len(image) == 1 else image.permute(1, 2, 0).contiguous().numpy())


def put(path: Path, image: torch.Tensor | Image.Image) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image if isinstance(image, Image.Image) else picture(image)).save(path)
    return path


def put_classes(folder: Path, counts: dict[str, int], *, channels: int = 1, seed: int = 0) -> list[torch.Tensor]:
    """Pictures of some classes; returns their pixels in the order of sorted classes and names."""
    images = []
    for name in sorted(counts):
        for number in range(counts[name]):
            images.append(pixels(seed + len(images), channels))
            put(folder / name / f"{number:03}.png", images[-1])
    return images


@pytest.mark.parametrize("channels", [1, 3])
def test_without_parts_every_picture_is_in_just_one_part_with_its_class(tmp_path: Path, channels: int):
    images = torch.stack(put_classes(tmp_path, {"b": 4, "a": 3, "c": 6}, channels=channels))
    labels = torch.tensor([0] * 3 + [1] * 4 + [2] * 6)
    train, test, num_classes = read_image_folder(tmp_path)
    assert num_classes == 3
    for part, indices in zip((train, test), hold_out_test(13), strict=True):
        assert torch.equal(part.images, images[indices])
        assert torch.equal(part.labels, labels[indices])
        assert part.highest == 255


def test_train_and_test_folders_are_the_parts_whole_and_in_order(tmp_path: Path):
    train_images = put_classes(tmp_path / "train", {"a": 2, "b": 3, "c": 1})
    test_images = put_classes(tmp_path / "test", {"c": 2, "b": 1}, seed=50)
    train, test, num_classes = read_image_folder(tmp_path)
    assert num_classes == 3
    assert torch.equal(train.images, torch.stack(train_images))
    assert train.labels.tolist() == [0, 0, 1, 1, 1, 2]
    assert torch.equal(test.images, torch.stack(test_images))
    assert test.labels.tolist() == [1, 2, 2]


def test_a_class_may_be_named_as_a_part(tmp_path: Path):
    put_classes(tmp_path, {"bus": 3, "train": 3})
    assert read_image_folder(tmp_path)[2] == 2


def test_classes_are_sorted_by_name_as_text(tmp_path: Path):
    images = put_classes(tmp_path / "train", {"2": 1, "10": 1})
    put_classes(tmp_path / "test", {"2": 1})
    train, test, _ = read_image_folder(tmp_path)
    assert torch.equal(train.images, torch.stack(images))
    assert test.labels.tolist() == [1]


def test_hidden_files_and_files_beside_the_classes_are_not_looked_at(tmp_path: Path):
    put_classes(tmp_path, {"a": 3, "b": 3})
    for path in (tmp_path / "readme.txt", tmp_path / "a" / ".DS_Store"):
        path.write_text("no picture")
    (tmp_path / ".cache").mkdir()
    assert sum(map(len, read_image_folder(tmp_path)[:2])) == 6


@pytest.mark.parametrize("format_", ["png", "bmp", "tiff", "ppm"])
def test_lossless_formats_give_the_same_levels(tmp_path: Path, format_: str):
    put_classes(tmp_path / "train", {"a": 1, "b": 1})
    image = pixels(7)
    put(tmp_path / "test" / "a" / f"one.{format_}", image)
    _, test, _ = read_image_folder(tmp_path)
    assert torch.equal(test.images[0], image)


def test_a_jpeg_is_read_too(tmp_path: Path):
    put_classes(tmp_path / "train", {"a": 1, "b": 1})
    put(tmp_path / "test" / "a" / "one.jpg", torch.full((1, HEIGHT, WIDTH), 97, dtype=torch.uint8))
    _, test, _ = read_image_folder(tmp_path)
    assert (test.images == 97).all()


def test_a_palette_counts_as_colour(tmp_path: Path):
    put_classes(tmp_path / "train", {"a": 1, "b": 1})
    image = pixels(7)
    put(tmp_path / "test" / "a" / "one.gif", image)
    _, test, _ = read_image_folder(tmp_path)
    assert torch.equal(test.images[0], image.expand(3, -1, -1))


def test_one_colour_picture_makes_all_rgb(tmp_path: Path):
    grey = put_classes(tmp_path / "train", {"a": 2, "b": 1})
    colour = pixels(9, channels=3)
    put(tmp_path / "test" / "a" / "one.png", colour)
    train, test, _ = read_image_folder(tmp_path)
    assert torch.equal(train.images, torch.stack(grey).expand(-1, 3, -1, -1))
    assert torch.equal(test.images[0], colour)


def test_an_opaque_picture_with_an_alpha_channel_is_its_colours(tmp_path: Path):
    put_classes(tmp_path / "train", {"a": 1, "b": 1})
    colour = pixels(9, channels=3)
    opaque = torch.cat([colour, torch.full((1, HEIGHT, WIDTH), 255, dtype=torch.uint8)])
    put(tmp_path / "test" / "a" / "one.png", opaque)
    assert torch.equal(read_image_folder(tmp_path)[1].images[0], colour)


def test_the_noted_orientation_is_applied(tmp_path: Path):
    put_classes(tmp_path / "train", {"a": 1, "b": 1})
    image = pixels(9, height=WIDTH, width=HEIGHT)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    path = tmp_path / "test" / "a" / "one.png"
    path.parent.mkdir(parents=True)
    picture(image).save(path, exif=exif)
    assert torch.equal(read_image_folder(tmp_path)[1].images[0], image.rot90(-1, dims=(1, 2)))


@pytest.mark.parametrize("image_size", [11, (3, 13)])
def test_every_picture_is_resized_whatever_its_shape(tmp_path: Path, image_size: int | tuple[int, int]):
    shapes = [(5, 7), (7, 5), (11, 11), (3, 2)]
    images = [pixels(index, height=height, width=width) for index, (height, width) in enumerate(shapes)]
    for index, image in enumerate(images):
        put(tmp_path / "train" / "ab"[index // 2] / f"{index}.png", image)
    put(tmp_path / "test" / "a" / "0.png", images[0])
    train, _, _ = read_image_folder(tmp_path, image_size=image_size)
    assert torch.equal(train.images, torch.cat([resize_bilinear(image[None], image_size) for image in images]))


def test_the_first_picture_of_another_size_is_an_error_that_names_it(tmp_path: Path):
    put_classes(tmp_path, {"a": 3, "b": 3})
    put(tmp_path / "a" / "9.png", pixels(0, height=6))
    put(tmp_path / "b" / "9.png", pixels(0, height=8))
    with pytest.raises(ValueError, match=r"9\.png has 6 × 7 pixels, expected the 5 × 7 of .*000\.png; with image_size"):
        read_image_folder(tmp_path)


def transparent(mode: str) -> Image.Image:
    return Image.new(mode, (WIDTH, HEIGHT), (3, 97) if mode == "LA" else (3, 5, 7, 97))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        pytest.param(transparent("RGBA"), "the opacity of .*odd.png is '97 of 255'", id="transparent colours"),
        pytest.param(transparent("LA"), "the opacity of .*odd.png is '97 of 255'", id="transparent grey"),
        pytest.param(
            Image.fromarray(np.full((HEIGHT, WIDTH), 3000, dtype=np.uint16)),
            "the pixel type of .*odd.png is 'I;16', expected 8 bits a channel",
            id="16 bits",
        ),
    ],
)
def test_a_picture_that_would_lose_something_is_an_error_that_names_it(tmp_path: Path, image: Image.Image, message):
    put_classes(tmp_path, {"a": 3, "b": 3})
    put(tmp_path / "b" / "odd.png", image)
    with pytest.raises(ValueError, match=message):
        read_image_folder(tmp_path)


def test_a_file_that_is_no_picture_is_an_error_that_names_it(tmp_path: Path):
    put_classes(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "a" / "notes.txt").write_text("no picture")
    with pytest.raises(ValueError, match=r"notes\.txt is no picture that can be read"):
        read_image_folder(tmp_path)


def test_a_folder_of_another_layout_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(ValueError, match=r"the classes of .* is 'none', expected at least two"):
        read_image_folder(tmp_path)
    put_classes(tmp_path, {"train": 3})
    with pytest.raises(ValueError, match=r"the classes of .* is '1 \(train\)', expected at least two"):
        read_image_folder(tmp_path)
    (tmp_path / "validation").mkdir()
    with pytest.raises(ValueError, match=r"the pictures in .*validation is 'none'"):
        read_image_folder(tmp_path)
    put_classes(tmp_path / "validation", {"a": 2})
    with pytest.raises(ValueError, match=r"the pictures in .*validation is 'the folder a', expected files only"):
        read_image_folder(tmp_path)
    (tmp_path / "test").mkdir()
    with pytest.raises(ValueError, match=r"only train and test, or only classes; not \['validation'\]"):
        read_image_folder(tmp_path)


def test_a_class_of_the_test_part_alone_is_an_error_that_names_it(tmp_path: Path):
    put_classes(tmp_path / "train", {"a": 1, "b": 1})
    put_classes(tmp_path / "test", {"a": 1, "c": 1})
    with pytest.raises(ValueError, match=r"the classes of .*test is 'c', expected those of .*train: a, b"):
        read_image_folder(tmp_path)


def test_without_pillow_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put_classes(tmp_path, {"a": 3, "b": 3})
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install teka\[train\]"):
        read_image_folder(tmp_path)


def test_a_folder_is_loaded_by_its_path_with_a_tenth_for_validation(tmp_path: Path):
    put_classes(tmp_path / "pictures", {"a": 15, "b": 16}, channels=3)
    dataset = load(str(tmp_path / "pictures"))
    assert (dataset.num_classes, dataset.image_size, dataset.in_channels) == (2, (HEIGHT, WIDTH), 3)
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [23, 2, 6]
    assert load(str(tmp_path / "pictures"), image_size=(3, 4)).image_size == (3, 4)
