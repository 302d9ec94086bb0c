import gzip
import hashlib
import re
import stat
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from teka.data.published import (
    PUBLISHED_DATASETS,
    PublishedFile,
    download_file,
    find_downloaded_file,
    read_digits,
    read_unpacked,
)

# Random bytes, which gzip cannot compress.
CONTENT = np.random.default_rng(0).bytes(90_001)
PACKED = gzip.compress(CONTENT, mtime=0)
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
FAULTS = ("500", "429", "truncates", "stalls", "corrupts", "ends unannounced")


def assert_is_dataset(read, dataset):
    assert read.class_names == dataset.published.class_names
    for split, (images, labels) in zip((read.train, read.test), dataset.splits, strict=True):
        assert torch.equal(split.images, images)
        assert torch.equal(split.labels, labels)


def file_names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("inside", [".", "mnist"])
def test_idx_files_are_found_in_data_dir_and_its_subfolder(
    idx_dataset, tmp_path: Path, packed: bool, inside: str
):
    idx_dataset.write(tmp_path / inside, packed=packed)
    assert_is_dataset(idx_dataset.published.read(tmp_path), idx_dataset)
    assert_is_dataset(idx_dataset.published.read(str(tmp_path)), idx_dataset)


@pytest.mark.parametrize("inside", [".", "cifar10", "synthetic-bin"])
def test_record_files_are_found_in_data_dir_and_its_subfolders(
    record_dataset, tmp_path: Path, inside: str
):
    record_dataset.write(tmp_path / inside)
    assert_is_dataset(record_dataset.published.read(tmp_path), record_dataset)


def test_the_system_folder_is_used_last(idx_dataset, tmp_path: Path):
    system_folder = idx_dataset.write(tmp_path / "system")
    published = replace(idx_dataset.published, system_folder=system_folder)
    for data_dir in (None, tmp_path / "elsewhere"):
        assert_is_dataset(published.read(data_dir), idx_dataset)
    idx_dataset.write(tmp_path / "data")
    (system_folder / "test-labels").write_bytes(b"damaged")
    assert_is_dataset(published.read(tmp_path / "data"), idx_dataset)


def test_the_first_folder_with_all_files_is_used(record_dataset, tmp_path: Path):
    folders = [tmp_path / "synthetic-bin", tmp_path / "cifar10", tmp_path]
    for folder in folders:
        record_dataset.write(folder)
        (folder / "train-2").write_bytes(b"")
    for folder in folders:
        with pytest.raises(ValueError, match=re.escape(f"size of {folder / 'train-2'} must be")):
            record_dataset.published.read(tmp_path)
        (folder / "train-1").unlink()


def test_uncompressed_file_is_preferred(idx_dataset, tmp_path: Path):
    idx_dataset.write(tmp_path, packed=True)
    idx_dataset.write(tmp_path, packed=False)
    (tmp_path / "train-images.gz").write_bytes(b"damaged")
    (tmp_path / "test-labels").unlink()
    assert_is_dataset(idx_dataset.published.read(tmp_path), idx_dataset)


def test_missing_files_are_an_error_with_folders_and_advice(idx_dataset, tmp_path: Path):
    idx_dataset.write(tmp_path)
    (tmp_path / "test-images").unlink()
    with pytest.raises(ValueError, match="the files of mnist must be") as caught:
        idx_dataset.published.read(tmp_path)
    message = str(caught.value)
    assert f"got not all of them in {tmp_path / 'mnist'} or" in message
    assert message.endswith(
        f"Run `teka download mnist --data-dir {tmp_path}`, and pass {tmp_path} as data_dir. "
        "Or ask the author."
    )
    with pytest.raises(
        ValueError, match=r"in any data_dir\. Run `teka download .* --data-dir data"
    ):
        idx_dataset.published.read()


