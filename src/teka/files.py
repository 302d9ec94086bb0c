"""Writing files whole or not at all."""

import contextlib
import errno
import glob
import json
import os
import secrets
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from teka.errors import wrong_argument, wrong_value
from teka.memory import check_memory

MAX_YAML_VALUES, MAX_YAML_DEPTH = 100_000, 30
# An archive that unpacks to more than both is refused: images shrink by a factor of some tens at most.
MAX_UNPACKED_BYTES, MAX_COMPRESSION_RATIO = 2**29, 200

try:
    import fcntl
except ImportError:  # not a POSIX system: what a killed process leaves is not removed there
    fcntl = None


def write_bytes(path: Path, content: bytes | memoryview, *, previous: Path | None = None) -> None:
    """Write a file whole or not at all, whatever happens meanwhile: a kill, a full disk, a loss of power.

    Until the end what stood there stays; then it takes the name `previous`, if any. A device or a pipe is written to.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                file.write(content)
        else:
            _replace(
                resolve_path("path", path), content, previous
            )  # a link stays, and its target is replaced
    except OSError as error:  # those of a write do not say where
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _replace(path: Path, content: bytes | memoryview, previous: Path | None) -> None:
    _remove_abandoned(path)
    temporary, file = _create_beside(path)
    try:
        with file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()  # Windows renames no open file
            if previous is not None and path.is_file():
                path.replace(previous)
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        with contextlib.suppress(OSError):  # some file systems of a network flush no folder
            os.fsync(folder)
        os.close(folder)


def _create_beside(path: Path) -> tuple[Path, BinaryIO]:
    """A new temporary file, locked for as long as it is open, which tells it from one that was left."""
    while True:
        temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
        file = temporary.open("xb")
        _lock(file)
        if (
            temporary.exists()
        ):  # which another process may have taken for one that was left, before the lock
            return temporary, file
        file.close()


def _remove_abandoned(path: Path) -> None:
    for left in path.parent.glob(f".{glob.escape(path.name[:200])}.*.part"):
        with contextlib.suppress(OSError), left.open("r+b") as file:
            if _lock(file):
                left.unlink()


def _lock(file: BinaryIO) -> bool:
    """Whether the file is now this process's alone; where files cannot be locked, it is not."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def expand_user(path: str | Path) -> Path:
    """Return the path with `~` and `~user` replaced by the home folder; an unknown user stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises RuntimeError for an unknown user


def resolve_path(argument: str, path: str | Path) -> Path:
    """Return the absolute path with `~` and every symbolic link resolved."""
    try:
        return expand_user(path).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        raise wrong_value(argument, str(path), "a path without a loop of symbolic links") from error


def read_yaml(argument: str, path: str | Path) -> object:
    """Read a YAML file of plain values, unless it nests or repeats itself without measure."""
    import yaml

    file = Path(path)
    if not file.is_file():
        raise wrong_value(argument, str(path), "a YAML file")
    try:
        text = file.read_text(encoding="utf-8")
        size = 0
        sizes: dict[str, int] = {}  # of what an anchor names: how many values it stands for
        opened: list[tuple[str | None, int]] = []
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                size += sizes.get(
                    event.anchor, MAX_YAML_VALUES
                )  # one that is within itself has no size yet
            elif isinstance(event, yaml.CollectionStartEvent):
                opened.append((event.anchor, size))
                size += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = opened.pop()
                if anchor is not None:
                    sizes[anchor] = size - before
            elif isinstance(event, yaml.ScalarEvent):
                size += 1
                if event.anchor is not None:
                    sizes[event.anchor] = 1
            if len(opened) > MAX_YAML_DEPTH or size > MAX_YAML_VALUES:
                expected = (
                    f"{MAX_YAML_VALUES:,} values at most, nested {MAX_YAML_DEPTH} deep at most"
                )
                raise wrong_value(argument, str(path), expected)
        return yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise wrong_value(
            argument, str(path), f"a YAML file ({' '.join(str(error).split())})"
        ) from error


def check_unpacked_size(archive: zipfile.ZipFile, path: object) -> None:
    """Check the size that a zip archive unpacks to, before anything is unpacked.

    zipfile never reads more of a file than the archive says it has.
    """
    files = archive.infolist()
    size, packed = sum(file.file_size for file in files), sum(file.compress_size for file in files)
    if size > max(MAX_UNPACKED_BYTES, MAX_COMPRESSION_RATIO * packed):
        expected = f"at most {MAX_COMPRESSION_RATIO} times the {packed:,} bytes that it takes"
        raise wrong_argument(f"the unpacked size of {path}", f"{size:,} bytes", expected)
    check_memory(f"the unpacked size of {path}", size, size, "arrays")


def check_output_file(argument: str, path: str | Path) -> Path:
    """Check that a file can be written, before the work that it is to hold."""
    file = Path(path)
    try:
        if file.is_dir() or not file.name:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with contextlib.suppress(FileNotFoundError):
            file.stat()  # a name that is too long, of which `exists` says nothing from Python 3.14 on
        if not file.exists() or file.is_file():
            _try_to_write(resolve_path(argument, file))
    except OSError as error:
        raise wrong_value(
            argument, str(path), f"a file that can be written ({error.strerror})"
        ) from error
    return file


def make_directory(argument: str, path: str | Path) -> Path:
    """The folder, made with its parents if it is missing, and tried: a file must be writable there."""
    folder = Path(path)
    expected = "a folder that can be written to, or a place where one can be made"
    if not str(path):
        raise wrong_value(argument, "", expected)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _try_to_write(folder / "new")
    except OSError as error:
        raise wrong_value(argument, str(path), f"{expected} ({error.strerror})") from error
    return folder


@contextlib.contextmanager
def atomic_directory(argument: str, path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A folder to fill, which takes the path once that is done without error; `replace` what is no empty folder too."""
    parent = make_directory(argument, path.parent)
    with tempfile.TemporaryDirectory(
        prefix=f".{path.name}.", dir=parent, ignore_cleanup_errors=True
    ) as temporary:
        new, old = Path(temporary, "new"), Path(temporary, "old")
        new.mkdir()
        yield new
        if replace and path.exists():
            path.rename(old)
        try:
            new.replace(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise


def _try_to_write(path: Path) -> None:
    temporary, file = _create_beside(path)
    try:
        with file:
            file.write(bytes(4096))
    finally:
        temporary.unlink()


def write_json(path: Path, content: Mapping[str, object]) -> Path:
    """Write a mapping as indented JSON, whole or not at all, and give the path back."""
    write_bytes(
        path, (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
    )
    return path


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object."""
    if not path.is_file():
        raise ValueError(f"{path} is missing, expected a JSON file")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}, expected a JSON object")
    return content
