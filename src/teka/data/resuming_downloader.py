"""Fetching a file over HTTP: what has arrived stays when the connection breaks, and the next attempt goes on there."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 2**13
_RANGE_NOT_SATISFIABLE = 416
# Request timeout, too early, too many requests: the same request may be answered later.
_PASSING = (408, 425, 429)


class RefusedError(ConnectionError):
    """The server does not give this file; asking again would not help."""


@dataclass(frozen=True)
class ResumingDownloader:
    """A downloader for `pooch.retrieve` that resumes, gives up on a stalled connection, and unpacks.

    Bytes are appended to `part`. With some of them there, only the rest is asked for (HTTP Range); a server that sends
    everything all the same is taken at its word, and `part` begins anew. Once whole, `part` is unpacked into the file
    that pooch checks and moves into its place, and removed.

    Args:
        part: Where the packed bytes gather.
        unpack: Called with `part` and the file to write; raises ValueError for damaged data.
        timeout: Seconds without a byte after which the connection counts as stalled.
    """

    part: Path
    unpack: Callable[[Path, Path], None]
    timeout: float

    def __call__(self, url: str, output_file: str, pooch: object, check_only: bool = False) -> None:
        """Fetch a file, as pooch calls it.

        Args:
            url: Its address.
            output_file: The file to write.
            pooch: Not used.
            check_only: Not used; `pooch.retrieve` never sets it.

        Raises:
            RefusedError: The server does not give this file.
            ConnectionError: Stalled, broken off, or an answer that may pass; `part` keeps what came.
            ValueError: Damaged data; `part` is removed.
        """
        fetch_rest(url, self.part, timeout=self.timeout)
        try:
            self.unpack(self.part, Path(output_file))
        except ValueError:
            self.part.unlink()
            raise
        self.part.unlink()
        # Temporary files are made for their owner alone.
        Path(output_file).chmod(0o644)


def fetch_rest(address: str, part: Path, *, timeout: float) -> None:
    """Append to a file what it lacks of the one at an address; a bar shows it on a terminal.

    Args:
        address: The address.
        part: The file, which need not exist.
        timeout: Seconds without a byte after which the connection counts as stalled.

    Raises:
        RefusedError: The server does not give this file.
        ConnectionError: Stalled, broken off, or an answer that may pass.
    """
    import requests
    import urllib3
    from tqdm import tqdm

    so_far = _size(part)
    # A server may pack what it sends; the hash and the ranges are those of the file.
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={so_far}-"} if so_far else {})}
    try:
        with requests.get(address, headers=headers, stream=True, timeout=timeout) as response:
            if response.status_code == _RANGE_NOT_SATISFIABLE and _whole_size(response.headers) == so_far:
                return
            start = _start(address, response.status_code, response.headers, so_far, part)
            length = response.headers.get("Content-Length")
            total = None if length is None else start + int(length)
            with (
                part.open("ab" if start else "wb") as file,
                tqdm(
                    desc=address.rsplit("/", 1)[-1], total=total, initial=start, unit="B", unit_scale=True, disable=None
                ) as bar,
            ):
                # Not `iter_content`, which would unpack what a server declares as packed.
                for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
                    file.write(chunk)
                    bar.update(len(chunk))
    except (requests.Timeout, urllib3.exceptions.TimeoutError) as error:
        raise ConnectionError(f"{address} sent nothing for {timeout:g} s") from error
    except urllib3.exceptions.HTTPError as error:
        raise ConnectionError(f"{address} broke off after {_size(part):,} bytes") from error
    except requests.RequestException as error:
        # What was wrong lies within what gave up because of it.
        reason = getattr(error.args[0], "reason", error) if error.args else error
        raise ConnectionError(f"{address}: {reason}") from error
    # Before its version 2, urllib3 takes an early end for the end.
    if total is not None and _size(part) < total:
        raise ConnectionError(f"{address} broke off after {_size(part):,} bytes")


def _start(address: str, status: int, headers: Mapping[str, str], so_far: int, part: Path) -> int:
    """The byte that the answer begins with."""
    if status == 200:
        return 0
    if status == 206 and _first_byte(headers) == so_far:
        return so_far
    if status in (206, _RANGE_NOT_SATISFIABLE):
        part.unlink(missing_ok=True)
        raise ConnectionError(f"{address} has another file than before, or another part of it than was asked for")
    kind = RefusedError if 400 <= status < 500 and status not in _PASSING else ConnectionError
    raise kind(f"{address} answers {status}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _whole_size(headers: Mapping[str, str]) -> int | None:
    found = re.fullmatch(r"bytes \*/(\d+)", headers.get("Content-Range", ""))
    return None if found is None else int(found[1])


def _first_byte(headers: Mapping[str, str]) -> int | None:
    found = re.match(r"bytes (\d+)-", headers.get("Content-Range", ""))
    return None if found is None else int(found[1])
