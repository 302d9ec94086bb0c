"""Reading of files, and atomic writing of files and folders."""

import contextlib
import glob
import json
import os
import secrets
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from teka.checks import check_path
from teka.errors import wrong_argument, wrong_value
from teka.memory import check_fits_in_memory

# An archive that exceeds both limits is refused. Images compress by a factor of a few tens at most.
MAX_UNPACKED_BYTES = 2**29
MAX_COMPRESSION_RATIO = 200

try:
    import fcntl
except ImportError:  # on Windows, temporary files of killed processes are not removed
    fcntl = None


def write_bytes(path: Path, content: bytes | memoryview, *, backup: Path | None = None) -> None:
    """Write bytes to a file atomically: after an interruption, the file is either old or new.

    Examples of interruptions are a killed process, a full disk and a power failure. If the path is
    a symbolic link, its target is replaced. Devices and pipes are not replaced but written to.
    Missing folders are created.

    Args:
        path: File to write.
        content: Content of the file.
        backup: Path to which an existing file is moved. If it is None, the file is overwritten.

    Raises:
        OSError: The file cannot be written. The error names the path.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                file.write(content)
        else:
            _replace_file_atomically(resolve_path("path", path), content, backup)
    except OSError as error:  # errors of `write` do not name the path
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _replace_file_atomically(path: Path, content: bytes | memoryview, backup: Path | None) -> None:
    """Replace a file by renaming a complete temporary file to its path.

    The temporary file is in the same folder, and its content is on disk before it is renamed. An
    existing file is first renamed to `backup`, unless `backup` is None.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned_files(path)
    temporary, file = _create_temporary_file(path)
    try:
        with file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()  # Windows cannot rename an open file
            if backup is not None and path.is_file():
                path.replace(backup)
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        with contextlib.suppress(OSError):  # some network file systems cannot flush a folder
            os.fsync(folder)
        os.close(folder)


def _create_temporary_file(path: Path) -> tuple[Path, BinaryIO]:
    """Create a temporary file next to `path`, and return its path and the open file.

    The file is locked while it is open, so that other processes do not remove it.
    """
    while True:
        temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
        file = temporary.open("xb")
        _try_lock(file)
        # Another process may have removed the file as abandoned before it was locked.
        if temporary.exists():
            return temporary, file
        file.close()


def _remove_abandoned_files(path: Path) -> None:
    """Remove the temporary files that killed processes have left behind when they wrote `path`."""
    for temporary in path.parent.glob(f".{glob.escape(path.name[:200])}.*.part"):
        with contextlib.suppress(OSError), temporary.open("r+b") as file:
            if _try_lock(file):
                temporary.unlink()


def _try_lock(file: BinaryIO) -> bool:
    """Lock a file, and return True on success.

    The lock fails if another process has locked the file, or if the system has no locks.
    """
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def expand_user(path: str | Path) -> Path:
    """Replace `~` or `~user` at the start of a path by the user's home folder.

    The path does not change if the user is unknown.
    """
    # Path.expanduser raises a RuntimeError for an unknown user.
    return Path(os.path.expanduser(path))  # noqa: PTH111


def check_existing_folder(argument: str, path: str | Path) -> Path:
    """Return the path of a folder as a `Path`, and raise an error if the folder does not exist."""
    folder = expand_user(check_path(argument, path))
    if not folder.is_dir():
        raise wrong_value(argument, str(path), "a folder that exists")
    return folder


def resolve_path(argument: str, path: str | Path) -> Path:
    """Return the absolute path of a file, with `~` and symbolic links resolved.

    Args:
        argument: Name of the argument, for the error message.
        path: The path.
    """
    try:
        return expand_user(path).resolve()
    except (OSError, RuntimeError) as error:  # Python < 3.13 raises RuntimeError for a loop
        raise wrong_value(argument, str(path), "a path without a loop of symbolic links") from error


def read_yaml(argument: str, path: str | Path) -> object:
    """Read a YAML file, which may contain only basic types and no aliases.

    Args:
        argument: Name of the argument, for the error message.
        path: The file.

    Raises:
        ValueError: The file is missing or invalid.
    """
    import yaml

    file = Path(path)
    if not file.is_file():
        raise wrong_value(argument, str(path), "a YAML file")
    try:
        text = file.read_text(encoding="utf-8")
        # A short file with nested aliases may stand for more values than memory can hold.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise yaml.YAMLError("aliases are not supported")
        return yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        message = " ".join(str(error).split())
        raise wrong_value(argument, str(path), f"a YAML file ({message})") from error


