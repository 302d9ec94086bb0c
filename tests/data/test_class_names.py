from pathlib import Path

import pytest

from teka.data import NAMES
from teka.data.class_names import class_names


@pytest.mark.parametrize("name", NAMES)
def test_every_published_data_set_has_ten_names(name: str):
    names = class_names(name)
    assert names is not None
    assert len(set(names)) == 10


@pytest.mark.parametrize("parts", [(".",), ("train", "test")], ids=["without parts", "with parts"])
def test_classes_of_a_folder_are_its_sub_folders_as_it_is_read(parts: tuple[str, ...], tmp_path: Path):
    for part in parts:
        for name in ("10", "2", ".hidden"):
            (tmp_path / "pictures" / part / name).mkdir(parents=True)
    assert class_names(str(tmp_path / "pictures")) == ("10", "2")
    assert class_names("pictures", data_dir=tmp_path) == ("10", "2")


def test_arrays_have_no_names(tmp_path: Path):
    (tmp_path / "mine.npz").write_bytes(b"")
    assert class_names("mine.npz", data_dir=tmp_path) is None
