import pickle
import shutil
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from teka.audit.adapters import Preprocessing
from teka.audit.adapters.inputs import ImageOptions, load_audit_images
from teka.data import Dataset, from_arrays, load, resize_bilinear
from teka.data.custom_images import (
    copy_arrays_to_dataset,
    list_labeled_pictures,
    read_npz,
    read_picture_dataset,
)
from teka.data.dataset import RawDataset, draw_train_and_test_indices
from teka.data.pictures import PictureFiles
from teka.prediction import read_images

GENERATOR = np.random.default_rng(0)
BYTES = GENERATOR.integers(0, 256, (23, 3, 5, 7), dtype=np.uint8)  # N, C, H, W
LABELS = np.arange(23) % 4
TEST_BYTES, TEST_LABELS = BYTES[:6][:, :, ::-1], np.arange(6) % 5
TEST = {"test_images": TEST_BYTES, "test_labels": TEST_LABELS}
IMAGES_BY_AXES = {"NCHW": BYTES, "NHWC": BYTES.transpose(0, 2, 3, 1), "NHW": BYTES[:, 0]}
HEIGHT, WIDTH = 5, 7


def read_arrays(
    images: np.ndarray | torch.Tensor = BYTES, labels: np.ndarray | torch.Tensor = LABELS, **options
) -> tuple[Any, Any, Any]:
    axes = options.pop("axes", None)
    return train_and_test(
        copy_arrays_to_dataset({"images": images, "labels": labels, **options}, axes)
    )


def read_folder(folder: Path, **options) -> tuple[Any, Any, Any]:
    """Return the pictures of a folder, read into memory."""
    return train_and_test(read_picture_dataset(folder, **{"image_size": None, **options}))


def train_and_test(raw: RawDataset) -> tuple[Any, Any, Any]:
    splits = [raw.train, raw.test]
    if raw.test is None:
        splits = [
            raw.train.take(indices) for indices in draw_train_and_test_indices(len(raw.train))
        ]
    if isinstance(raw.train.images, PictureFiles):
        splits = [split.to_intensities() for split in splits]
    return splits[0], splits[1], raw.class_names


def test_axes_are_permuted_to_nchw():
    for axes in IMAGES_BY_AXES:
        for declared in [True, False]:
            for as_tensor in [True, False]:
                images = IMAGES_BY_AXES[axes]
                given = (
                    (torch.from_numpy(images.copy()), torch.from_numpy(LABELS))
                    if as_tensor
                    else (images, LABELS)
                )
                train, test, class_names = read_arrays(*given, axes=axes if declared else None)
                expected = torch.from_numpy(BYTES[:, :1] if axes == "NHW" else BYTES)
                assert class_names is None
                for part, indices in zip(
                    (train, test), draw_train_and_test_indices(23), strict=True
                ):
                    assert part.images.dtype == torch.uint8
                    assert torch.equal(part.images, expected[indices])
                    assert torch.equal(part.labels, torch.from_numpy(LABELS)[indices])


def test_given_test_images_are_used_in_order():
    train, test, _ = read_arrays(test_images=TEST_BYTES, test_labels=TEST_LABELS)
    assert torch.equal(train.images, torch.from_numpy(BYTES))
    assert torch.equal(test.images, torch.from_numpy(TEST_BYTES.copy()))
    assert test.labels.tolist() == TEST_LABELS.tolist()


def test_floating_point_arrays_are_intensities():
    for dtype in ["float16", "float32", "float64", ">f4"]:
        images = (BYTES / 255).astype(dtype)
        train, test, _ = read_arrays(images)
        for part, indices in zip((train, test), draw_train_and_test_indices(23), strict=True):
            assert part.images.dtype == torch.float32
            assert torch.equal(part.images, torch.from_numpy(images.astype(np.float32))[indices])


def test_tensors_of_every_float_dtype_are_intensities():
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        arrays = {"images": torch.from_numpy(BYTES / 255).to(dtype), "labels": LABELS}
        train = copy_arrays_to_dataset(arrays, None).train
        assert train.images.dtype == torch.float32


def test_empty_test_images_are_an_error():
    with pytest.raises(
        ValueError,
        match=r"the number of images must be at least 1 .*got 23 for training and 0 for test",
    ):
        from_arrays(BYTES, LABELS, axes="NCHW", test_images=BYTES[:0], test_labels=LABELS[:0])


def test_labels_can_have_any_integer_dtype():
    for dtype in ["int8", "uint16", "int32", ">i8", "uint64"]:
        train, _, _ = read_arrays(labels=LABELS.astype(dtype))
        assert train.labels.dtype == torch.int64
        assert torch.equal(
            train.labels, torch.from_numpy(LABELS)[draw_train_and_test_indices(23)[0]]
        )


