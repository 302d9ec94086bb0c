import errno
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teka.files import make_directory, read_json, write_bytes, write_json

Scalar = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@given(content=st.dictionaries(st.text(), Scalar | st.lists(Scalar)))
def test_what_is_written_as_json_is_read_back(content: dict[str, object], folder: Path):
    write_json(folder / "content.json", content)
    assert read_json(folder / "content.json") == content


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path):
    path = tmp_path / "file"
    for content in (b"one", b"two, and longer"):
        write_bytes(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_what_stood_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    write_bytes(path, b"before")

    def fail(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match=r"no space left: .*file"):
        write_bytes(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_does_not_have_is_refused_and_nothing_is_written(number: float, tmp_path: Path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "content.json", {"loss": number})
    assert list(tmp_path.iterdir()) == []


def test_json_is_indented_and_keeps_letters_as_they_are(tmp_path: Path):
    write_json(tmp_path / "content.json", {"name": "ω"})
    assert (tmp_path / "content.json").read_text(encoding="utf-8") == '{\n  "name": "ω"\n}\n'


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"none\.json is missing, expected a JSON file"):
        read_json(tmp_path / "none.json")


@pytest.mark.parametrize("content", [b"", b"{", b"{'a': 1}", b"\xff\xfe\x00"])
def test_a_file_that_is_not_json_is_named(content: bytes, tmp_path: Path):
    (tmp_path / "broken.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.json is not JSON"):
        read_json(tmp_path / "broken.json")


@pytest.mark.parametrize("content", [[1], "text", None, 3])
def test_json_that_is_no_object_is_named(content: object, tmp_path: Path):
    (tmp_path / "list.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"list\.json holds .*, expected a JSON object"):
        read_json(tmp_path / "list.json")


def test_a_folder_is_made_with_its_parents_and_taken_as_it_is_thereafter(tmp_path: Path):
    for _ in range(2):
        assert make_directory("out", str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
        assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("below", ["file", "file/folder"])
def test_a_folder_that_is_a_file_or_below_one_is_refused_by_its_argument(below: str, tmp_path: Path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match=r"out is .* expected a folder that can be written to.*(exists|directory)"):
        make_directory("out", tmp_path / below)
