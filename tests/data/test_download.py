from dataclasses import replace
from pathlib import Path

import pytest
import torch

from teka.data import Fetcher, download, load
from teka.data.load import PUBLISHED_DATASETS

FETCHER = Fetcher(timeout=0.25, attempts=3, wait=0.01)


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


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def assert_is_mnist(mnist, data_dir: Path) -> None:
    dataset = load("mnist", data_dir=data_dir, validation_size=0)
    assert torch.equal(dataset.test.images, mnist.test_images[:, None].float() / 255)
    assert torch.equal(dataset.test.labels, mnist.test_labels)


def test_what_was_downloaded_is_loaded(mnist, tmp_path: Path):
    folder = download("mnist", tmp_path / "new" / "data", fetcher=FETCHER)
    assert folder == tmp_path / "new" / "data" / "mnist"
    assert files(tmp_path / "new") == sorted(f"data/mnist/{file}" for file in mnist.contents)
    assert_is_mnist(mnist, tmp_path / "new" / "data")


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_second_call_asks_for_nothing(server, tmp_path: Path, name: str, request: pytest.FixtureRequest):
    request.getfixturevalue(name)
    first = download(name, tmp_path, fetcher=FETCHER)
    asked = len(server.requests)
    assert download(name, tmp_path, fetcher=FETCHER) == first
    assert len(server.requests) == asked


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize("inside", ["mnist", "."])
def test_whole_files_that_are_there_are_left_alone(mnist, server, tmp_path: Path, packed: bool, inside: str):
    there = mnist.write(tmp_path / "data" / inside, packed=packed)
    before = files(tmp_path)
    assert download("mnist", tmp_path / "data", fetcher=FETCHER) == there
    assert server.requests == []
    assert files(tmp_path) == before


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_only_what_is_missing_or_damaged_is_fetched(mnist, server, tmp_path: Path, packed: bool):
    ending = ".gz" if packed else ""
    there = mnist.write(tmp_path / "mnist", packed=packed)
    (there / f"test-images{ending}").write_bytes(b"damaged")
    (there / f"train-labels{ending}").unlink()
    download("mnist", tmp_path, fetcher=FETCHER)
    assert sorted(path for path, _ in server.requests) == ["mnist/test-images.gz", "mnist/train-labels.gz"]
    assert_is_mnist(mnist, tmp_path)


def test_damaged_files_that_would_be_read_first_are_replaced(mnist, cifar10, server, tmp_path: Path):
    server.files |= {f"mnist/{path.name}": path.read_bytes() for path in (tmp_path / "at the server").iterdir()}
    mnist.write(tmp_path / "mnist")
    (mnist.write(tmp_path) / "mnist" / "test-images.gz").write_bytes(b"damaged")
    assert download("mnist", tmp_path, fetcher=FETCHER) == tmp_path / "mnist"
    assert_is_mnist(mnist, tmp_path)
    cifar10.write(tmp_path / "synthetic-bin")
    (cifar10.write(tmp_path) / "synthetic-bin" / "batch-2").write_bytes(b"")
    assert download("cifar10", tmp_path, fetcher=FETCHER) == tmp_path / "synthetic-bin"
    load("cifar10", data_dir=tmp_path, validation_size=0)


def test_a_download_that_was_cut_off_is_gone_on_with(mnist, server, tmp_path: Path):
    server.faults = ["none", "500"]
    with pytest.raises(ConnectionError, match="answers 500"):
        download("mnist", tmp_path, fetcher=replace(FETCHER, attempts=1))
    with pytest.raises(ValueError, match="the files of mnist were not found"):
        load("mnist", data_dir=tmp_path)
    download("mnist", tmp_path, fetcher=FETCHER)
    assert len(server.requests) == 1 + 1 + 3
    assert_is_mnist(mnist, tmp_path)


def test_an_archive_is_unpacked_loaded_and_removed(cifar10, tmp_path: Path):
    folder = download("cifar10", tmp_path / "data", fetcher=FETCHER)
    assert folder == tmp_path / "data" / "synthetic-bin"
    assert files(tmp_path) == sorted(f"data/synthetic-bin/{file}" for file in cifar10.contents)
    dataset = load("cifar10", data_dir=tmp_path / "data", validation_size=0)
    assert torch.equal(dataset.test.images, cifar10.test_images.float() / 255)


def test_an_archive_that_is_there_is_used_and_kept(cifar10, server, tmp_path: Path):
    (tmp_path / "synthetic.tar.gz").write_bytes(cifar10.archive())
    download("cifar10", tmp_path, fetcher=FETCHER)
    assert server.requests == []
    assert files(tmp_path) == sorted(["synthetic.tar.gz", *(f"synthetic-bin/{file}" for file in cifar10.contents)])


def test_an_archive_that_is_not_the_published_one_is_never_unpacked(cifar10, server, tmp_path: Path):
    content = bytearray(cifar10.archive())
    content[4] ^= 1  # the time of packing: what is inside stays sound
    server.files = {"synthetic.tar.gz": bytes(content)}
    with pytest.raises(ConnectionError, match="hash"):
        download("cifar10", tmp_path, fetcher=FETCHER)
    assert files(tmp_path) == []


def test_a_damaged_file_of_records_is_replaced(cifar10, tmp_path: Path):
    cifar10.write(tmp_path / "synthetic-bin")
    (tmp_path / "synthetic-bin" / "batch-2").write_bytes(b"")
    download("cifar10", tmp_path, fetcher=FETCHER)
    assert (tmp_path / "synthetic-bin" / "batch-2").read_bytes() == cifar10.contents["batch-2"]


@pytest.mark.parametrize(
    ("name", "message"), [("digits", "come inside scikit-learn"), ("minst", "did you mean 'mnist'")]
)
def test_a_name_without_files_is_an_error(name: str, message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        download(name, tmp_path)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="data_dir"):
        download("mnist", tmp_path / "file")
