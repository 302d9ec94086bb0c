"""Write a file whole or not at all."""

from pathlib import Path
from uuid import uuid4


def save(path: str | Path, content: bytes) -> Path:
    """Write to a temporary file beside the target, then rename it: no reader ever sees half a file.

    Args:
        path: The target; an old file there is replaced.
        content: What to write.

    Returns:
        The target.

    Raises:
        OSError: The folder does not exist or cannot be written; the old file is then untouched.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
