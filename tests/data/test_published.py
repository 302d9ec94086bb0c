import gzip
import hashlib
import shutil
import tracemalloc
from pathlib import Path

import pytest
import torch

from teka.data.catalogue import FASHION_MNIST, MNIST
from teka.data.dataset import Levels
from teka.data.published import read_idx

VALUES = torch.arange(2 * 3 * 5, dtype=torch.uint8).reshape(2, 3, 5)
RECORD = 1 + 3 * 7 * 11


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "images-idx3-ubyte"


def test_values_are_read_in_row_major_order(to_idx, path: Path):
    for pack in [bytes, gzip.compress]:
        for shape in [(30,), (2, 15), (2, 3, 5)]:
            path.write_bytes(pack(to_idx(VALUES.reshape(shape))))
            assert torch.equal(read_idx(path, num_axes=len(shape)), VALUES.reshape(shape))


def test_the_hash_is_that_of_the_unpacked_content(to_idx, path: Path):
    content = to_idx(VALUES)
    expected = hashlib.sha256(content).hexdigest()
    for level in (1, 9):
        path.write_bytes(gzip.compress(content, level))
        assert torch.equal(read_idx(path, num_axes=3, sha256=expected), VALUES)


def test_another_hash_is_an_error_that_names_the_file_and_both_hashes(to_idx, path: Path):
    content = to_idx(VALUES)
    path.write_bytes(content)
    expected = "0" * 64
    with pytest.raises(ValueError, match="not the published file") as caught:
        read_idx(path, num_axes=3, sha256=expected)
    for part in (str(path), hashlib.sha256(content).hexdigest(), expected):
        assert part in str(caught.value)


def test_a_wrong_magic_number_is_an_error_that_names_the_file(path: Path):
    for content in [
        b"",
        b"\0\0",
        b"not an IDX file",
        b"\0\0\x09\x03" + bytes(50),
        b"\0\0\x08\x02" + bytes(50),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match="magic number 00000803") as caught:
            read_idx(path, num_axes=3)
        assert str(path) in str(caught.value)


def test_too_few_bytes_are_an_error_that_names_the_file(to_idx, path: Path):
    for pack in [bytes, gzip.compress]:
        for kept in [4, 15, 16, 45]:
            path.write_bytes(pack(to_idx(VALUES)[:kept]))
            with pytest.raises(
                ValueError, match=f"truncated: it unpacks to {kept} bytes"
            ) as caught:
                read_idx(path, num_axes=3)
            assert str(path) in str(caught.value)


def test_too_many_bytes_are_an_error_that_names_the_sizes(to_idx, path: Path):
    path.write_bytes(to_idx(VALUES) + b"\0")
    with pytest.raises(
        ValueError,
        match=r"too long: it unpacks to at least 47 bytes, expected 46 for the sizes \(2, 3, 5\)",
    ):
        read_idx(path, num_axes=3)


def peak_bytes(act) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"size of|too long|not the published file"):
            act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_no_more_is_unpacked_than_the_header_and_the_catalogue_say(to_idx, path: Path):
    with gzip.open(path, "wb") as file:
        file.write(to_idx(VALUES))
        for _ in range(64):
            file.write(bytes(2**20))
    assert peak_bytes(lambda: read_idx(path, num_axes=3)) < 2**20
    with gzip.open(path, "wb") as file:
        file.write(
            bytes([0, 0, 8, 3]) + b"".join(side.to_bytes(4, "big") for side in (64, 1024, 1024))
        )
        for _ in range(64):
            file.write(bytes(2**20))
    assert peak_bytes(lambda: read_idx(path, num_axes=3, num_bytes=46)) < 2**20
    with gzip.open(path, "wb") as file:
        file.write(bytes([0, 0, 8, 3]) + b"\xff" * 12)
    assert peak_bytes(lambda: read_idx(path, num_axes=3)) < 2**20


def test_the_catalogue_knows_the_sizes_of_its_files():
    for dataset in (MNIST, FASHION_MNIST):
        assert list(dataset.sizes) == list(dataset.hashes)
        assert list(dataset.sizes.values()) == [47_040_016, 60_008, 7_840_016, 10_008]


def test_gzip_data_cut_at_any_byte_is_an_error(to_idx, path: Path):
    packed = gzip.compress(to_idx(VALUES))
    for kept in range(2, len(packed)):
        path.write_bytes(packed[:kept])
        with pytest.raises(ValueError, match="truncated or damaged gzip data") as caught:
            read_idx(path, num_axes=3)
        assert str(path) in str(caught.value)


