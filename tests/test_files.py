import errno
import fcntl
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teka.files import (
    atomic_directory,
    check_output_file,
    expand_user,
    make_directory,
    read_json,
    read_yaml,
    resolve_path,
    write_bytes,
    write_json,
)

Scalar = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)


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


def test_a_loop_of_symbolic_links_is_an_error_that_names_the_argument(tmp_path: Path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for use in (resolve_path, check_output_file, make_directory):
        with pytest.raises(ValueError, match=r"out must be .*got .*loop"):
            use("out", loop)
    assert loop.is_symlink()


def test_the_home_folder_of_an_unknown_user_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert expand_user("~/data") == Path("/home/somebody/data")
    assert expand_user("~no such user/data") == Path("~no such user/data")


def test_a_write_that_fails_leaves_what_stood_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "file"
    write_bytes(path, b"before")

    def fail(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match=r"no space left: .*file"):
        write_bytes(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_number_that_json_does_not_have_is_refused_and_nothing_is_written(tmp_path: Path):
    for number in [math.nan, math.inf]:
        with pytest.raises(ValueError, match="JSON compliant"):
            write_json(tmp_path / "content.json", {"loss": number})
        assert list(tmp_path.iterdir()) == []


def test_json_is_indented_and_keeps_letters_as_they_are(tmp_path: Path):
    write_json(tmp_path / "content.json", {"name": "ω"})
    assert (tmp_path / "content.json").read_text(encoding="utf-8") == '{\n  "name": "ω"\n}\n'


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"none\.json is missing, expected a JSON file"):
        read_json(tmp_path / "none.json")


def test_a_file_that_is_not_json_is_named(tmp_path: Path):
    for content in [b"", b"{", b"{'a': 1}", b"\xff\xfe\x00"]:
        (tmp_path / "broken.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"broken\.json is not JSON"):
            read_json(tmp_path / "broken.json")


def test_json_that_is_no_object_is_named(tmp_path: Path):
    for content in [[1], "text", None, 3]:
        (tmp_path / "list.json").write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(ValueError, match=r"list\.json holds .*, expected a JSON object"):
            read_json(tmp_path / "list.json")


def test_a_folder_is_made_with_its_parents_and_taken_as_it_is_thereafter(tmp_path: Path):
    for _ in range(2):
        assert make_directory("out", str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
        assert (tmp_path / "a" / "b").is_dir()


def test_a_folder_that_is_a_file_or_below_one_is_refused_by_its_argument(tmp_path: Path):
    for below in ["file", "file/folder"]:
        (tmp_path / "file").write_text("", encoding="utf-8")
        with pytest.raises(
            ValueError, match=r"out must be a folder that can be written to.*(exists|directory)"
        ):
            make_directory("out", tmp_path / below)


def test_what_stood_there_takes_another_name(tmp_path: Path):
    for content in (b"one", b"two", b"three"):
        write_bytes(tmp_path / "last", content, previous=tmp_path / "previous")
    assert (tmp_path / "last").read_bytes() == b"three"
    assert (tmp_path / "previous").read_bytes() == b"two"


def test_temporary_files_that_a_killed_process_left_are_removed_and_those_in_use_are_not(
    tmp_path: Path,
):
    left, used = (tmp_path / f".file.{name}.part" for name in ("left", "used"))
    left.write_bytes(b"half")
    with used.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_bytes(tmp_path / "file", b"whole")
        assert used.exists()
    assert not left.exists()


def test_a_pipe_is_written_to_and_stays(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        write_bytes(pipe, b"content")
        assert read.result() == b"content"
    assert pipe.is_fifo()


def test_of_a_link_the_file_is_replaced_that_it_points_to(tmp_path: Path):
    write_bytes(tmp_path / "file", b"before")
    (tmp_path / "link").symlink_to("file")
    write_bytes(tmp_path / "link", b"after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"after"


def test_an_output_that_cannot_be_written_is_refused_by_its_argument(tmp_path: Path):
    for path in ["", ".", "none/file", "a" * 300, "/proc/file", "/dev/full/file"]:
        with pytest.raises(ValueError, match=r"html must be a file that can be written \(.+\)"):
            check_output_file("html", tmp_path / path)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 10_000, "nested 30 deep"),
        ("&a [*a]", "100,000 values"),
        (
            "a0: &a0 [x]\n"
            + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)),
            "100,000 values",
        ),
        ("{a: 1", "a YAML file"),
        ("!!python/object:os.system {}", "a YAML file"),
        ("\x00", "a YAML file"),
    ],
    ids=["deep", "within itself", "doubling", "cut off", "an object", "no text"],
)
def test_yaml_without_measure_is_refused(text: str, message: str, tmp_path: Path):
    (tmp_path / "file.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_yaml("study", tmp_path / "file.yaml")


def test_yaml_with_aliases_is_read(tmp_path: Path):
    (tmp_path / "file.yaml").write_text("a: &a {x: 1}\nb: [*a, *a]", encoding="utf-8")
    assert read_yaml("study", tmp_path / "file.yaml") == {"a": {"x": 1}, "b": [{"x": 1}, {"x": 1}]}


def test_a_new_folder_takes_its_place_whole_or_not_at_all(tmp_path: Path):
    place = tmp_path / "run"
    for content in ("old", "new"):
        with atomic_directory("out", place, replace=True) as folder:
            (folder / "file").write_text(content)
        assert (place / "file").read_text() == content
    with pytest.raises(FileNotFoundError), atomic_directory("out", place, replace=True) as folder:
        (folder / "missing" / "file").write_text("half")
    with (
        pytest.raises(OSError, match=r"not empty|exists"),
        atomic_directory("out", place) as folder,
    ):
        (folder / "file").write_text("over what is not to be replaced")
    assert (place / "file").read_text() == "new"
    (tmp_path / "empty").mkdir()
    with atomic_directory("out", tmp_path / "empty") as folder:
        (folder / "file").write_text("there")
    assert (tmp_path / "empty" / "file").read_text() == "there"
    assert {path.name for path in tmp_path.iterdir()} == {"run", "empty"}