@pytest.mark.parametrize("name", ["train-images", "train-labels", "test-images", "test-labels"])
def test_idx_file_with_another_hash_is_an_error(idx_dataset, tmp_path: Path, name: str):
    content = bytearray(idx_dataset.contents[name])
    content[-1] ^= 1
    idx_dataset.contents[name] = bytes(content)
    idx_dataset.write(tmp_path)
    with pytest.raises(ValueError, match="unpacked SHA-256") as caught:
        idx_dataset.published.read(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert hashlib.sha256(content).hexdigest() in str(caught.value)


@pytest.mark.parametrize("change", [-1, -232, 1, 232])
def test_a_file_of_another_size_is_an_error_with_both_sizes(
    record_dataset, tmp_path: Path, change: int
):
    record_dataset.contents["train-3"] = (record_dataset.contents["train-3"] + bytes(300))[
        : 1160 + change
    ]
    record_dataset.write(tmp_path)
    description = "more" if change > 0 else f"{1160 + change:,} bytes"
    with pytest.raises(ValueError, match=f"must be 1,160 bytes, got {description}") as caught:
        record_dataset.published.read(tmp_path)
    assert str(tmp_path / "train-3") in str(caught.value)


@pytest.mark.parametrize("label", [4, 255])
def test_a_label_without_a_class_is_an_error(record_dataset, tmp_path: Path, label: int):
    content = bytearray(record_dataset.contents["train-2"])
    content[2 * 232] = label
    record_dataset.contents["train-2"] = bytes(content)
    record_dataset.write(tmp_path)
    with pytest.raises(ValueError, match=f"must be classes from 0 to 3, got {label}") as caught:
        record_dataset.published.read(tmp_path)
    assert str(tmp_path / "train-2") in str(caught.value)


def test_record_is_a_label_followed_by_channels_in_rows(record_dataset, tmp_path: Path):
    record = bytes([3]) + bytes(
        10 * channel + row for channel in range(3) for row in range(7) for _ in range(11)
    )
    record_dataset.contents["test-4"] = record * 5
    record_dataset.write(tmp_path)
    test = record_dataset.published.read(tmp_path).test
    assert test.labels.tolist() == [3] * 5
    assert test.images[4, :, :, 10].tolist() == [
        [10 * channel + row for row in range(7)] for channel in range(3)
    ]


def test_decompression_stops_at_the_published_size(tmp_path: Path):
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(64):
            file.write(bytes(2**20))
    tracemalloc.start()
    assert len(read_unpacked(path, 46)) == 47
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_damaged_gzip_file_is_an_error_with_its_path(tmp_path: Path):
    path = tmp_path / "values.gz"
    packed = gzip.compress(bytes(range(40)))
    damaged = [packed[:size] for size in range(2, len(packed))]
    for position in (12, *range(len(packed) - 8, len(packed))):
        changed = bytearray(packed)
        changed[position] ^= 0xFF
        damaged.append(bytes(changed))
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{path} must be complete gzip data"):
            read_unpacked(path, 46)


def download_values(server, folder: Path) -> bytes:
    path = folder / "values"
    download_file(f"{server.address}values.gz", path, SHA256, len(CONTENT))
    return path.read_bytes()


def test_download_leaves_only_the_unpacked_readable_file(server, tmp_path: Path):
    server.files["values.gz"] = PACKED
    assert download_values(server, tmp_path / "new") == CONTENT
    assert stat.S_IMODE((tmp_path / "new" / "values").stat().st_mode) == 0o644
    assert file_names(tmp_path) == ["new/values"]
    assert download_values(server, tmp_path / "new") == CONTENT
    assert server.requests == ["values.gz"]


def test_a_progress_bar_shows_the_file_size(server, tmp_path: Path, capsys):
    server.files["values.gz"] = PACKED
    download_values(server, tmp_path)
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize("fault", FAULTS)
def test_download_is_tried_again_after_a_fault(server, tmp_path: Path, fault: str, monkeypatch):
    server.files["values.gz"] = PACKED
    server.faults = [fault]
    if fault == "stalls":
        monkeypatch.setattr("teka.data.published.TIMEOUT_SECONDS", 1.0)
    assert download_values(server, tmp_path) == CONTENT
    assert file_names(tmp_path) == ["values"]
    assert len(server.requests) == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_repeated_fault_is_an_error_and_leaves_no_file(
    server, tmp_path: Path, fault: str, monkeypatch
):
    server.files["values.gz"] = PACKED
    server.faults = [fault] * 100
    if fault == "stalls":
        monkeypatch.setattr("teka.data.published.TIMEOUT_SECONDS", 0.25)
    with pytest.raises(ConnectionError, match="values could not be downloaded") as caught:
        download_values(server, tmp_path)
    assert f"{server.address}values.gz" in str(caught.value)
    words = {
        "500": "500 Server Error",
        "429": "429 Client Error",
        "truncates": "IncompleteRead",
        "stalls": "timed out",
    }
    assert re.search(words.get(fault, "gzip data|hash"), str(caught.value))
    assert file_names(tmp_path) == []
    assert len(server.requests) == 5


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(gzip.compress(CONTENT[:-1] + b"\0"), id="another file"),
        pytest.param(b"PK\x03\x04" + CONTENT, id="another archive"),
        pytest.param(gzip.compress(bytes(20_000_000)), id="decompression bomb"),
    ],
)
def test_download_with_another_hash_is_not_kept(server, tmp_path: Path, content: bytes):
    server.files["values.gz"] = content
    (tmp_path / "values").write_bytes(b"damaged")
    with pytest.raises(ConnectionError, match="hash"):
        download_values(server, tmp_path)
    assert (tmp_path / "values").read_bytes() == b"damaged"
    assert file_names(tmp_path) == ["values"]


