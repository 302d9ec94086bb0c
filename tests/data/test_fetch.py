import gzip
import hashlib
import re
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from teka.data.fetch import Fetcher, PublishedFile

# Bytes that do not pack, so that what is sent is long against the pieces it is read in.
CONTENT = torch.randint(0, 256, (90_001,), generator=torch.Generator().manual_seed(0)).to(torch.uint8).numpy().tobytes()
PACKED = gzip.compress(CONTENT, mtime=0)
FETCHER = Fetcher(timeout=0.25, attempts=3, wait=0.01)
ONCE = replace(FETCHER, attempts=1)
FAULTS = ("500", "429", "truncates", "stalls", "corrupts", "ends unannounced")
KEEPING = ("truncates", "stalls")  # faults that leave sound bytes to go on from


@pytest.fixture
def file(server) -> PublishedFile:
    server.files["images.gz"] = PACKED
    return PublishedFile("images", (f"{server.address}images.gz",), f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_arrives_unpacked_readable_and_alone(server, file: PublishedFile, tmp_path: Path):
    path = FETCHER.fetch(file, tmp_path / "new")
    assert path == tmp_path / "new" / "images"
    assert path.read_bytes() == CONTENT
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert names(tmp_path / "new") == ["images"]
    assert server.requests == [("images.gz", None)]


def test_a_packed_file_may_be_what_is_kept(server, file: PublishedFile, tmp_path: Path):
    kept = replace(file, name="images.gz", known_hash=f"md5:{hashlib.md5(PACKED).hexdigest()}", is_packed=False)
    assert FETCHER.fetch(kept, tmp_path).read_bytes() == PACKED
    assert names(tmp_path) == ["images.gz"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("knows_ranges", [True, False], ids=["ranges", "no ranges"])
def test_a_fault_that_passes_is_got_over(server, file: PublishedFile, tmp_path: Path, fault: str, knows_ranges: bool):
    server.faults, server.knows_ranges = [fault], knows_ranges
    assert FETCHER.fetch(file, tmp_path).read_bytes() == CONTENT
    assert names(tmp_path) == ["images"]
    assert len(server.requests) == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays_leaves_nothing_under_the_name_and_says_what_it_was(
    server, file: PublishedFile, tmp_path: Path, fault: str
):
    server.faults = [fault] * 100
    with pytest.raises(ConnectionError, match="images could not be downloaded") as caught:
        FETCHER.fetch(file, tmp_path)
    assert file.addresses[0] in str(caught.value)
    words = {"500": "answers 500", "429": "answers 429", "truncates": "broke off", "stalls": r"nothing for 0\.25 s"}
    assert re.search(words.get(fault, "damaged gzip data|hash"), str(caught.value))
    assert all(name.startswith(".images.") and name.endswith(".part") for name in names(tmp_path))
    assert bool(names(tmp_path)) == (fault in KEEPING)


@pytest.mark.parametrize("fault", KEEPING)
def test_the_next_attempt_asks_only_for_what_is_lacking(server, file: PublishedFile, tmp_path: Path, fault: str):
    server.faults = [fault]
    FETCHER.fetch(file, tmp_path)
    first, second = (asked for _, asked in server.requests)
    assert first is None
    found = re.fullmatch(r"bytes=(\d+)-", second)
    assert found
    assert len(PACKED) // 4 < int(found[1]) <= len(PACKED) // 2


def test_bytes_that_arrived_whole_are_not_sent_again(server, file: PublishedFile, tmp_path: Path):
    server.faults = ["truncates"]
    with pytest.raises(ConnectionError):
        ONCE.fetch(file, tmp_path)
    [part] = tmp_path.iterdir()
    part.write_bytes(PACKED)
    assert ONCE.fetch(file, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(b"\0" * 1000, id="other bytes"),
        pytest.param(b"\0" * len(PACKED), id="as many other bytes"),
        pytest.param(b"\0" * 2 * len(PACKED), id="more bytes"),
    ],
)
def test_a_part_of_another_file_is_thrown_away(server, file: PublishedFile, tmp_path: Path, left: bytes):
    server.faults = ["truncates"]
    with pytest.raises(ConnectionError):
        ONCE.fetch(file, tmp_path)
    [part] = tmp_path.iterdir()
    part.write_bytes(left)
    assert FETCHER.fetch(file, tmp_path).read_bytes() == CONTENT
    assert names(tmp_path) == ["images"]


def test_another_range_than_was_asked_for_is_not_appended(server, file: PublishedFile, tmp_path: Path):
    server.faults = ["truncates", "other range"]
    assert FETCHER.fetch(file, tmp_path).read_bytes() == CONTENT
    assert [asked is None for _, asked in server.requests] == [True, False, True]


def test_while_every_attempt_gets_further_none_is_the_last(server, file: PublishedFile, tmp_path: Path):
    server.faults = ["truncates"] * 7
    assert replace(FETCHER, attempts=2).fetch(file, tmp_path).read_bytes() == CONTENT


def test_without_ranges_the_same_bytes_again_are_no_progress(server, file: PublishedFile, tmp_path: Path):
    server.faults, server.knows_ranges = ["truncates"] * 100, False
    with pytest.raises(ConnectionError, match="broke off after"):
        FETCHER.fetch(file, tmp_path)
    # The first brings something; three in a row, of which it is one, do not bring more.
    assert len(server.requests) == FETCHER.attempts


@pytest.mark.parametrize(("status", "requests"), [("404", 1), ("403", 1), ("503", 3)])
def test_the_next_address_is_asked_when_one_gives_up(
    server, file: PublishedFile, tmp_path: Path, status: str, requests: int
):
    server.files["mirror/images.gz"] = PACKED
    server.faults = [status] * requests
    both = replace(file, addresses=(*file.addresses, f"{server.address}mirror/images.gz"))
    assert FETCHER.fetch(both, tmp_path).read_bytes() == CONTENT
    assert [path for path, _ in server.requests] == ["images.gz"] * requests + ["mirror/images.gz"]


def test_bytes_of_one_address_are_not_resumed_at_another(server, file: PublishedFile, tmp_path: Path):
    server.files["mirror/images.gz"] = gzip.compress(CONTENT, compresslevel=1, mtime=1)
    server.faults = ["truncates"]
    both = replace(file, addresses=(*file.addresses, f"{server.address}mirror/images.gz"))
    assert ONCE.fetch(both, tmp_path).read_bytes() == CONTENT
    assert server.requests[1] == ("mirror/images.gz", None)


def test_when_every_address_fails_each_is_named(server, file: PublishedFile, tmp_path: Path):
    both = replace(file, addresses=(f"{server.address}first.gz", "http://127.0.0.1:9/second.gz"))
    with pytest.raises(ConnectionError, match=r"first\.gz answers 404; http://127\.0\.0\.1:9/second\.gz: "):
        FETCHER.fetch(both, tmp_path)


def test_a_damaged_file_stays_until_a_whole_one_takes_its_place(server, file: PublishedFile, tmp_path: Path):
    (tmp_path / "images").write_bytes(b"damaged")
    server.faults = ["corrupts"]
    with pytest.raises(ConnectionError):
        ONCE.fetch(file, tmp_path)
    assert (tmp_path / "images").read_bytes() == b"damaged"
    assert ONCE.fetch(file, tmp_path).read_bytes() == CONTENT


def test_another_file_than_the_published_one_is_never_placed(server, file: PublishedFile, tmp_path: Path):
    server.files["images.gz"] = gzip.compress(CONTENT[:-1] + b"\0")
    with pytest.raises(ConnectionError, match=file.known_hash.removeprefix("sha256:")):
        FETCHER.fetch(file, tmp_path)
    assert names(tmp_path) == []


def test_a_download_of_another_packing_is_an_error_that_says_so_and_leaves_nothing(server, file, tmp_path: Path):
    server.files["images.gz"] = b"PK\x03\x04" + CONTENT
    with pytest.raises(ConnectionError, match=r"images\.gz: damaged gzip data: Not a gzipped file \(b'PK'\)"):
        FETCHER.fetch(file, tmp_path)
    assert names(tmp_path) == []


def test_a_server_that_declares_the_packing_changes_nothing(server, file: PublishedFile, tmp_path: Path):
    server.encoding = "gzip"
    assert FETCHER.fetch(file, tmp_path).read_bytes() == CONTENT


def test_an_interrupt_leaves_only_what_can_be_resumed(
    server, file: PublishedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gzip, "open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            FETCHER.fetch(file, tmp_path)
    assert [name[0] for name in names(tmp_path)] == ["."]
    assert FETCHER.fetch(file, tmp_path).read_bytes() == CONTENT
    assert server.requests[1] == ("images.gz", f"bytes={len(PACKED)}-")


def test_without_pooch_the_error_says_how_to_get_it(file: PublishedFile, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install teka\[train\]"):
        FETCHER.fetch(file, tmp_path)


def test_patience_out_of_range_is_an_error():
    for options, message in [
        ({"timeout": 0.0}, r"timeout is 0\.0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"attempts": 0}, "attempts is 0"),
        ({"wait": -1.0}, r"wait is -1\.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            Fetcher(**options)


def test_a_second_call_asks_for_nothing(server, file: PublishedFile, tmp_path: Path):
    for _ in range(2):
        FETCHER.fetch(file, tmp_path)
    assert len(server.requests) == 1


def test_so_does_the_next_call_after_one_that_was_cut_off(server, file: PublishedFile, tmp_path: Path):
    server.faults = ["truncates"]
    with pytest.raises(ConnectionError):
        ONCE.fetch(file, tmp_path)
    [part] = tmp_path.iterdir()
    size = part.stat().st_size
    assert ONCE.fetch(file, tmp_path).read_bytes() == CONTENT
    assert server.requests[1] == ("images.gz", f"bytes={size}-")
    assert names(tmp_path) == ["images"]
