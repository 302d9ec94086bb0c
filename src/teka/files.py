"""Writing files whole or not at all."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from teka.errors import wrong_value


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file by way of a temporary one beside it, so that what stood there stays until the new one is whole."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a mapping as indented JSON, whole or not at all."""
    write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object.

    Raises:
        ValueError: No such file, or not a JSON object.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing, expected a JSON file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}, expected a JSON object")
    return content


def make_directory(argument: str, path: str | Path) -> Path:
    """The folder, made with its parents if it is missing.

    Args:
        argument: The argument that named it.
        path: The folder.

    Raises:
        ValueError: It or a parent is a file.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise wrong_value(argument, str(path), "a folder, or a place where one can be made; it is a file") from error
    except PermissionError as error:
        raise wrong_value(argument, str(path), "a folder that may be written to") from error
    return folder