def test_a_flipped_byte_in_gzip_data_is_an_error(to_idx, path: Path):
    packed = bytearray(gzip.compress(to_idx(VALUES)))
    for place in range(len(packed) - 8, len(packed)):  # the checksum and the length
        damaged = packed.copy()
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged gzip data"):
            read_idx(path, num_axes=3)
    packed[12] ^= 0xFF  # the compressed values themselves
    path.write_bytes(packed)
    with pytest.raises(ValueError, match="damaged gzip data"):
        read_idx(path, num_axes=3)


def assert_is_synthetic(synthetic, parts: tuple[Levels, Levels]):
    train, test = parts
    assert torch.equal(train.images, synthetic.train_images[:, None])
    assert torch.equal(train.labels, synthetic.train_labels)
    assert torch.equal(test.images, synthetic.test_images[:, None])
    assert torch.equal(test.labels, synthetic.test_labels)
    assert train.highest == test.highest == 255


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("inside", [".", "synthetic"])
def test_files_are_found_in_the_folder_or_in_one_of_the_name(
    synthetic, tmp_path: Path, packed: bool, inside: str
):
    synthetic.write(tmp_path / inside, packed=packed)
    assert_is_synthetic(synthetic, synthetic.dataset().read(tmp_path))
    assert_is_synthetic(synthetic, synthetic.dataset().read(str(tmp_path)))


@pytest.mark.parametrize("data_dir", [None, "elsewhere"])
def test_the_system_folder_serves_where_the_given_one_does_not(
    synthetic, tmp_path: Path, data_dir: str | None
):
    system = synthetic.write(tmp_path / "system")
    given = None if data_dir is None else tmp_path / data_dir
    assert_is_synthetic(synthetic, synthetic.dataset(system).read(given))


def test_the_folder_of_the_name_comes_first_and_the_system_last(synthetic, tmp_path: Path):
    folders = [tmp_path / "synthetic", tmp_path, tmp_path / "system"]
    for folder in folders:
        synthetic.write(folder)
        (folder / "test-labels.gz").write_bytes(b"damaged")
    for folder in folders:
        with pytest.raises(ValueError, match="magic number") as caught:
            synthetic.dataset(tmp_path / "system").read(tmp_path)
        assert str(folder / "test-labels.gz") in str(caught.value)
        for file in folder.glob("*.gz"):
            file.unlink()


def test_packed_and_plain_files_may_be_mixed(synthetic, tmp_path: Path):
    synthetic.write(tmp_path, packed=True)
    synthetic.write(tmp_path / "plain", packed=False)
    (tmp_path / "train-labels.gz").unlink()
    shutil.move(tmp_path / "plain" / "train-labels", tmp_path / "train-labels")
    assert_is_synthetic(synthetic, synthetic.dataset().read(tmp_path))


def test_of_a_packed_and_a_plain_file_the_plain_one_is_read(synthetic, tmp_path: Path):
    synthetic.write(tmp_path, packed=True)
    synthetic.write(tmp_path, packed=False)
    (tmp_path / "train-images.gz").write_bytes(b"damaged")
    assert_is_synthetic(synthetic, synthetic.dataset().read(tmp_path))


def test_missing_files_are_an_error_that_names_every_place_and_what_to_do(
    synthetic, tmp_path: Path
):
    synthetic.write(tmp_path)
    (tmp_path / "test-images.gz").unlink()
    system = tmp_path / "system"
    with pytest.raises(ValueError, match="the files of synthetic were not found") as caught:
        synthetic.dataset(system).read(tmp_path)
    message = str(caught.value)
    assert (
        f"{tmp_path / 'synthetic'} (no train-images, no train-labels, no test-images, no test-labels)"
        in message
    )
    assert f"{tmp_path} (no test-images)" in message
    assert str(system) in message
    assert message.endswith(f"Run `teka download synthetic --data-dir {tmp_path}`. Ask the author.")


def test_no_folder_at_all_is_an_error_that_says_so(synthetic):
    with pytest.raises(
        ValueError, match=r"no data_dir was given\. Run `teka download synthetic --data-dir data`"
    ):
        synthetic.dataset().read()


