import shutil
from pathlib import Path

import pytest
import torch

from teka.data.idx_dataset import IdxDataset
from teka.data.levels import Levels


def assert_is_synthetic(synthetic, parts: tuple[Levels, Levels]):
    train, test = parts
    assert torch.equal(train.images, synthetic.train_images[:, None])
    assert torch.equal(train.labels, synthetic.train_labels)
    assert torch.equal(test.images, synthetic.test_images[:, None])
    assert torch.equal(test.labels, synthetic.test_labels)
    assert train.highest == test.highest == 255


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("inside", [".", "synthetic"])
def test_files_are_found_in_the_folder_or_in_one_of_the_name(synthetic, tmp_path: Path, packed: bool, inside: str):
    synthetic.write(tmp_path / inside, packed=packed)
    assert_is_synthetic(synthetic, synthetic.dataset().read(tmp_path))
    assert_is_synthetic(synthetic, synthetic.dataset().read(str(tmp_path)))


@pytest.mark.parametrize("data_dir", [None, "elsewhere"])
def test_the_system_folder_serves_where_the_given_one_does_not(synthetic, tmp_path: Path, data_dir: str | None):
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


def test_missing_files_are_an_error_that_names_every_place_and_what_to_do(synthetic, tmp_path: Path):
    synthetic.write(tmp_path)
    (tmp_path / "test-images.gz").unlink()
    system = tmp_path / "system"
    with pytest.raises(ValueError, match="the files of synthetic were not found") as caught:
        synthetic.dataset(system).read(tmp_path)
    message = str(caught.value)
    assert f"{tmp_path / 'synthetic'} (no train-images, no train-labels, no test-images, no test-labels)" in message
    assert f"{tmp_path} (no test-images)" in message
    assert str(system) in message
    assert message.endswith(f"Run `teka download synthetic --data-dir {tmp_path}`. Ask the author.")


def test_no_folder_at_all_is_an_error_that_says_so(synthetic):
    with pytest.raises(ValueError, match=r"no data_dir was given\. Run `teka download synthetic --data-dir data`"):
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


def test_images_and_labels_of_different_number_are_an_error_that_names_both(synthetic, to_idx, tmp_path: Path):
    synthetic.contents["test-labels"] = to_idx(synthetic.test_labels[:-1])
    published: IdxDataset = synthetic.dataset()
    synthetic.write(tmp_path)
    with pytest.raises(ValueError, match=r"has 5 images, but .*test-labels\.gz has 4 labels"):
        published.read(tmp_path)