def test_content_encoding_of_the_server_is_ignored(server, tmp_path: Path):
    server.files["values.gz"] = PACKED
    server.encoding = "gzip"
    assert download_values(server, tmp_path) == CONTENT


def test_an_interrupted_download_leaves_no_file(server, tmp_path: Path, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    server.files["values.gz"] = PACKED
    monkeypatch.setattr(gzip, "open", interrupt)
    with pytest.raises(KeyboardInterrupt):
        download_values(server, tmp_path)
    assert file_names(tmp_path) == []


def test_missing_pooch_is_an_error_with_the_install_command(server, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'teka\[train\]'"):
        download_values(server, tmp_path)


def test_published_files_have_sizes_and_hashes():
    for dataset in PUBLISHED_DATASETS.values():
        assert len(set(dataset.class_names)) == 10
        assert dataset.url.startswith("https://")
        assert dataset.license
        for file in dataset.files:
            has_hash = dataset.archive_hash is None
            assert (file.sha256 is not None) == has_hash
            assert not has_hash or len(bytes.fromhex(file.sha256 or "")) == 32
        if dataset.format == "idx":
            sizes = [file.num_bytes for file in dataset.files]
            assert sizes == [16 + 60_000 * 784, 8 + 60_000, 16 + 10_000 * 784, 8 + 10_000]
        else:
            assert all(file.num_bytes == 10_000 * (1 + 3 * 32 * 32) for file in dataset.files)
            assert not any("pickle" in file.name or "py" in file.name for file in dataset.files)
    hashes = [file.sha256 for name in ("mnist", "fashion-mnist") for file in
              PUBLISHED_DATASETS[name].files]  # fmt: skip
    assert len(set(hashes)) == 8


def test_file_is_found_uncompressed_or_compressed(tmp_path: Path):
    file = PublishedFile("values", 3)
    assert find_downloaded_file(tmp_path, file) is None
    (tmp_path / "values.gz").touch()
    assert find_downloaded_file(tmp_path, file) == tmp_path / "values.gz"
    (tmp_path / "values").touch()
    assert find_downloaded_file(tmp_path, file) == tmp_path / "values"


def test_splits_of_digits_have_every_image_once_with_its_label():
    raw: Any = read_digits((8, 8))
    assert (len(raw.train), len(raw.test), len(raw.class_names)) == (1437, 360, 10)
    images = torch.cat([raw.train.images, raw.test.images])
    labels = torch.cat([raw.train.labels, raw.test.labels])
    pixels, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(1797)
    assert order[:5].tolist() == [360, 1773, 1482, 600, 850]
    assert np.array_equal(images.flatten(1).numpy() * 16, pixels[order])
    assert np.array_equal(labels.numpy(), classes[order])


def test_digits_are_centered_on_the_canvas():
    bare: Any = read_digits((8, 8))
    for size, top, left in [
        ((8, 8), 0, 0),
        ((9, 9), 0, 0),
        ((16, 16), 4, 4),
        ((11, 17), 1, 4),
        ((30, 8), 11, 0),
    ]:
        raw: Any = read_digits(size)
        images = raw.test.images
        assert images.shape == (360, 1, *size)
        assert torch.equal(images[:, :, top : top + 8, left : left + 8], bare.test.images)
        assert images.sum() == bare.test.images.sum()
    assert bare.train.images.max() == 1


def test_missing_scikit_learn_is_an_error_with_the_install_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'teka\[train\]'"):
        read_digits((16, 16))