def test_a_data_dir_that_is_a_file_is_an_error_that_names_it(synthetic, tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(ValueError, match="were not found") as caught:
        synthetic.dataset().read(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("file", ["train-images", "train-labels", "test-images", "test-labels"])
def test_each_of_the_four_files_is_checked_by_hash(synthetic, tmp_path: Path, file: str):
    published = synthetic.dataset()
    content = bytearray(synthetic.contents[file])
    content[-1] ^= 1
    synthetic.contents[file] = bytes(content)
    synthetic.write(tmp_path)
    with pytest.raises(ValueError, match="not the published file") as caught:
        published.read(tmp_path)
    assert str(tmp_path / f"{file}.gz") in str(caught.value)


def test_images_and_labels_of_different_number_are_an_error_that_names_both(
    synthetic, to_idx, tmp_path: Path
):
    synthetic.contents["test-labels"] = to_idx(synthetic.test_labels[:-1])
    published = synthetic.dataset()
    synthetic.write(tmp_path)
    with pytest.raises(ValueError, match=r"has 5 images, but .*test-labels\.gz has 4 labels"):
        published.read(tmp_path)


def assert_is_synthetic_records(synthetic_records, data_dir: Path | str):
    train, test = synthetic_records.dataset().read(data_dir)
    assert torch.equal(train.images, synthetic_records.train_images)
    assert torch.equal(train.labels, synthetic_records.train_labels)
    assert torch.equal(test.images, synthetic_records.test_images)
    assert torch.equal(test.labels, synthetic_records.test_labels)
    assert train.highest == test.highest == 255
    assert train.labels.dtype == torch.int64


@pytest.mark.parametrize("inside", ["synthetic-bin", "synthetic", "."])
def test_files_are_found_in_the_folder_or_in_one_of_either_name(
    synthetic_records, tmp_path: Path, inside: str
):
    synthetic_records.write(tmp_path / inside)
    assert_is_synthetic_records(synthetic_records, tmp_path)
    assert_is_synthetic_records(synthetic_records, str(tmp_path))


def test_the_published_folder_comes_first_and_data_dir_itself_last(
    synthetic_records, tmp_path: Path
):
    folders = [tmp_path / "synthetic-bin", tmp_path / "synthetic", tmp_path]
    for folder in folders:
        synthetic_records.write(folder)
        (folder / "batch-2").write_bytes(b"")
    for folder in folders:
        with pytest.raises(ValueError, match="truncated") as caught:
            synthetic_records.dataset().read(tmp_path)
        assert str(caught.value).startswith(f"{folder / 'batch-2'} ")
        (folder / "batch-1").unlink()


def test_a_record_by_hand_is_a_label_then_whole_channels_row_by_row(
    synthetic_records, tmp_path: Path
):
    record = bytes([3]) + b"".join(
        bytes(10 * channel + row for _ in range(11)) for channel in range(3) for row in range(7)
    )
    synthetic_records.contents["batch-test"] = record * 5
    synthetic_records.write(tmp_path)
    _, test = synthetic_records.dataset().read(tmp_path)
    assert test.labels.tolist() == [3] * 5
    assert test.images[4, :, :, 10].tolist() == [
        [10 * channel + row for row in range(7)] for channel in range(3)
    ]


@pytest.mark.parametrize("file", ["batch-1", "batch-3", "batch-test"])
@pytest.mark.parametrize(
    ("change", "state"),
    [
        pytest.param(-1, "truncated", id="one byte less"),
        pytest.param(-RECORD, "truncated", id="one image less"),
        pytest.param(1, "too long", id="one byte more"),
        pytest.param(RECORD, "too long", id="one image more"),
    ],
)
def test_a_file_of_another_size_is_an_error_with_both_sizes(
    synthetic_records, tmp_path: Path, file: str, change: int, state: str
):
    size = 5 * RECORD
    synthetic_records.contents[file] = (synthetic_records.contents[file] + bytes(RECORD))[
        : size + change
    ]
    synthetic_records.write(tmp_path)
    with pytest.raises(ValueError, match=state) as caught:
        synthetic_records.dataset().read(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / file} is {state}: it has {size + change} bytes, expected {size} for 5 images of one label "
        "byte and 3 × 7 × 11 levels; `teka download synthetic` replaces it"
    )


@pytest.mark.parametrize("label", [4, 255])
def test_a_label_that_is_no_class_is_an_error_that_names_file_and_image(
    synthetic_records, tmp_path: Path, label: int
):
    content = bytearray(synthetic_records.contents["batch-2"])
    content[2 * RECORD] = label
    synthetic_records.contents["batch-2"] = bytes(content)
    synthetic_records.write(tmp_path)
    with pytest.raises(
        ValueError, match=f"label of its image 2 is {label}, expected a class from 0 to 3"
    ) as caught:
        synthetic_records.dataset().read(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'batch-2'} ")
