"""IDX, the file format of MNIST: a magic number, the sizes, then the values in row-major order."""

import gzip
import hashlib
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08


def read_idx(path: Path, *, num_axes: int, sha256: str | None = None) -> UInt8[Tensor, "..."]:
    """Read an IDX file of unsigned bytes, packed by gzip or not (its content tells, not its name).

    The file is two zero bytes, the type of the values (8: unsigned byte), the number of axes n, then n sizes, each
    a big-endian 32-bit number, then the values.

    Args:
        path: The file.
        num_axes: Axes that it must have: 3 for images, 1 for labels.
        sha256: Hash that its *unpacked* content must have, in hexadecimal; without it, none is checked.

    Returns:
        The values, in the sizes that the file states.

    Raises:
        ValueError: Damaged gzip data, a wrong magic number, fewer or more bytes than the sizes ask for, or a wrong
            hash; the message names the file.
        OSError: The file cannot be opened or read.

    Source: Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits, "File formats".
    """
    content = _unpack(path)
    magic = bytes([0, 0, _UNSIGNED_BYTE, num_axes])
    start = len(magic) + 4 * num_axes
    if content[: len(magic)] != magic:
        found = content[: len(magic)].hex() or "nothing"
        raise ValueError(f"{path} starts with {found}, expected the IDX magic number {magic.hex()}")
    if len(content) < start:
        raise ValueError(f"{path} is truncated: it unpacks to {len(content)} bytes, expected a header of {start}")
    sizes = [int.from_bytes(content[place : place + 4], "big") for place in range(len(magic), start, 4)]
    expected = start + math.prod(sizes)
    if len(content) != expected:
        state = "truncated" if len(content) < expected else "too long"
        raise ValueError(
            f"{path} is {state}: it unpacks to {len(content)} bytes, expected {expected} for the sizes {tuple(sizes)}"
        )
    if sha256 is not None:
        _check_hash(path, content, sha256)
    # A bytearray, because torch warns of memory that cannot be written.
    return torch.from_numpy(np.frombuffer(bytearray(content), dtype=np.uint8, offset=start).reshape(sizes))


def has_content(path: Path, sha256: str) -> bool:
    """Whether the unpacked content of a file has this hash.

    Args:
        path: The file, packed by gzip or not.
        sha256: The hash, in hexadecimal.

    Raises:
        OSError: The file cannot be opened or read.
    """
    try:
        _check_hash(path, _unpack(path), sha256)
    except ValueError:
        return False
    return True


def _unpack(path: Path) -> bytes:
    content = path.read_bytes()
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is truncated or damaged gzip data: {error}") from error


def _check_hash(path: Path, content: bytes, expected: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ValueError(
            f"{path} is not the published file: the SHA-256 of its unpacked content is {found}, expected {expected}"
        )