def test_arrays_are_copied():
    for factor in [1, 1 / 255]:
        images, labels = (
            (BYTES if factor == 1 else (BYTES * factor).astype(np.float32)).copy(),
            LABELS.copy(),
        )
        train, test, _ = read_arrays(images, labels)
        before = train.images.clone(), train.labels.clone(), test.images.clone()
        images[:], labels[:] = 0, 0
        for tensor, expected in zip((train.images, train.labels, test.images), before, strict=True):
            assert torch.equal(tensor, expected)


def test_ambiguous_axes_are_an_error():
    for shape in [(23, 3, 5, 3), (23, 1, 5, 1), (23, 4, 5, 7), (23, 1, 5, 3)]:
        images = np.zeros(shape, dtype=np.uint8)
        with pytest.raises(
            ValueError,
            match=r"axes must be 'NHWC' or 'NCHW', got None\. The shape of images, .* is ambiguous",
        ):
            read_arrays(images)
        for axes in ("NHWC", "NCHW"):
            train, _, _ = read_arrays(images, axes=axes)
            assert tuple(train.images.shape[1:]) == (
                shape[1:] if axes == "NCHW" else (shape[3], *shape[1:3])
            )


def test_malformed_arrays_are_an_error_with_their_name():
    for options, message in [
        ({"images": BYTES[0, 0]}, r"images must have shape \(N, H, W\).*got \(5, 7\)"),
        ({"axes": "NHW"}, r"images must have shape \(N, H, W\).*got \(23, 3, 5, 7\)"),
        ({"axes": "NWH"}, "axes must be one of .*got 'NWH'.*Did you mean 'NHW'"),
        ({"labels": LABELS[:-1]}, r"labels must have shape \(23,\).*got \(22,\)"),
        ({"labels": LABELS[:, None]}, r"labels must have .*got \(23, 1\)"),
        ({"labels": LABELS / 1}, r"labels\.dtype must be an integer dtype.*got 'float64'"),
        ({"labels": LABELS == 0}, r"labels\.dtype must be .*got 'bool'"),
        ({"labels": LABELS - 1}, r"label in labels must be at least 0, got .*-1"),
        ({"images": BYTES.astype(np.int64)}, r"images\.dtype must be uint8.*got 'int64'"),
        ({"images": BYTES > 3}, r"images\.dtype must be .*got 'bool'"),
        (
            {"images": BYTES.astype(np.float32)},
            r"images must be intensities from 0 to 1.*got from 0\.0 to 255\.0",
        ),
        ({"images": BYTES / 255 - 0.5}, "intensities from 0 to 1"),
        ({"images": np.full(BYTES.shape, np.nan)}, r"images must be .*got from nan to nan"),
        (
            {"test_images": TEST_BYTES},
            "test_labels must be given together with test_images and test_labels, got None",
        ),
        (
            {"test_labels": TEST_LABELS},
            "test_images must be given together with test_images and test_labels, got None",
        ),
        (
            {"test_images": TEST_BYTES, "test_labels": LABELS},
            r"test_labels must have shape \(6,\).*got \(23,\)",
        ),
        (
            {"images": BYTES[:4], "labels": LABELS[:4]},
            "the number of images must be at least 5, got 4",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            read_arrays(**options)


def test_from_arrays_splits_like_load():
    dataset = from_arrays(
        BYTES, LABELS, test_images=TEST_BYTES, test_labels=TEST_LABELS, validation_size=5, seed=3
    )
    order = np.random.default_rng(3).permutation(23)
    assert torch.equal(dataset.train.images, torch.from_numpy(BYTES[order[:18]]) / 255)
    assert torch.equal(dataset.validation.images, torch.from_numpy(BYTES[order[18:]]) / 255)
    assert torch.equal(dataset.test.images, torch.from_numpy(TEST_BYTES / np.float32(255)))
    assert (dataset.name, dataset.num_classes, dataset.image_size, dataset.in_channels) == (
        "arrays",
        5,
        (5, 7),
        3,
    )


def test_the_test_split_depends_on_neither_seed_nor_sizes():
    first = from_arrays(BYTES, LABELS).test
    other = from_arrays(BYTES, LABELS, seed=5, validation_size=7, train_size=3).test
    assert torch.equal(first.images, other.images)
    assert torch.equal(first.labels, other.labels)


def test_validation_is_a_tenth_by_default():
    dataset = from_arrays(BYTES, LABELS)
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [18, 1, 4]


def test_image_size_resizes_bytes_and_is_an_error_for_floats():
    assert from_arrays(BYTES, LABELS, image_size=(11, 2)).image_size == (11, 2)
    with pytest.raises(
        ValueError, match=r"image_size must be None, got 11\. Floating-point images are not resized"
    ):
        from_arrays(BYTES / 255, LABELS, image_size=11)
    with pytest.raises(ValueError, match=r"image_size must be .*got 0"):
        from_arrays(BYTES, LABELS, image_size=0)


def test_test_images_of_another_size_are_an_error():
    with pytest.raises(
        ValueError, match=r"test\.images must have shape \(batch, 3, 5, 7\).*got \(6, 3, 5, 6\)"
    ):
        from_arrays(BYTES, LABELS, test_images=TEST_BYTES[..., :6], test_labels=TEST_LABELS)


def test_npz_file_gives_the_arguments_of_from_arrays(tmp_path: Path):
    for save in [np.savez, np.savez_compressed]:
        path = tmp_path / "arrays.npz"
        arrays = {
            "images": IMAGES_BY_AXES["NHWC"],
            "labels": LABELS,
            "test_images": TEST_BYTES.transpose(0, 2, 3, 1),
            "test_labels": TEST_LABELS,
        }
        save(path, axes="NHWC", **arrays)
        found = train_and_test(read_npz(path))
        expected = read_arrays(test_images=TEST_BYTES, test_labels=TEST_LABELS)
        assert found[2] == expected[2]
        for part, expected_part in zip(found[:2], expected[:2], strict=True):
            assert torch.equal(part.images, expected_part.images)
            assert torch.equal(part.labels, expected_part.labels)


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("X_train", "y_train", "X_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("x", "y", "x_test", "y_test"),
    ],
    ids=" ".join,
)
def test_npz_file_can_use_the_names_of_other_libraries(tmp_path: Path, names: tuple[str, ...]):
    arrays = (BYTES, LABELS[:, None], TEST_BYTES, TEST_LABELS)
    given: dict[str, Any] = dict(zip(names, arrays, strict=True))
    np.savez(tmp_path / "arrays.npz", **given)
    found = train_and_test(read_npz(tmp_path / "arrays.npz"))
    expected = read_arrays(**TEST)
    assert found[2] == expected[2]
    for part, other in zip(found[:2], expected[:2], strict=True):
        assert torch.equal(part.images, other.images)
        assert torch.equal(part.labels, other.labels)


def test_given_validation_images_are_used_for_validation(tmp_path: Path):
    path = tmp_path / "arrays.npz"
    np.savez(
        path,
        train_images=BYTES[:14],
        train_labels=LABELS[:14],
        val_images=BYTES[14:],
        val_labels=LABELS[14:],
        test_images=TEST_BYTES,
        test_labels=TEST_LABELS,
    )
    dataset = load(str(path))
    assert torch.equal(dataset.validation.images, torch.from_numpy(BYTES[14:] / np.float32(255)))
    assert dataset.validation.labels.tolist() == LABELS[14:].tolist()
    assert sorted(dataset.train.labels.tolist()) == sorted(LABELS[:14].tolist())
    assert len(dataset.test) == 6
    # With validation_size, the validation images are drawn from both.
    drawn, expected = (
        load(str(path), validation_size=5),
        from_arrays(BYTES, LABELS, **TEST, validation_size=5),
    )
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(drawn, part).images, getattr(expected, part).images)
        assert torch.equal(getattr(drawn, part).labels, getattr(expected, part).labels)