def check_unpacked_size(archive: zipfile.ZipFile, path: object) -> None:
    """Raise an error if the unpacked files of a zip archive would not fit into memory.

    The sizes come from the headers of the archive. This is safe, because zipfile never reads more
    bytes than a header declares.

    Args:
        archive: The open archive.
        path: Path of the archive, for the error message.

    Raises:
        ValueError: The files are too large for the memory, or suspiciously large for the archive.
    """
    files = archive.infolist()
    size = sum(file.file_size for file in files)
    compressed = sum(file.compress_size for file in files)
    if size > max(MAX_UNPACKED_BYTES, MAX_COMPRESSION_RATIO * compressed):
        raise wrong_argument(
            f"the unpacked size of {path}",
            f"{size:,} bytes",
            f"at most {MAX_COMPRESSION_RATIO} times the {compressed:,} bytes of the archive",
        )
    check_fits_in_memory(f"the unpacked size of {path}", size, size, "arrays")


def check_file_is_writable(argument: str, path: str | Path) -> Path:
    """Return the path of an output file, and raise an error if the file cannot be written.

    Call this function before a long computation, so that its result is not lost. The function
    creates neither the file nor missing folders.

    Args:
        argument: Name of the argument, for the error message.
        path: Path of the file.
    """
    file = check_path(argument, path)
    try:
        if file.is_dir() or not file.name:
            raise IsADirectoryError(None, "Is a directory")
        if not file.exists() or file.is_file():
            _try_creating_file(resolve_path(argument, file))
    except OSError as error:
        raise wrong_value(
            argument, str(path), f"a file that can be written ({error.strerror})"
        ) from error
    return file


def check_folder_is_writable(argument: str, path: str | Path) -> Path:
    """Return the path of an output folder, and raise an error if it cannot be written to.

    Call this function before a long computation, so that its result is not lost. The function does
    not create the folder.

    Raises:
        ValueError: The folder cannot be created or is not writable.
    """
    folder = expand_user(check_path(argument, path))
    try:
        _try_creating_file(folder / "new")
    except OSError as error:
        expected = f"a writable folder, or the path of a new one ({error.strerror})"
        raise wrong_value(argument, str(path), expected) from error
    return folder


def make_directory(argument: str, path: str | Path) -> Path:
    """Create a folder if it does not exist, and return its path.

    Raises:
        ValueError: The folder cannot be created or is not writable.
    """
    folder = check_folder_is_writable(argument, path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def atomic_directory(argument: str, path: Path) -> Iterator[Path]:
    """Create or replace a folder atomically, as a context manager that yields a temporary folder.

    Write all files to the temporary folder. At the end of the context, it is renamed to `path`. If
    the context ends with an error, the temporary folder is removed.

    Args:
        argument: Name of the argument, for the error message.
        path: Folder to create or replace.
    """
    parent = make_directory(argument, path.parent)
    with tempfile.TemporaryDirectory(
        prefix=f".{path.name}.", dir=parent, ignore_cleanup_errors=True
    ) as temporary:
        new = Path(temporary, "new")
        old = Path(temporary, "old")
        new.mkdir()
        yield new
        if path.exists():
            path.rename(old)
        try:
            new.replace(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise


def _try_creating_file(path: Path) -> None:
    """Raise an OSError if a file cannot be created at `path`.

    The function writes a temporary file to the folder of the path, and removes it. If the folder
    does not exist, the function tries the nearest parent folder that exists.
    """
    while not os.path.lexists(path.parent):
        path = path.parent
    temporary, file = _create_temporary_file(path)
    try:
        with file:
            file.write(bytes(4096))
    finally:
        temporary.unlink()


def write_json(path: Path, content: Mapping[str, object]) -> Path:
    """Write a dictionary to a JSON file, atomically, and return the path of the file."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, f"{text}\n".encode())
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file, whose content must be an object, and return it as a dictionary.

    Raises:
        ValueError: The file is missing, or does not hold a JSON object.
    """
    expected = "a file with a JSON object"
    if not path.is_file():
        raise wrong_argument(str(path), "no file", expected)
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise wrong_argument(str(path), f"invalid JSON ({error})", expected) from error
    if not isinstance(content, dict):
        raise wrong_argument(str(path), f"a {type(content).__name__}", expected)
    return content
