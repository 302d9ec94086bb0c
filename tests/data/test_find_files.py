from pathlib import Path

import pytest

from teka.data.find_files import find_files


def find(*folders: Path, endings: tuple[str, ...] = ("",)) -> dict[str, Path]:
    return find_files("animals", folders, ["cats", "dogs"], remedy="Ask the author.", endings=endings)


def put(folder: Path, *files: str) -> Path:
    folder.mkdir()
    for file in files:
        (folder / file).touch()
    return folder


def test_the_first_folder_that_has_every_file_is_taken_whole(tmp_path: Path):
    some = put(tmp_path / "some", "cats")
    every, later = (put(tmp_path / name, "cats", "dogs") for name in ("every", "later"))
    assert find(some, every, later) == {"cats": every / "cats", "dogs": every / "dogs"}


def test_of_two_endings_the_later_is_taken(tmp_path: Path):
    folder = put(tmp_path / "folder", "cats", "cats.gz", "dogs")
    assert find(folder, endings=("", ".gz")) == {"cats": folder / "cats.gz", "dogs": folder / "dogs"}


def test_a_folder_of_a_files_name_is_not_the_file(tmp_path: Path):
    folder = put(tmp_path / "folder", "cats")
    (folder / "dogs").mkdir()
    with pytest.raises(ValueError, match=r"\(no dogs\)"):
        find(folder)


def test_missing_files_are_an_error_of_one_line_with_every_place_and_what_to_do(tmp_path: Path):
    some, none = put(tmp_path / "some", "dogs"), tmp_path / "none"
    with pytest.raises(ValueError, match="not found") as caught:
        find(some, none)
    places = f"{some} (no cats) and {none} (no cats, no dogs)"
    assert str(caught.value) == f"the files of animals were not found; looked in {places}. Ask the author."


def test_no_folder_is_an_error_that_says_so():
    with pytest.raises(ValueError, match=r"animals were not found: no data_dir was given\. Ask the author\."):
        find()