def test_validation_images_replace_missing_test_images(tmp_path: Path):
    path = tmp_path / "arrays.npz"
    np.savez(path, x_train=BYTES, y_train=LABELS, x_val=TEST_BYTES, y_val=TEST_LABELS)
    dataset = load(str(path))
    assert torch.equal(dataset.test.images, torch.from_numpy(TEST_BYTES / np.float32(255)))
    assert (len(dataset.train), len(dataset.validation)) == (21, 2)


def test_an_npz_file_is_loaded_by_its_path(tmp_path: Path):
    np.savez(tmp_path / "arrays.npz", images=BYTES, labels=LABELS)
    dataset = load(str(tmp_path / "arrays.npz"), validation_size=3)
    expected = from_arrays(BYTES, LABELS, validation_size=3)
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(dataset, part).images, getattr(expected, part).images)
        assert torch.equal(getattr(dataset, part).labels, getattr(expected, part).labels)


def write_single_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, BYTES)


class Dangerous:
    """An object that fails the test if it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("the object was unpickled",))


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        pytest.param(
            lambda path: np.savez(path, images=np.array([Dangerous()]), labels=LABELS),
            "Object arrays cannot be loaded",
            id="array of objects",
        ),
        pytest.param(
            lambda path: path.write_bytes(pickle.dumps(Dangerous())),
            "it is not a zip archive",
            id="bare pickle",
        ),
        pytest.param(
            lambda path: path.write_bytes(b""), "it is not a zip archive", id="empty file"
        ),
        pytest.param(
            lambda path: path.write_text("no arrays"), "it is not a zip archive", id="text"
        ),
        pytest.param(write_single_array, "it is not a zip archive", id="single array"),
        pytest.param(
            lambda path: np.savez(path, images=BYTES), "it has only images$", id="no labels"
        ),
        pytest.param(
            lambda path: np.savez(path, images=BYTES, labels=LABELS, weights=BYTES),
            "weights is not one of images, labels, .*, validation_labels, axes$",
            id="unknown key",
        ),
        pytest.param(
            lambda path: np.savez(path, images=BYTES, x=BYTES, labels=LABELS),
            "it has images twice, also as x$",
            id="images twice",
        ),
        pytest.param(
            lambda path: np.savez(path, images=BYTES, labels=LABELS[:3]),
            r"labels must have shape \(23,\)",
            id="wrong shape",
        ),
    ],
)
def test_invalid_npz_file_is_an_error_with_its_path_and_problem(tmp_path: Path, write, problem):
    path = tmp_path / "arrays.npz"
    write(path)
    message = rf"{path} must be a folder.* or an \.npz file of images and labels: {problem}"
    with pytest.raises(ValueError, match=message):
        read_npz(path)


def test_truncated_npz_file_is_an_error_with_its_path(tmp_path: Path):
    for save in [np.savez, np.savez_compressed]:
        path = tmp_path / "arrays.npz"
        save(path, images=BYTES, labels=LABELS)
        content = path.read_bytes()
        for kept in range(0, len(content), 1 + len(content) // 40):
            path.write_bytes(content[:kept])
            with pytest.raises(ValueError, match=str(path)):
                read_npz(path)


def test_a_changed_byte_is_an_error_or_has_no_effect(tmp_path: Path):
    for seed in range(4):
        path = tmp_path / "arrays.npz"
        np.savez_compressed(path, images=BYTES, labels=LABELS)
        content = bytearray(path.read_bytes())
        content[int(np.random.default_rng(seed).integers(len(content)))] ^= 255
        path.write_bytes(bytes(content))
        try:
            found = read_npz(path).train.images
        except ValueError as error:
            found = str(error)
        assert (
            str(path) in found
            if isinstance(found, str)
            else torch.equal(found, read_arrays()[0].images)
        )


def test_a_decompression_bomb_is_an_error(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("teka.files.MAX_UNPACKED_BYTES", 2**20)
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, images=np.zeros((64, 256, 256), np.uint8), labels=np.arange(64) % 2)
    tracemalloc.start()
    with pytest.raises(
        ValueError,
        match=r"the unpacked size of .*bomb\.npz must be at most 200.*got 4,19.,... bytes",
    ):
        read_npz(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    np.savez(path, images=np.zeros((64, 256, 256), np.uint8), labels=np.arange(64) % 2)
    assert len(read_npz(path).train) == 64


def random_pixels(
    seed: int, channels: int = 1, height: int = HEIGHT, width: int = WIDTH
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (channels, height, width), generator=generator, dtype=torch.uint8)


def to_picture(image: torch.Tensor) -> Image.Image:
    return Image.fromarray(
        image[0].numpy() if len(image) == 1 else image.permute(1, 2, 0).contiguous().numpy()
    )


def save_picture(path: Path, image: torch.Tensor | Image.Image) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image if isinstance(image, Image.Image) else to_picture(image)).save(path)
    return path


def save_classes(
    folder: Path, counts: dict[str, int], *, channels: int = 1, seed: int = 0
) -> list[torch.Tensor]:
    """Save pictures of classes, and return their pixels sorted by class and name."""
    images = []
    for name in sorted(counts):
        for number in range(counts[name]):
            images.append(random_pixels(seed + len(images), channels))
            save_picture(folder / name / f"{number:03}.png", images[-1])
    return images


@pytest.mark.parametrize("channels", [1, 3])
def test_folder_of_classes_is_split_into_training_and_test(tmp_path: Path, channels: int):
    images = torch.stack(save_classes(tmp_path, {"b": 4, "a": 3, "c": 6}, channels=channels)) / 255
    labels = torch.tensor([0] * 3 + [1] * 4 + [2] * 6)
    train, test, class_names = read_folder(tmp_path)
    assert class_names == ("a", "b", "c")
    for part, indices in zip((train, test), draw_train_and_test_indices(13), strict=True):
        assert torch.equal(part.images, images[indices])
        assert torch.equal(part.labels, labels[indices])


def test_train_and_test_folders_are_splits_in_order(tmp_path: Path):
    train_images = save_classes(tmp_path / "train", {"a": 2, "b": 3, "c": 1})
    test_images = save_classes(tmp_path / "test", {"c": 2, "b": 1}, seed=50)
    train, test, class_names = read_folder(tmp_path)
    assert class_names == ("a", "b", "c")
    assert torch.equal(train.images, torch.stack(train_images) / 255)
    assert train.labels.tolist() == [0, 0, 1, 1, 1, 2]
    assert torch.equal(test.images, torch.stack(test_images) / 255)
    assert test.labels.tolist() == [1, 2, 2]


def test_classes_are_sorted_as_numbers_or_as_words(tmp_path: Path):
    for number, (names, expected) in enumerate(
        [
            (("10", "2", "0"), ["0", "2", "10"]),
            (("010", "2", "-3"), ["-3", "2", "010"]),
            (("1", "01", "2"), ["01", "1", "2"]),  # not all integers are different
            (("10", "2", "a"), ["10", "2", "a"]),
            (("class_10", "class_2"), ["class_10", "class_2"]),
        ]
    ):
        folder = tmp_path / str(number)
        for part in ("train", "test"):
            save_classes(folder / part, dict.fromkeys(names, 1))
        assert list_labeled_pictures(folder)[1] == expected
        train, test, _ = read_folder(folder)
        assert (
            train.labels.tolist()
            == test.labels.tolist()
            == [expected.index(name) for name in sorted(names)]
        )


def test_hidden_files_and_files_beside_classes_are_ignored(tmp_path: Path):
    save_classes(tmp_path, {"a": 3, "b": 3})
    for path in (tmp_path / "readme.txt", tmp_path / "a" / ".DS_Store"):
        path.write_text("no picture")
    (tmp_path / ".cache").mkdir()
    assert sum(map(len, read_folder(tmp_path)[:2])) == 6


@pytest.mark.parametrize("format_", ["png", "bmp", "tiff", "ppm"])
def test_lossless_formats_give_the_same_pixels(tmp_path: Path, format_: str):
    save_classes(tmp_path / "train", {"a": 1, "b": 1})
    image = random_pixels(7)
    save_picture(tmp_path / "test" / "a" / f"one.{format_}", image)
    _, test, _ = read_folder(tmp_path)
    assert torch.equal(test.images[0], image / 255)


def test_picture_with_a_palette_is_color(tmp_path: Path):
    save_classes(tmp_path / "train", {"a": 1, "b": 1})
    image = random_pixels(7)
    save_picture(tmp_path / "test" / "a" / "one.gif", image)
    _, test, _ = read_folder(tmp_path)
    assert torch.equal(test.images[0], image.expand(3, -1, -1) / 255)


def test_one_color_picture_makes_all_pictures_rgb(tmp_path: Path):
    gray = save_classes(tmp_path / "train", {"a": 2, "b": 1})
    color = random_pixels(9, channels=3)
    save_picture(tmp_path / "test" / "a" / "one.png", color)
    train, test, _ = read_folder(tmp_path)
    assert torch.equal(train.images, torch.stack(gray).expand(-1, 3, -1, -1) / 255)
    assert torch.equal(test.images[0], color / 255)


def test_an_opaque_alpha_channel_is_dropped(tmp_path: Path):
    save_classes(tmp_path / "train", {"a": 1, "b": 1})
    color = random_pixels(9, channels=3)
    opaque = torch.cat([color, torch.full((1, HEIGHT, WIDTH), 255, dtype=torch.uint8)])
    save_picture(tmp_path / "test" / "a" / "one.png", opaque)
    assert torch.equal(read_folder(tmp_path)[1].images[0], color / 255)


@pytest.mark.parametrize("image_size", [(11, 11), (3, 13)])
def test_pictures_of_all_sizes_are_resized(tmp_path: Path, image_size: tuple[int, int]):
    shapes = [(5, 7), (7, 5), (11, 11), (3, 2)]
    images = [
        random_pixels(index, height=height, width=width)
        for index, (height, width) in enumerate(shapes)
    ]
    for index, image in enumerate(images):
        save_picture(tmp_path / "train" / "ab"[index // 2] / f"{index}.png", image)
    save_picture(tmp_path / "test" / "a" / "0.png", images[0])
    train, _, _ = read_folder(tmp_path, image_size=image_size)
    expected = torch.cat([resize_bilinear(image[None], image_size) for image in images])
    assert torch.equal(train.images, expected / 255)


def test_a_picture_of_another_size_is_an_error_with_its_path(tmp_path: Path):
    save_classes(tmp_path, {"a": 3, "b": 3})
    save_picture(tmp_path / "a" / "9.png", random_pixels(0, height=6))
    save_picture(tmp_path / "b" / "9.png", random_pixels(0, height=8))
    with pytest.raises(
        ValueError, match=r"size of .*9\.png must be \(5, 7\), .*got \([68], 7\)\. Pass image_size"
    ):
        read_folder(tmp_path)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F"])
def test_training_prediction_and_audits_read_pictures_alike(tmp_path: Path, mode: str):
    gray = np.random.default_rng(2).integers(0, 256, (HEIGHT, WIDTH), dtype=np.uint8)
    deep = {"I;16": gray.astype(np.uint16) * 257, "F": gray / np.float32(255)}
    image = Image.fromarray(deep[mode]) if mode in deep else Image.fromarray(gray).convert(mode)
    if mode in ("LA", "RGBA"):
        image.putalpha(97)
    exif = Image.Exif()
    exif[0x0112] = 6
    for part in ("train", "test"):
        for name in ("a", "b"):
            path = tmp_path / part / name / "one.tif"
            path.parent.mkdir(parents=True)
            image.save(path, exif=exif)
    dataset = load(str(tmp_path), validation_size=0)
    channels = 1 if mode in ("1", "L", "LA", "I;16", "F") else 3
    assert dataset.in_channels == channels
    assert dataset.image_size == (WIDTH, HEIGHT)
    files = [tmp_path / "test" / name / "one.tif" for name in ("a", "b")]
    predicted = read_images(files, {}, image_size=dataset.image_size, in_channels=channels)
    audited = load_audit_images(ImageOptions(str(tmp_path)), Preprocessing()).images
    assert torch.equal(dataset.test.images, predicted)
    assert torch.equal(dataset.test.images, audited)
    if mode in ("L", "P", "RGB", "I;16", "F"):
        assert torch.equal(audited[0, 0], torch.from_numpy(np.rot90(gray, -1) / np.float32(255)))


def test_a_file_that_is_not_a_picture_is_an_error(tmp_path: Path):
    save_classes(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "a" / "notes.txt").write_text("no picture")
    with pytest.raises(ValueError, match=r"notes\.txt must be a readable picture"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (("train", "val"), {"train": "train", "test": "val"}),
        (("Training", "Validation"), {"train": "Training", "test": "Validation"}),
        (("train", "valid", "test"), {"train": "train", "validation": "valid", "test": "test"}),
        (("training", "testing"), {"train": "training", "test": "testing"}),
    ],
    ids=str,
)
def test_folders_of_splits_can_have_the_usual_names(tmp_path: Path, folders, expected):
    counts = {folder: 11 + number for number, folder in enumerate(folders)}
    images = {
        folder: save_classes(tmp_path / folder, {"a": 1, "b": count - 1})
        for folder, count in counts.items()
    }
    dataset = load(str(tmp_path))
    assert dataset.num_classes == 2
    sizes = {part: counts[folder] for part, folder in expected.items()}
    drawn = 0 if "validation" in expected else 1
    assert len(dataset.train) == sizes["train"] - drawn
    assert len(dataset.validation) == sizes.get("validation", drawn)
    for part in set(expected) - {"train"}:
        found = getattr(dataset, part)
        assert torch.equal(found.images, torch.stack(images[expected[part]]) / 255)
        assert found.labels.tolist() == [0] + [1] * (sizes[part] - 1)


def test_validation_size_draws_from_training_and_validation_folders(tmp_path: Path):
    for part, count in (("train", 4), ("val", 3), ("test", 2)):
        save_classes(tmp_path / part, {"a": count, "b": 1})
    dataset = load(str(tmp_path), validation_size=2)
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [7, 2, 3]


def test_invalid_folder_layout_is_an_error(tmp_path: Path):
    with pytest.raises(ValueError, match=r"the classes of .* must be at least two.*got \[\]"):
        read_folder(tmp_path)
    save_classes(tmp_path, {"train": 3})
    with pytest.raises(
        ValueError, match=r"the classes of .* must be at least two.*got \['train'\]"
    ):
        read_folder(tmp_path)
    save_classes(tmp_path, {"bus": 3, "train/cat": 3})
    with pytest.raises(
        ValueError, match=r"the files in .*train must be .* no folders, got \['cat'\]"
    ):
        read_folder(tmp_path)
    (tmp_path / "validation").mkdir()
    with pytest.raises(
        ValueError,
        match=r"one each for train, val and test, or only classes, .*\['bus', 'train', 'val",
    ):
        read_folder(tmp_path)
    (tmp_path / "val").mkdir()
    shutil.rmtree(tmp_path / "bus")
    with pytest.raises(ValueError, match=r"one each for train.*\['train', 'val', 'validation'"):
        read_folder(tmp_path)


def test_a_class_without_training_pictures_is_an_error(tmp_path: Path):
    save_classes(tmp_path / "train", {"a": 1, "b": 1})
    save_classes(tmp_path / "test", {"a": 1, "c": 1})
    with pytest.raises(ValueError, match=r"the test classes of .* must be .*: a, b, got \['c'\]"):
        read_folder(tmp_path)


def test_missing_pillow_is_an_error_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    save_classes(tmp_path, {"a": 3, "b": 3})
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'teka\[train\]'"):
        read_folder(tmp_path)


def test_folder_is_loaded_by_its_path(tmp_path: Path):
    save_classes(tmp_path / "pictures", {"a": 15, "b": 16}, channels=3)
    dataset = load(str(tmp_path / "pictures"))
    assert (dataset.num_classes, dataset.image_size, dataset.in_channels) == (2, (HEIGHT, WIDTH), 3)
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [23, 2, 6]
    assert load(str(tmp_path / "pictures"), image_size=(3, 4)).image_size == (3, 4)


def test_class_can_be_named_like_a_split(tmp_path: Path):
    save_classes(tmp_path, {"bus": 3, "train": 3})
    assert read_folder(tmp_path)[2] == ("bus", "train")


def test_jpeg_files_are_read(tmp_path: Path):
    save_classes(tmp_path / "train", {"a": 1, "b": 1})
    save_picture(
        tmp_path / "test" / "a" / "one.jpg", torch.full((1, HEIGHT, WIDTH), 97, dtype=torch.uint8)
    )
    _, test, _ = read_folder(tmp_path)
    assert (test.images == 97 / 255).all()


def test_the_exif_orientation_is_applied(tmp_path: Path):
    save_classes(tmp_path / "train", {"a": 1, "b": 1})
    image = random_pixels(9, height=WIDTH, width=HEIGHT)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was rotated by 90°
    path = tmp_path / "test" / "a" / "one.png"
    path.parent.mkdir(parents=True)
    to_picture(image).save(path, exif=exif)
    assert torch.equal(read_folder(tmp_path)[1].images[0], image.rot90(-1, dims=(1, 2)) / 255)


def write_csv(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_a_csv_file_labels_the_pictures_of_a_flat_folder(tmp_path: Path):
    images = torch.stack([save_numbered_picture(tmp_path / "flat", number) for number in range(10)])
    rows = [f"{number}.png,{10 + number % 2}," for number in range(10)]  # with an empty cell
    path = write_csv(tmp_path / "flat" / "labels.csv", "file,label", *rows)
    csv_next_to_the_folder = write_csv(tmp_path / "more.csv", "label,file,author", *(
        f"{10 + number % 2},flat/{number}.png,me" for number in range(10)
    ))  # fmt: skip
    for csv_file in (path, csv_next_to_the_folder):
        dataset = load(str(csv_file))
        train, test = draw_train_and_test_indices(10)
        assert torch.equal(dataset.test.images, images[test] / 255)
        assert dataset.test.labels.tolist() == (test % 2).tolist()
        assert len(dataset.train) + len(dataset.validation) == len(train)
        assert dataset.class_names == ("10", "11")
        audited = load_audit_images(ImageOptions(str(csv_file)), Preprocessing())
        assert torch.equal(audited.images, images / 255)
        assert audited.class_names == ("10", "11")


def test_blanks_around_the_labels_of_a_csv_file_are_ignored(tmp_path: Path):
    labels = ("cat", " cat", "cat ", "\tcat", "black dog", " black dog\u00a0")
    for number in range(len(labels)):
        save_numbered_picture(tmp_path, number)
    rows = [f"{number}.png, {label}" for number, label in enumerate(labels)]
    pictures, classes = list_labeled_pictures(
        write_csv(tmp_path / "labels.csv", "file , label ", *rows)
    )
    assert classes == ["black dog", "cat"]
    assert [label for _, label in pictures["train"]] == [1, 1, 1, 1, 0, 0]


def save_numbered_picture(folder: Path, number: int) -> torch.Tensor:
    save_picture(folder / f"{number}.png", random_pixels(number))
    return random_pixels(number)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ["file,class", "0.png,a"],
            r"row 1 of .*labels\.csv must be a header with .*file and label",
        ),
        ([], r"row 1 of .* must be a header"),
        (["file,label", "0.png,a", "9.png,b"], r"file in row 3 of .* existing file.*got '9\.png'"),
        (["file,label", "0.png,a", "0.png,b"], r"file in row 3 of .*got '0\.png'"),
        (["file,label", "0.png,a", ",b"], r"file in row 3 of .*got ''"),
        (["file,label", "0.png,a", "./x/../0.png,b"], r"file in row 3 of .*no other row names"),
        (["file,label", "0.png,a", f"{'x' * 300},b"], r"file in row 3 of .* existing file"),
        (["file,label,label", "0.png,a,b", "1.png,b,a"], "row 1 of .* a header"),
        (["file,label", "0.png,a, b", "1.png,b"], "row 2 of .*at most 2 values.*quotation marks"),
        (["file,label", "0.png", "1.png,b"], "label in row 2 of .*name of a class, got None"),
        (["file,label", "0.png,", "1.png,b"], "label in row 2 of .*name of a class, got ''"),
        (["file,label", "0.png,a", "1.png,a"], r"classes of .*at least two.*got \['a'\]"),
        (["file,label", "0.png,a\0", "1.png,b"], "."),
    ],
)
def test_invalid_row_of_a_csv_file_is_an_error_with_its_number(
    tmp_path: Path, rows: list[str], message: str
):
    for number in range(3):
        save_numbered_picture(tmp_path, number)
    path = write_csv(tmp_path / "labels.csv", *rows)
    if message == ".":
        path.write_bytes(b"file,label\n\xff,a\n")
        message = r"labels\.csv must be a CSV file in UTF-8"
    with pytest.raises(ValueError, match=message):
        load(str(path))


def is_streaming(dataset: Dataset) -> bool:
    return isinstance(dataset.train.images, PictureFiles)


def test_streamed_pictures_equal_pictures_in_memory(tmp_path: Path):
    for split, count in (("train", 12), ("val", 3), ("test", 4)):
        save_classes(tmp_path / split, {"a": count, "b": 2}, channels=3)
    choices: list[dict[str, Any]] = [{}, {"image_size": (3, 4)}, {"train_size": 5}]
    choices.append({"train_size": 5, "validation_size": 6})
    for options in choices:
        memory = load(str(tmp_path), **options)
        streamed = load(str(tmp_path), stream=True, **options)
        assert is_streaming(streamed)
        assert not is_streaming(memory)
        assert streamed.sizes == memory.sizes
        for split in ("train", "validation", "test"):
            first, second = getattr(memory, split), getattr(streamed, split)
            assert torch.equal(first.images, second.images[:])
            assert torch.equal(first.labels, second.labels)


def test_pictures_larger_than_a_quarter_of_the_memory_are_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    save_classes(tmp_path, {"a": 5, "b": 5})
    num_bytes = 10 * 4 * HEIGHT * WIDTH
    for memory, expected in ((4 * num_bytes, False), (4 * num_bytes - 4, True)):
        monkeypatch.setattr("teka.data.dataset.memory_bytes", lambda memory=memory: memory)
        assert is_streaming(load(str(tmp_path))) == expected
        assert not is_streaming(load(str(tmp_path), stream=False))
    np.savez(tmp_path / "arrays.npz", images=BYTES, labels=LABELS)
    assert not is_streaming(load(str(tmp_path / "arrays.npz"), stream=True))


def test_streaming_reads_only_the_pictures_of_a_batch(tmp_path: Path):
    save_classes(tmp_path, {"a": 5, "b": 5})
    dataset = load(str(tmp_path), stream=True)
    for path in dataset.train.images.paths[2:]:
        path.write_bytes(b"damaged")
    assert len(dataset.train[:2][0]) == 2
    with pytest.raises(ValueError, match="must be a readable picture"):
        dataset.train[1:3]


def test_file_that_is_no_data_set_is_an_error_that_lists_the_formats(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(b"picture")
    with pytest.raises(
        ValueError, match=r"a folder of pictures, .*\.npz .*it is not a zip archive"
    ):
        load(str(tmp_path / "a.png"))
