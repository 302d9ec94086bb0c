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
    check_file_is_writable,
    check_folder_is_writable,
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
def test_read_json_inverts_write_json(content: dict[str, object], folder: Path):
    write_json(folder / "content.json", content)
    assert read_json(folder / "content.json") == content


def test_file_is_replaced_without_temporary_files(tmp_path: Path):
    path = tmp_path / "file"
    for content in (b"one", b"two, and longer"):
        write_bytes(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_loop_of_symbolic_links_is_an_error(tmp_path: Path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for use in (resolve_path, check_file_is_writable, make_directory):
        with pytest.raises(ValueError, match=r"out must be .*got .*loop"):
            use("out", loop)
    assert loop.is_symlink()


def test_unknown_user_is_not_expanded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert expand_user("~/data") == Path("/home/somebody/data")
    assert expand_user("~no such user/data") == Path("~no such user/data")


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    write_bytes(path, b"before")

    def fail(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match=r"no space left: .*file"):
        write_bytes(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_nan_is_an_error_and_nothing_is_written(tmp_path: Path):
    for number in [math.nan, math.inf]:
        with pytest.raises(ValueError, match="JSON compliant"):
            write_json(tmp_path / "content.json", {"loss": number})
        assert list(tmp_path.iterdir()) == []


def test_json_is_indented_and_not_escaped(tmp_path: Path):
    write_json(tmp_path / "content.json", {"name": "ω"})
    assert (tmp_path / "content.json").read_text(encoding="utf-8") == '{\n  "name": "ω"\n}\n'


def test_missing_file_is_an_error(tmp_path: Path):
    with pytest.raises(
        ValueError, match=r"none\.json must be a file with a JSON object, got no file"
    ):
        read_json(tmp_path / "none.json")


def test_invalid_json_is_an_error(tmp_path: Path):
    for content in [b"", b"{", b"{'a': 1}", b"\xff\xfe\x00"]:
        (tmp_path / "broken.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"broken\.json must be .*got invalid JSON"):
            read_json(tmp_path / "broken.json")


def test_json_must_be_an_object(tmp_path: Path):
    for content in [[1], "text", None, 3]:
        (tmp_path / "list.json").write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(
            ValueError, match=r"list\.json must be a file with a JSON object, got a"
        ):
            read_json(tmp_path / "list.json")


def test_make_directory_makes_parents(tmp_path: Path):
    for _ in range(2):
        assert make_directory("out", str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
        assert (tmp_path / "a" / "b").is_dir()


def test_make_directory_over_a_file_is_an_error(tmp_path: Path):
    for below in ["file", "file/folder"]:
        (tmp_path / "file").write_text("", encoding="utf-8")
        with pytest.raises(ValueError, match=r"out must be a writable folder.*(exists|directory)"):
            make_directory("out", tmp_path / below)


def test_old_file_is_renamed(tmp_path: Path):
    for content in (b"one", b"two", b"three"):
        write_bytes(tmp_path / "last", content, backup=tmp_path / "previous")
    assert (tmp_path / "last").read_bytes() == b"three"
    assert (tmp_path / "previous").read_bytes() == b"two"


def test_only_abandoned_temporary_files_are_removed(tmp_path: Path):
    left, used = (tmp_path / f".file.{name}.part" for name in ("left", "used"))
    left.write_bytes(b"half")
    with used.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_bytes(tmp_path / "file", b"whole")
        assert used.exists()
    assert not left.exists()


def test_pipe_is_written_directly(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        write_bytes(pipe, b"content")
        assert read.result() == b"content"
    assert pipe.is_fifo()


def test_target_of_a_link_is_replaced(tmp_path: Path):
    write_bytes(tmp_path / "file", b"before")
    (tmp_path / "link").symlink_to("file")
    write_bytes(tmp_path / "link", b"after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"after"


def test_output_file_that_cannot_be_written_is_an_error(tmp_path: Path):
    for path in ["", ".", "a" * 300, "/proc/file", "/proc/none/file", "/dev/full/file"]:
        with pytest.raises(
            ValueError, match=r"html must be a (file that can be written \(.+\)|path)"
        ):
            check_file_is_writable("html", tmp_path / path)
        assert list(tmp_path.iterdir()) == []


def test_folder_is_not_created_before_its_file_is_written(tmp_path: Path):
    path = tmp_path / "new" / "below" / "page.html"
    assert check_file_is_writable("html", path) == path
    assert check_folder_is_writable("out", path.parent) == path.parent
    assert list(tmp_path.iterdir()) == []
    write_bytes(path, b"page")
    assert [file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*.*")] == [
        "new/below/page.html"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 10_000, "a YAML file"),
        ("&a [*a]", "aliases are not supported"),
        ("a: &a {x: 1}\nb: [*a, *a]", "aliases are not supported"),
        ("{a: 1", "a YAML file"),
        ("!!python/object:os.system {}", "a YAML file"),
        ("\x00", "a YAML file"),
    ],
    ids=["deep", "within itself", "aliases", "cut off", "an object", "no text"],
)
def test_invalid_yaml_is_an_error(text: str, message: str, tmp_path: Path):
    (tmp_path / "file.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_yaml("study", tmp_path / "file.yaml")


def test_atomic_directory_is_complete_or_absent(tmp_path: Path):
    place = tmp_path / "run"
    for content in ("old", "new"):
        with atomic_directory("out", place) as folder:
            (folder / "file").write_text(content)
        assert (place / "file").read_text() == content
    with pytest.raises(FileNotFoundError), atomic_directory("out", place) as folder:
        (folder / "missing" / "file").write_text("half")
    assert (place / "file").read_text() == "new"
    (tmp_path / "empty").mkdir()
    with atomic_directory("out", tmp_path / "empty") as folder:
        (folder / "file").write_text("there")
    assert (tmp_path / "empty" / "file").read_text() == "there"
    assert {path.name for path in tmp_path.iterdir()} == {"run", "empty"}
