import gzip
import hashlib
from pathlib import Path

import pytest
import torch

from teka.data.idx import read_idx

VALUES = torch.arange(2 * 3 * 5, dtype=torch.uint8).reshape(2, 3, 5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "images-idx3-ubyte"


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("shape", [(30,), (2, 15), (2, 3, 5)])
def test_values_are_read_in_row_major_order(to_idx, path: Path, pack, shape: tuple[int, ...]):
    path.write_bytes(pack(to_idx(VALUES.reshape(shape))))
    assert torch.equal(read_idx(path, num_axes=len(shape)), VALUES.reshape(shape))


def test_the_hash_is_that_of_the_unpacked_content(to_idx, path: Path):
    content = to_idx(VALUES)
    expected = hashlib.sha256(content).hexdigest()
    for level in (1, 9):
        path.write_bytes(gzip.compress(content, level))
        assert torch.equal(read_idx(path, num_axes=3, sha256=expected), VALUES)


def test_another_hash_is_an_error_that_names_the_file_and_both_hashes(to_idx, path: Path):
    content = to_idx(VALUES)
    path.write_bytes(content)
    expected = "0" * 64
    with pytest.raises(ValueError, match="not the published file") as caught:
        read_idx(path, num_axes=3, sha256=expected)
    for part in (str(path), hashlib.sha256(content).hexdigest(), expected):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0", b"not an IDX file", b"\0\0\x09\x03" + bytes(50), b"\0\0\x08\x02" + bytes(50)],
    ids=["empty", "two bytes", "text", "signed bytes", "two axes"],
)
def test_a_wrong_magic_number_is_an_error_that_names_the_file(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="magic number 00000803") as caught:
        read_idx(path, num_axes=3)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("kept", [4, 15, 16, 45])
def test_too_few_bytes_are_an_error_that_names_the_file(to_idx, path: Path, pack, kept: int):
    path.write_bytes(pack(to_idx(VALUES)[:kept]))
    with pytest.raises(ValueError, match=f"truncated: it unpacks to {kept} bytes") as caught:
        read_idx(path, num_axes=3)
    assert str(path) in str(caught.value)


def test_too_many_bytes_are_an_error_that_names_the_sizes(to_idx, path: Path):
    path.write_bytes(to_idx(VALUES) + b"\0")
    with pytest.raises(ValueError, match=r"too long: it unpacks to 47 bytes, expected 46 for the sizes \(2, 3, 5\)"):
        read_idx(path, num_axes=3)


def test_gzip_data_cut_at_any_byte_is_an_error(to_idx, path: Path):
    packed = gzip.compress(to_idx(VALUES))
    for kept in range(2, len(packed)):
        path.write_bytes(packed[:kept])
        with pytest.raises(ValueError, match="truncated or damaged gzip data") as caught:
            read_idx(path, num_axes=3)
        assert str(path) in str(caught.value)


def test_a_flipped_byte_in_gzip_data_is_an_error(to_idx, path: Path):
    packed = bytearray(gzip.compress(to_idx(VALUES)))
    for place in range(len(packed) - 8, len(packed)):  # the checksum and the length
        damaged = packed.copy()
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged gzip data"):
            read_idx(path, num_axes=3)
    packed[12] ^= 0xFF  # the compressed values themselves
    path.write_bytes(packed)
    with pytest.raises(ValueError, match="damaged gzip data"):
        read_idx(path, num_axes=3)
