"""Taking files out of a tar archive by their names, and nothing else."""

import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from teka.files import write_bytes


def take_files(archive: Path, files: Mapping[str, Path], *, num_bytes: int) -> None:
    """Copy members of a tar archive to given places; no path in the archive decides where anything goes.

    Args:
        archive: The archive, packed by gzip or not.
        files: Where each member goes, by its whole name in the archive.
        num_bytes: Size that each of them must have.

    Raises:
        ValueError: A damaged archive, one that lacks a member, or a member that is no plain file of that size.
    """
    missing = set(files)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.name not in missing:
                    continue
                content = tar.extractfile(member) if member.isreg() else None
                if content is None or member.size != num_bytes:
                    raise ValueError(
                        f"{archive}: {member.name} is no plain file of {num_bytes} bytes; it has {member.size}"
                    )
                write_bytes(files[member.name], content.read())
                missing.remove(member.name)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"{archive} is no tar archive, or damaged: {error}") from error
    if missing:
        raise ValueError(f"{archive} lacks {', '.join(sorted(missing))}")
