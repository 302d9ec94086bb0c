import gzip
import hashlib
import re
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from teka.data.fetch import Fetcher, PublishedFile, _Limited

# Bytes that do not pack, so that what is sent is long against the pieces it is read in.
CONTENT = (
    torch.randint(0, 256, (90_001,), generator=torch.Generator().manual_seed(0))
    .to(torch.uint8)
    .numpy()
    .tobytes()
)
PACKED = gzip.compress(CONTENT, mtime=0)
FETCHER = Fetcher(timeout=20.0, attempts=3)
ONCE = replace(FETCHER, attempts=1)
FAULTS = ("500", "429", "truncates", "stalls", "corrupts", "ends unannounced")


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch):
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)


@pytest.fixture
def file(server) -> PublishedFile:
    server.files["images.gz"] = PACKED
    return PublishedFile(
        "images", (f"{server.address}images.gz",), f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_arrives_unpacked_readable_and_alone(server, file: PublishedFile, tmp_path: Path):
    path = FETCHER.fetch(file, tmp_path / "new")
    assert path == tmp_path / "new" / "images"
    assert path.read_bytes() == CONTENT
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert names(tmp_path / "new") == ["images"]
    assert server.requests == ["images.gz"]


def test_a_packed_file_may_be_what_is_kept(server, file: PublishedFile, tmp_path: Path):
    kept = replace(
        file, name="images.gz", known_hash=f"md5:{hashlib.md5(PACKED).hexdigest()}", is_packed=False
    )
    assert FETCHER.fetch(kept, tmp_path).read_bytes() == PACKED
    assert names(tmp_path) == ["images.gz"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_is_got_over(server, file: PublishedFile, tmp_path: Path, fault: str):
    server.faults = [fault]
    fetcher = replace(FETCHER, timeout=1.0) if fault == "stalls" else FETCHER
    assert fetcher.fetch(file, tmp_path).read_bytes() == CONTENT
    assert names(tmp_path) == ["images"]
    assert len(server.requests) == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays_leaves_nothing_under_the_name_and_says_what_it_was(
    server, file: PublishedFile, tmp_path: Path, fault: str
):
    server.faults = [fault] * 100
    fetcher = replace(FETCHER, timeout=0.25) if fault == "stalls" else FETCHER
    with pytest.raises(ConnectionError, match="images could not be downloaded") as caught:
        fetcher.fetch(file, tmp_path)
    assert file.addresses[0] in str(caught.value)
    words = {
        "500": "500 Server Error",
        "429": "429 Client Error",
        "truncates": "IncompleteRead",
        "stalls": "timed out",
    }
    assert re.search(words.get(fault, "damaged gzip data|hash"), str(caught.value))
    assert names(tmp_path) == []
    assert len(server.requests) == FETCHER.attempts


@pytest.mark.parametrize(("status", "requests"), [("404", 3), ("503", 3)])
def test_the_next_address_is_asked_when_one_gives_up(
    server, file: PublishedFile, tmp_path: Path, status: str, requests: int
):
    server.files["mirror/images.gz"] = PACKED
    server.faults = [status] * requests
    both = replace(file, addresses=(*file.addresses, f"{server.address}mirror/images.gz"))
    assert FETCHER.fetch(both, tmp_path).read_bytes() == CONTENT
    assert server.requests == ["images.gz"] * requests + ["mirror/images.gz"]


def test_when_every_address_fails_each_is_named(server, file: PublishedFile, tmp_path: Path):
    both = replace(file, addresses=(f"{server.address}first.gz", "http://127.0.0.1:9/second.gz"))
    with pytest.raises(
        ConnectionError, match=r"first\.gz: 404 Client Error.*; http://127\.0\.0\.1:9/second\.gz: "
    ):
        FETCHER.fetch(both, tmp_path)


def test_a_damaged_file_stays_until_a_whole_one_takes_its_place(
    server, file: PublishedFile, tmp_path: Path
):
    (tmp_path / "images").write_bytes(b"damaged")
    server.faults = ["corrupts"]
    with pytest.raises(ConnectionError):
        ONCE.fetch(file, tmp_path)
    assert (tmp_path / "images").read_bytes() == b"damaged"
    assert ONCE.fetch(file, tmp_path).read_bytes() == CONTENT


def test_another_file_than_the_published_one_is_never_placed(
    server, file: PublishedFile, tmp_path: Path
):
    server.files["images.gz"] = gzip.compress(CONTENT[:-1] + b"\0")
    with pytest.raises(ConnectionError, match=file.known_hash.removeprefix("sha256:")):
        FETCHER.fetch(file, tmp_path)
    assert names(tmp_path) == []


def test_a_download_of_another_packing_is_an_error_that_says_so_and_leaves_nothing(
    server, file, tmp_path: Path
):
    server.files["images.gz"] = b"PK\x03\x04" + CONTENT
    with pytest.raises(
        ConnectionError, match=r"images\.gz: SHA256 hash of downloaded file \(images\)"
    ):
        FETCHER.fetch(file, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("packed", [True, False])
def test_a_download_is_given_up_where_it_grows_beyond_its_size(
    server, file, tmp_path: Path, monkeypatch, packed: bool
):
    written = []
    write = _Limited.write
    monkeypatch.setattr(
        _Limited, "write", lambda self, content: written.append(write(self, content))
    )
    bomb = bytes(20_000_000)
    server.files["images.gz"] = gzip.compress(bomb) if packed else bomb
    with pytest.raises(ConnectionError, match="it is larger than the published file"):
        ONCE.fetch(replace(file, max_bytes=len(CONTENT)), tmp_path)
    assert sum(written) < 3 * len(CONTENT)
    assert names(tmp_path) == []
    server.files["images.gz"] = PACKED  # which is a little larger than its content
    assert ONCE.fetch(replace(file, max_bytes=len(CONTENT)), tmp_path).read_bytes() == CONTENT


def test_a_server_that_declares_the_packing_changes_nothing(
    server, file: PublishedFile, tmp_path: Path
):
    server.encoding = "gzip"
    assert FETCHER.fetch(file, tmp_path).read_bytes() == CONTENT


def test_an_interrupt_leaves_nothing(
    server, file: PublishedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gzip, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        FETCHER.fetch(file, tmp_path)
    assert names(tmp_path) == []


def test_without_pooch_the_error_says_how_to_get_it(
    file: PublishedFile, tmp_path: Path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install teka\[train\]"):
        FETCHER.fetch(file, tmp_path)


def test_patience_out_of_range_is_an_error():
    for options, message in [
        ({"timeout": 0.0}, r"timeout must be .*got 0\.0"),
        ({"timeout": float("nan")}, r"timeout must be .*got nan"),
        ({"attempts": 0}, r"attempts must be .*got 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            Fetcher(**options)


def test_a_second_call_asks_for_nothing(server, file: PublishedFile, tmp_path: Path):
    for _ in range(2):
        FETCHER.fetch(file, tmp_path)
    assert len(server.requests) == 1
