from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from teka.data import Dataset, download, load, resize_bilinear
from teka.data.published import PUBLISHED_DATASETS


@pytest.fixture
def load_mnist(idx_dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that loads a small data set under the name of MNIST."""
    monkeypatch.setitem(PUBLISHED_DATASETS, "mnist", idx_dataset.published)
    idx_dataset.write(tmp_path)

    def load_with(**options: Any) -> Dataset:
        options.setdefault("validation_size", 5)
        return load("mnist", data_dir=tmp_path, **options)

    return load_with


def image_numbers(images: torch.Tensor) -> list[int]:
    """Return the numbers of synthetic images, which are their first pixels."""
    return (images[:, 0, 0, 0] * 255).round().int().tolist()


def test_digits_have_the_documented_sizes():
    dataset = load("digits")
    assert dataset.name == "digits"
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (1300, 137, 360)
    assert (dataset.num_classes, dataset.image_size, dataset.in_channels) == (10, (16, 16), 1)
    assert dataset.train.images.dtype == torch.float32
    assert dataset.train.images.max() == 1
    for split in (dataset.train, dataset.validation, dataset.test):
        assert not split.images[:, :, :4].any()
        assert split.labels.unique().tolist() == list(range(10))


def test_the_image_size_of_digits_is_the_canvas_size():
    dataset = load("digits", image_size=(11, 17))
    assert dataset.image_size == (11, 17)
    assert torch.equal(
        dataset.test.images[:, :, 1:9, 4:12], load("digits", image_size=8).test.images
    )


def test_intensities_are_the_published_bytes_over_255(idx_dataset, load_mnist):
    dataset = load_mnist()
    assert torch.equal(dataset.test.images, idx_dataset.splits[1][0].float() / 255)
    assert torch.equal(dataset.test.labels, idx_dataset.splits[1][1])
    assert (dataset.num_classes, dataset.image_size, dataset.in_channels) == (3, (7, 11), 1)


def test_validation_images_are_the_last_of_a_seeded_order(idx_dataset, load_mnist):
    dataset = load_mnist(validation_size=5, seed=3)
    order = np.random.default_rng(3).permutation(23).tolist()
    assert image_numbers(dataset.train.images) == order[:18]
    assert image_numbers(dataset.validation.images) == order[18:]
    assert torch.equal(dataset.train.labels, idx_dataset.splits[0][1][order[:18]])
    assert torch.equal(dataset.validation.labels, idx_dataset.splits[0][1][order[18:]])


def test_train_size_takes_the_first_images_and_changes_no_other_split(load_mnist):
    every, some = load_mnist(), load_mnist(train_size=7)
    assert image_numbers(some.train.images) == image_numbers(every.train.images)[:7]
    assert torch.equal(some.validation.images, every.validation.images)
    assert torch.equal(some.test.images, every.test.images)


def test_validation_size_0_uses_all_images_for_training(load_mnist):
    dataset = load_mnist(validation_size=0)
    assert sorted(image_numbers(dataset.train.images)) == list(range(23))
    assert dataset.validation.images.shape == (0, 1, 7, 11)


def test_all_splits_are_resized(idx_dataset, load_mnist):
    dataset = load_mnist(image_size=(13, 5))
    assert dataset.image_size == (13, 5)
    for part, images in (("train", idx_dataset.splits[0][0]), ("test", idx_dataset.splits[1][0])):
        order = np.random.default_rng(0).permutation(23)[:18] if part == "train" else np.arange(5)
        expected = resize_bilinear(images, (13, 5))[torch.from_numpy(order)].float() / 255
        assert torch.equal(getattr(dataset, part).images, expected)
    assert load_mnist(image_size=13, validation_size=0).validation.images.shape == (0, 1, 13, 13)


def test_an_unknown_name_is_an_error_with_the_closest_name():
    expected = (
        "one of 'cifar10', 'digits', 'fashion-mnist', 'mnist', got 'mnits'. Did you mean 'mnist'"
    )
    with pytest.raises(ValueError, match=f"{expected}"):
        load("mnits")


def test_missing_files_are_an_error_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ["mnist", "fashion-mnist", "cifar10"]:
        dataset = replace(PUBLISHED_DATASETS[name], system_folder=tmp_path / "system")
        monkeypatch.setitem(PUBLISHED_DATASETS, name, dataset)
        with pytest.raises(ValueError, match=f"the files of {name} must be") as caught:
            load(name, data_dir=tmp_path)
        for text in (
            str(tmp_path / dataset.folder),
            str(tmp_path / "system"),
            dataset.files[0].name,
            f"Run `teka download {name} --data-dir {tmp_path}`",
        ):
            assert text in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("image_size", [None, (13, 5)], ids=["as published", "resized"])
def test_color_images_are_scaled_and_resized(
    record_dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image_size: Any
):
    monkeypatch.setitem(PUBLISHED_DATASETS, "cifar10", record_dataset.published)
    record_dataset.write(tmp_path)
    dataset = load("cifar10", data_dir=tmp_path, image_size=image_size, validation_size=4)
    assert (dataset.in_channels, dataset.image_size) == (3, image_size or (7, 11))
    order = torch.from_numpy(np.random.default_rng(0).permutation(15))
    train, test = record_dataset.splits
    for name, (images, labels), chosen in (
        ("train", train, order[:11]),
        ("validation", train, order[11:]),
        ("test", test, torch.arange(5)),
    ):
        expected = images[chosen]
        if image_size is not None:
            expected = resize_bilinear(expected, image_size)
        assert torch.equal(getattr(dataset, name).images, expected.float() / 255)
        assert torch.equal(getattr(dataset, name).labels, labels[chosen])


def test_invalid_size_is_an_error():
    for options, message in [
        ({"image_size": 7}, r"image_size must be .*each at least 8 pixels.*got 7"),
        (
            {"image_size": (8, 8, 8)},
            r"image_size must be .*each at least 8 pixels.*got \(8, 8, 8\)",
        ),
        ({"image_size": (16, 7)}, r"image_size must be .*each at least 8 pixels.*got \(16, 7\)"),
        ({"image_size": (8,)}, r"image_size must be .*got \(8,\)"),
        ({"image_size": (7, 16)}, r"image_size must be .*each at least 8 pixels.*got \(7, 16\)"),
        ({"image_size": -8}, r"image_size must be .*got -8"),
        ({"validation_size": -1}, "validation_size must be at least 0.*got -1"),
        ({"validation_size": 1437}, "validation_size must be a whole number up to 1436.*got 1437"),
        ({"train_size": 0}, "train_size must be at least 1.*got 0"),
        ({"train_size": 1301}, "train_size must be a whole number up to 1300.*got 1301"),
        (
            {"train_size": 1001, "validation_size": 437},
            "train_size must be a whole number up to 1000.*got 1001",
        ),
        ({"seed": -1}, "seed must be at least 0.*got -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            load("digits", **options)


def test_an_image_size_of_zero_is_an_error(load_mnist):
    with pytest.raises(ValueError, match=r"image_size must be .*got 0"):
        load_mnist(image_size=0)


def test_relative_path_is_searched_in_data_dir_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for folder, level in ((tmp_path, 3), (tmp_path / "data", 5)):
        folder.mkdir(exist_ok=True)
        images = np.full((5, 3, 7), level, dtype=np.uint8)
        np.savez(folder / "arrays.npz", images=images, labels=np.arange(5))
    monkeypatch.chdir(tmp_path)
    for data_dir, level in ((None, 3), ("elsewhere", 3), ("data", 5)):
        assert (
            load("arrays.npz", data_dir=data_dir).test.images * 255
        ).round().unique().tolist() == [level]
    assert (
        load(str(tmp_path / "arrays.npz"), data_dir="data").test.images * 255
    ).round().unique().tolist() == [3]


def test_name_of_a_data_set_takes_precedence_over_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load("digits").num_classes == 10
    with pytest.raises(ValueError, match=r"the classes of digits must be .*got \[\]"):
        load("./digits")


def test_a_missing_path_is_an_error_with_all_candidates(tmp_path: Path):
    with pytest.raises(
        ValueError, match=r"no folder, CSV file or \.npz file at .*/some/pictures or pictures"
    ):
        load("pictures", data_dir=tmp_path / "some")


@pytest.fixture(autouse=True)
def _serve(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace published data sets by the data sets on the server that the test uses."""
    for fixture in {"served_idx", "served_records"} & set(request.fixturenames):
        published = request.getfixturevalue(fixture).published
        monkeypatch.setitem(PUBLISHED_DATASETS, published.name, published)


def file_names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def assert_is_mnist(dataset, data_dir: Path) -> None:
    loaded = load("mnist", data_dir=data_dir, validation_size=0)
    images, labels = dataset.splits[1]
    assert torch.equal(loaded.test.images, images.float() / 255)
    assert torch.equal(loaded.test.labels, labels)


def test_a_downloaded_data_set_is_loaded(server, served_idx, tmp_path: Path):
    data_dir = tmp_path / "new" / "data"
    for _ in range(2):
        assert download("mnist", data_dir) == data_dir / "mnist"
    assert file_names(data_dir) == sorted(f"mnist/{name}" for name in served_idx.contents)
    assert len(server.requests) == 4
    assert_is_mnist(served_idx, data_dir)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize("inside", ["mnist", "."])
def test_complete_files_are_not_downloaded_again(
    served_idx, server, tmp_path: Path, packed: bool, inside: str
):
    folder = served_idx.write(tmp_path / inside, packed=packed)
    before = file_names(tmp_path)
    assert download("mnist", tmp_path) == folder
    assert server.requests == []
    assert file_names(tmp_path) == before


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_missing_and_damaged_files_are_downloaded(served_idx, server, tmp_path: Path, packed: bool):
    ending = ".gz" if packed else ""
    folder = served_idx.write(tmp_path / "mnist", packed=packed)
    (folder / f"test-images{ending}").write_bytes(b"damaged")
    (folder / f"train-labels{ending}").unlink()
    download("mnist", tmp_path)
    assert sorted(server.requests) == ["mnist/test-images.gz", "mnist/train-labels.gz"]
    assert_is_mnist(served_idx, tmp_path)


def test_damaged_files_are_replaced_in_the_folder_that_is_loaded(
    served_idx, served_records, tmp_path: Path
):
    for dataset, name, folder, file in (
        (served_idx, "mnist", "mnist", "test-images"),
        (served_records, "cifar10", "synthetic-bin", "train-2"),
    ):
        dataset.write(tmp_path / name)
        dataset.write(tmp_path / name / folder)
        (tmp_path / name / folder / file).write_bytes(b"")
        assert download(name, tmp_path / name) == tmp_path / name / folder
        load(name, data_dir=tmp_path / name, validation_size=0)


def test_the_next_call_downloads_the_missing_files(
    served_idx, server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("teka.data.published.NUM_ATTEMPTS", 1)
    server.faults = ["none", "500"]
    with pytest.raises(ConnectionError, match="500 Server Error"):
        download("mnist", tmp_path)
    with pytest.raises(ValueError, match="the files of mnist must be"):
        load("mnist", data_dir=tmp_path)
    download("mnist", tmp_path)
    assert len(server.requests) == 1 + 1 + 3
    assert_is_mnist(served_idx, tmp_path)


def test_an_archive_is_extracted_and_removed(server, served_records, tmp_path: Path):
    for _ in range(2):
        assert download("cifar10", tmp_path) == tmp_path / "synthetic-bin"
    assert file_names(tmp_path) == sorted(
        f"synthetic-bin/{name}" for name in served_records.contents
    )
    assert len(server.requests) == 1
    loaded = load("cifar10", data_dir=tmp_path, validation_size=0)
    assert torch.equal(loaded.test.images, served_records.splits[1][0].float() / 255)


def test_existing_archive_is_used_and_kept(server, served_records, tmp_path: Path):
    (tmp_path / "synthetic.tar.gz").write_bytes(server.files["synthetic.tar.gz"])
    download("cifar10", tmp_path)
    assert server.requests == []
    extracted = [f"synthetic-bin/{name}" for name in served_records.contents]
    assert file_names(tmp_path) == sorted(["synthetic.tar.gz", *extracted])


def test_archive_with_another_hash_is_not_extracted(served_records, server, tmp_path: Path):
    content = bytearray(server.files["synthetic.tar.gz"])
    content[4] ^= 1  # the time of compression, which is not part of the content
    server.files["synthetic.tar.gz"] = bytes(content)
    with pytest.raises(ConnectionError, match="hash"):
        download("cifar10", tmp_path)
    assert file_names(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digits", "one of 'cifar10', 'fashion-mnist', 'mnist', got 'digits'"),
        ("minst", "Did you mean 'mnist'"),
    ],
)
def test_download_of_a_name_without_files_is_an_error(name: str, message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        download(name, tmp_path)


def test_folder_that_cannot_be_created_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="data_dir"):
        download("mnist", tmp_path / "file")


@pytest.mark.parametrize(
    "parts", [(".",), ("train", "test")], ids=["without splits", "with splits"]
)
def test_class_names_are_subfolders_or_none_for_arrays(parts: tuple[str, ...], tmp_path: Path):
    pixels = np.zeros((4, 4), dtype=np.uint8)
    for part in parts:
        for name in ("10", "2", ".hidden"):
            folder = tmp_path / "pictures" / part / name
            folder.mkdir(parents=True)
            for number in range(5):
                Image.fromarray(pixels).save(folder / f"{number}.png")
    labels = np.arange(10) % 2
    np.savez(tmp_path / "mine.npz", images=np.zeros((10, 4, 4), dtype=np.uint8), labels=labels)
    assert load(tmp_path / "pictures").class_names == ("2", "10")
    assert load("mine.npz", data_dir=tmp_path).class_names is None
    assert load("digits").class_names == tuple("0123456789")


def test_published_data_set_has_its_class_names(load_mnist):
    assert load_mnist().class_names == PUBLISHED_DATASETS["mnist"].class_names
