from pathlib import Path

import pytest
import torch

RECORD = 1 + 3 * 7 * 11


def assert_is_synthetic(synthetic_records, data_dir: Path | str):
    train, test = synthetic_records.dataset().read(data_dir)
    assert torch.equal(train.images, synthetic_records.train_images)
    assert torch.equal(train.labels, synthetic_records.train_labels)
    assert torch.equal(test.images, synthetic_records.test_images)
    assert torch.equal(test.labels, synthetic_records.test_labels)
    assert train.highest == test.highest == 255
    assert train.labels.dtype == torch.int64


@pytest.mark.parametrize("inside", ["synthetic-bin", "synthetic", "."])
def test_files_are_found_in_the_folder_or_in_one_of_either_name(synthetic_records, tmp_path: Path, inside: str):
    synthetic_records.write(tmp_path / inside)
    assert_is_synthetic(synthetic_records, tmp_path)
    assert_is_synthetic(synthetic_records, str(tmp_path))


def test_the_published_folder_comes_first_and_data_dir_itself_last(synthetic_records, tmp_path: Path):
    folders = [tmp_path / "synthetic-bin", tmp_path / "synthetic", tmp_path]
    for folder in folders:
        synthetic_records.write(folder)
        (folder / "batch-2").write_bytes(b"")
    for folder in folders:
        with pytest.raises(ValueError, match="truncated") as caught:
            synthetic_records.dataset().read(tmp_path)
        assert str(caught.value).startswith(f"{folder / 'batch-2'} ")
        (folder / "batch-1").unlink()


def test_a_record_by_hand_is_a_label_then_whole_channels_row_by_row(synthetic_records, tmp_path: Path):
    record = bytes([3]) + b"".join(
        bytes(10 * channel + row for _ in range(11)) for channel in range(3) for row in range(7)
    )
    synthetic_records.contents["batch-test"] = record * 5
    synthetic_records.write(tmp_path)
    _, test = synthetic_records.dataset().read(tmp_path)
    assert test.labels.tolist() == [3] * 5
    assert test.images[4, :, :, 10].tolist() == [[10 * channel + row for row in range(7)] for channel in range(3)]


def test_no_folder_at_all_is_an_error_that_says_so(synthetic_records):
    with pytest.raises(ValueError, match=r"no data_dir was given\. Run `teka download synthetic --data-dir data`"):
        synthetic_records.dataset().read()


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
    synthetic_records.contents[file] = (synthetic_records.contents[file] + bytes(RECORD))[: size + change]
    synthetic_records.write(tmp_path)
    with pytest.raises(ValueError, match=state) as caught:
        synthetic_records.dataset().read(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / file} is {state}: it has {size + change} bytes, expected {size} for 5 images of one label "
        "byte and 3 × 7 × 11 levels; `teka download synthetic` replaces it"
    )


@pytest.mark.parametrize("label", [4, 255])
def test_a_label_that_is_no_class_is_an_error_that_names_file_and_image(synthetic_records, tmp_path: Path, label: int):
    content = bytearray(synthetic_records.contents["batch-2"])
    content[2 * RECORD] = label
    synthetic_records.contents["batch-2"] = bytes(content)
    synthetic_records.write(tmp_path)
    with pytest.raises(ValueError, match=f"label of its image 2 is {label}, expected a class from 0 to 3") as caught:
        synthetic_records.dataset().read(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'batch-2'} ")
