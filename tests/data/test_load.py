from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from teka.data import Dataset, Fetcher, download, load, resize_bilinear
from teka.data.catalogue import PUBLISHED_DATASETS
from teka.data.load import class_names

FETCHER = Fetcher(timeout=20.0, attempts=1)


@pytest.fixture
def synthetic_mnist(synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Small files under the name of MNIST, with their own hashes."""
    monkeypatch.setitem(PUBLISHED_DATASETS, "mnist", synthetic.dataset())
    synthetic.write(tmp_path)

    def load_it(**options) -> Dataset:
        return load("mnist", data_dir=tmp_path, **({"validation_size": 5} | options))

    return load_it


def indices(images: torch.Tensor) -> list[int]:
    """Which of the published synthetic images these are, by their first pixel."""
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


def test_the_image_size_of_digits_is_their_canvas():
    dataset = load("digits", image_size=(11, 17))
    assert dataset.image_size == (11, 17)
    assert torch.equal(
        dataset.test.images[:, :, 1:9, 4:12], load("digits", image_size=8).test.images
    )


def test_images_are_published_levels_over_255(synthetic, synthetic_mnist):
    dataset = synthetic_mnist()
    assert torch.equal(dataset.test.images, synthetic.test_images[:, None].float() / 255)
    assert torch.equal(dataset.test.labels, synthetic.test_labels)
    assert (dataset.num_classes, dataset.image_size, dataset.in_channels) == (3, (7, 11), 1)


def test_validation_images_are_the_end_of_the_seeded_order(synthetic, synthetic_mnist):
    dataset = synthetic_mnist(validation_size=5, seed=3)
    order = np.random.default_rng(3).permutation(23).tolist()
    assert indices(dataset.train.images) == order[:18]
    assert indices(dataset.validation.images) == order[18:]
    assert torch.equal(dataset.train.labels, synthetic.train_labels[order[:18]])
    assert torch.equal(dataset.validation.labels, synthetic.train_labels[order[18:]])


def test_fewer_training_images_are_the_first_of_more_and_leave_the_rest_alone(synthetic_mnist):
    every, some = synthetic_mnist(), synthetic_mnist(train_size=7)
    assert indices(some.train.images) == indices(every.train.images)[:7]
    assert torch.equal(some.validation.images, every.validation.images)
    assert torch.equal(some.test.images, every.test.images)


def test_without_validation_every_image_is_for_training(synthetic_mnist):
    dataset = synthetic_mnist(validation_size=0)
    assert sorted(indices(dataset.train.images)) == list(range(23))
    assert dataset.validation.images.shape == (0, 1, 7, 11)


def test_resizing_resizes_every_part(synthetic, synthetic_mnist):
    dataset = synthetic_mnist(image_size=(13, 5))
    assert dataset.image_size == (13, 5)
    for part, images in (("train", synthetic.train_images), ("test", synthetic.test_images)):
        order = np.random.default_rng(0).permutation(23)[:18] if part == "train" else np.arange(5)
        expected = resize_bilinear(images[:, None], (13, 5))[torch.from_numpy(order)].float() / 255
        assert torch.equal(getattr(dataset, part).images, expected)
    assert synthetic_mnist(image_size=13, validation_size=0).validation.images.shape == (
        0,
        1,
        13,
        13,
    )


def test_an_unknown_name_is_an_error_that_offers_the_nearest():
    expected = (
        "one of 'cifar10', 'digits', 'fashion-mnist', 'mnist', got 'mnits'. Did you mean 'mnist'"
    )
    with pytest.raises(ValueError, match=f"{expected}"):
        load("mnits")


def test_missing_files_are_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ["mnist", "fashion-mnist"]:
        monkeypatch.setitem(
            PUBLISHED_DATASETS,
            name,
            replace(PUBLISHED_DATASETS[name], system_folder=tmp_path / "system"),
        )
        with pytest.raises(ValueError, match=f"the files of {name} were not found") as caught:
            load(name, data_dir=tmp_path)
        for part in (
            str(tmp_path / name),
            f"{tmp_path} (no train-images-idx3-ubyte",
            f"Run `teka download {name} --data-dir {tmp_path}`",
        ):
            assert part in str(caught.value)


def test_missing_files_of_cifar10_are_an_error_that_says_what_to_do(tmp_path: Path):
    with pytest.raises(ValueError, match="the files of cifar10 were not found") as caught:
        load("cifar10", data_dir=tmp_path)
    for part in (
        f"{tmp_path / 'cifar-10-batches-bin'} (no data_batch_1.bin",
        f"Run `teka download cifar10 --data-dir {tmp_path}`",
    ):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("image_size", [None, (13, 5)], ids=["as published", "resized"])
def test_colour_images_are_parted_and_resized_as_grey_ones(
    synthetic_records,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    image_size: tuple[int, int] | None,
):
    monkeypatch.setitem(PUBLISHED_DATASETS, "cifar10", synthetic_records.dataset())
    synthetic_records.write(tmp_path)
    dataset = load("cifar10", data_dir=tmp_path, image_size=image_size, validation_size=4)
    assert (dataset.in_channels, dataset.image_size) == (3, image_size or (7, 11))
    order = torch.from_numpy(np.random.default_rng(0).permutation(15))
    parts = {
        "train": (synthetic_records.train_images, synthetic_records.train_labels, order[:11]),
        "validation": (synthetic_records.train_images, synthetic_records.train_labels, order[11:]),
        "test": (synthetic_records.test_images, synthetic_records.test_labels, torch.arange(5)),
    }
    for part, (images, labels, chosen) in parts.items():
        expected = (
            images[chosen] if image_size is None else resize_bilinear(images[chosen], image_size)
        )
        assert torch.equal(getattr(dataset, part).images, expected.float() / 255)
        assert torch.equal(getattr(dataset, part).labels, labels[chosen])


def test_files_that_are_not_the_published_ones_are_an_error(synthetic, tmp_path: Path):
    for file, name in (
        ("train-images", "train-images-idx3-ubyte"),
        ("train-labels", "train-labels-idx1-ubyte"),
        ("test-images", "t10k-images-idx3-ubyte"),
        ("test-labels", "t10k-labels-idx1-ubyte"),
    ):
        (tmp_path / name).write_bytes(synthetic.contents[file])
    for name in ("mnist", "fashion-mnist"):
        with pytest.raises(ValueError, match="train-images-idx3-ubyte is not the published file"):
            load(name, data_dir=tmp_path)


def test_a_size_that_does_not_fit_is_an_error():
    for options, message in [
        ({"image_size": 7}, r"image_size must be .*each at least 8 pixels.*got 7"),
        ({"image_size": (16, 7)}, r"image_size must be .*each at least 8 pixels.*got \(16, 7\)"),
        ({"image_size": (16, 16, 16)}, r"image_size must be .*got \(16, 16, 16\)"),
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


def test_an_image_size_of_nothing_is_an_error(synthetic_mnist):
    with pytest.raises(ValueError, match=r"image_size must be .*got 0"):
        synthetic_mnist(image_size=0)


def test_a_path_is_looked_for_in_data_dir_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_the_name_of_a_data_set_is_not_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load("digits").num_classes == 10
    with pytest.raises(ValueError, match=r"the classes of digits must be .*got 'none'"):
        load("./digits")


def test_a_path_to_nothing_is_an_error_that_names_every_place(tmp_path: Path):
    with pytest.raises(
        ValueError, match=r"No folder of images or \.npz file is at .*/some/pictures or pictures"
    ):
        load("pictures", data_dir=tmp_path / "some")


@pytest.fixture
def mnist(server, synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Small files under the name of MNIST at a server."""
    published = replace(synthetic.dataset(addresses=(f"{server.address}mnist/",)), name="mnist")
    monkeypatch.setitem(PUBLISHED_DATASETS, "mnist", published)
    packed = synthetic.write(tmp_path / "at the server")
    server.files = {f"mnist/{path.name}": path.read_bytes() for path in packed.iterdir()}
    return synthetic


@pytest.fixture
def cifar10(server, synthetic_records, monkeypatch: pytest.MonkeyPatch):
    """Small files under the name of CIFAR-10 in an archive at a server."""
    monkeypatch.setitem(PUBLISHED_DATASETS, "cifar10", synthetic_records.dataset((server.address,)))
    server.files = {"synthetic.tar.gz": synthetic_records.archive()}
    return synthetic_records


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def assert_is_mnist(mnist, data_dir: Path) -> None:
    dataset = load("mnist", data_dir=data_dir, validation_size=0)
    assert torch.equal(dataset.test.images, mnist.test_images[:, None].float() / 255)
    assert torch.equal(dataset.test.labels, mnist.test_labels)


def test_what_was_downloaded_is_loaded(mnist, tmp_path: Path):
    folder = download("mnist", tmp_path / "new" / "data", fetcher=FETCHER)
    assert folder == tmp_path / "new" / "data" / "mnist"
    assert files_in(tmp_path / "new") == sorted(f"data/mnist/{file}" for file in mnist.contents)
    assert_is_mnist(mnist, tmp_path / "new" / "data")


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_second_call_asks_for_nothing(
    server, tmp_path: Path, name: str, request: pytest.FixtureRequest
):
    request.getfixturevalue(name)
    first = download(name, tmp_path, fetcher=FETCHER)
    asked = len(server.requests)
    assert download(name, tmp_path, fetcher=FETCHER) == first
    assert len(server.requests) == asked


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize("inside", ["mnist", "."])
def test_whole_files_that_are_there_are_left_alone(
    mnist, server, tmp_path: Path, packed: bool, inside: str
):
    there = mnist.write(tmp_path / "data" / inside, packed=packed)
    before = files_in(tmp_path)
    assert download("mnist", tmp_path / "data", fetcher=FETCHER) == there
    assert server.requests == []
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_only_what_is_missing_or_damaged_is_fetched(mnist, server, tmp_path: Path, packed: bool):
    ending = ".gz" if packed else ""
    there = mnist.write(tmp_path / "mnist", packed=packed)
    (there / f"test-images{ending}").write_bytes(b"damaged")
    (there / f"train-labels{ending}").unlink()
    download("mnist", tmp_path, fetcher=FETCHER)
    assert sorted(server.requests) == ["mnist/test-images.gz", "mnist/train-labels.gz"]
    assert_is_mnist(mnist, tmp_path)


def test_damaged_files_that_would_be_read_first_are_replaced(
    mnist, cifar10, server, tmp_path: Path
):
    server.files |= {
        f"mnist/{path.name}": path.read_bytes() for path in (tmp_path / "at the server").iterdir()
    }
    mnist.write(tmp_path / "mnist")
    (mnist.write(tmp_path) / "mnist" / "test-images.gz").write_bytes(b"damaged")
    assert download("mnist", tmp_path, fetcher=FETCHER) == tmp_path / "mnist"
    assert_is_mnist(mnist, tmp_path)
    cifar10.write(tmp_path / "synthetic-bin")
    (cifar10.write(tmp_path) / "synthetic-bin" / "batch-2").write_bytes(b"")
    assert download("cifar10", tmp_path, fetcher=FETCHER) == tmp_path / "synthetic-bin"
    load("cifar10", data_dir=tmp_path, validation_size=0)


def test_the_next_call_fetches_what_is_lacking(mnist, server, tmp_path: Path):
    server.faults = ["none", "500"]
    with pytest.raises(ConnectionError, match="500 Server Error"):
        download("mnist", tmp_path, fetcher=FETCHER)
    with pytest.raises(ValueError, match="the files of mnist were not found"):
        load("mnist", data_dir=tmp_path)
    download("mnist", tmp_path, fetcher=FETCHER)
    assert len(server.requests) == 1 + 1 + 3
    assert_is_mnist(mnist, tmp_path)


def test_an_archive_is_unpacked_loaded_and_removed(cifar10, tmp_path: Path):
    folder = download("cifar10", tmp_path / "data", fetcher=FETCHER)
    assert folder == tmp_path / "data" / "synthetic-bin"
    assert files_in(tmp_path) == sorted(f"data/synthetic-bin/{file}" for file in cifar10.contents)
    dataset = load("cifar10", data_dir=tmp_path / "data", validation_size=0)
    assert torch.equal(dataset.test.images, cifar10.test_images.float() / 255)


def test_an_archive_that_is_there_is_used_and_kept(cifar10, server, tmp_path: Path):
    (tmp_path / "synthetic.tar.gz").write_bytes(cifar10.archive())
    download("cifar10", tmp_path, fetcher=FETCHER)
    assert server.requests == []
    assert files_in(tmp_path) == sorted(
        ["synthetic.tar.gz", *(f"synthetic-bin/{file}" for file in cifar10.contents)]
    )


def test_an_archive_that_is_not_the_published_one_is_never_unpacked(
    cifar10, server, tmp_path: Path
):
    content = bytearray(cifar10.archive())
    content[4] ^= 1  # the time of packing: what is inside stays sound
    server.files = {"synthetic.tar.gz": bytes(content)}
    with pytest.raises(ConnectionError, match="hash"):
        download("cifar10", tmp_path, fetcher=FETCHER)
    assert files_in(tmp_path) == []


def test_a_damaged_file_of_records_is_replaced(cifar10, tmp_path: Path):
    cifar10.write(tmp_path / "synthetic-bin")
    (tmp_path / "synthetic-bin" / "batch-2").write_bytes(b"")
    download("cifar10", tmp_path, fetcher=FETCHER)
    assert (tmp_path / "synthetic-bin" / "batch-2").read_bytes() == cifar10.contents["batch-2"]


@pytest.mark.parametrize(
    ("name", "message"), [("digits", "come inside scikit-learn"), ("minst", "Did you mean 'mnist'")]
)
def test_a_name_without_files_is_an_error(name: str, message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        download(name, tmp_path)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="data_dir"):
        download("mnist", tmp_path / "file")


@pytest.mark.parametrize("parts", [(".",), ("train", "test")], ids=["without parts", "with parts"])
def test_classes_are_named_as_their_sub_folders_and_those_of_arrays_not_at_all(
    parts: tuple[str, ...], tmp_path: Path
):
    for part in parts:
        for name in ("10", "2", ".hidden"):
            (tmp_path / "pictures" / part / name).mkdir(parents=True)
    (tmp_path / "mine.npz").write_bytes(b"")
    assert class_names(str(tmp_path / "pictures")) == ("2", "10")
    assert class_names("pictures", data_dir=tmp_path) == ("2", "10")
    assert class_names("mine.npz", data_dir=tmp_path) is None
    assert class_names("digits") == tuple("0123456789")
    assert class_names("cifar10") == PUBLISHED_DATASETS["cifar10"].class_names
