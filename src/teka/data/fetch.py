"""A published file: fetched from one of its addresses, unpacked, checked by its hash, then put in its place.

pooch checks and places it. What has arrived stays when the connection breaks, and the next attempt or call resumes.
"""

import gzip
import hashlib
import logging
import re
import shutil
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from teka.checks import check_sizes
from teka.errors import require, wrong_value

CHUNK_BYTES = 2**13
_RANGE_NOT_SATISFIABLE = 416
_PASSING = (408, 425, 429)  # request timeout, too early, too many requests: the same request may be answered later
_logger = logging.getLogger(__name__)


class RefusedError(ConnectionError):
    """The server does not give this file; asking again would not help."""


@dataclass(frozen=True)
class PublishedFile:
    """A file on the web: the name it is kept under, and where it lies, in the order in which addresses are tried."""

    name: str
    addresses: tuple[str, ...]
    known_hash: str
    is_packed: bool = True


@dataclass(frozen=True)
class Fetcher:
    """How files are fetched: with what patience.

    Args:
        timeout: Seconds without a byte after which a connection counts as stalled.
        attempts: Failures in a row, each without a byte more than before, after which an address is given up.
        wait: Seconds before the second attempt; twice as many before each further one.
    """

    timeout: float = 30.0
    attempts: int = 5
    wait: float = 1.0

    def __post_init__(self) -> None:
        check_sizes({"attempts": self.attempts})
        if not 0 < self.timeout < float("inf"):
            raise wrong_value("timeout", self.timeout, "a positive finite number of seconds")
        if not 0 <= self.wait < float("inf"):
            raise wrong_value("wait", self.wait, "a finite number of seconds, at least 0")

    def fetch(self, file: PublishedFile, folder: Path) -> Path:
        """Put a file into a folder, made if it is missing; one that is there with the right hash is left alone.

        What has arrived of it lies in a hidden file beside it, one for each address, and a later call resumes there.
        The file appears whole and checked, or not at all: a ConnectionError has what every address did.
        """
        problems = []
        for address in file.addresses:
            try:
                return self._fetch_from(address, file, folder)
            except ConnectionError as error:
                problems.append(str(error))
        raise ConnectionError(f"{file.name} could not be downloaded. {'; '.join(problems)}")

    def _fetch_from(self, address: str, file: PublishedFile, folder: Path) -> Path:
        pooch = require("pooch", "downloads need", "teka[train]")
        part = folder / f".{file.name}.{hashlib.sha256(address.encode()).hexdigest()[:8]}.part"

        def download(url: str, output_file: str, pooch: object) -> None:
            kept = Path(output_file)
            _fetch_rest(url, part, self.timeout)
            try:
                with gzip.open(part) if file.is_packed else part.open("rb") as source, kept.open("wb") as target:
                    shutil.copyfileobj(source, target)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                part.unlink()
                raise ValueError(f"damaged gzip data: {error}") from error
            part.unlink()
            kept.chmod(0o644)  # temporary files are made for their owner alone

        failures, largest = 0, _size(part)
        while True:
            try:
                return Path(pooch.retrieve(address, file.known_hash, file.name, folder, downloader=download))
            except RefusedError:
                raise
            except ConnectionError as error:
                # Who got further may go on: a long file over a bad line needs many attempts.
                problem, failures = error, 1 if _size(part) > largest else failures + 1
            except ValueError as error:
                problem, failures = ConnectionError(f"{address}: {error}"), failures + 1
            if failures >= self.attempts:
                raise problem
            largest = max(largest, _size(part))
            seconds = self.wait * 2 ** (failures - 1)
            _logger.warning("%s; trying again in %g s", problem, seconds)
            time.sleep(seconds)


def _fetch_rest(address: str, part: Path, timeout: float) -> None:
    """Append to a file what it lacks of the one at an address (HTTP Range); a bar shows it on a terminal."""
    import requests
    import urllib3
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    so_far, console = _size(part), Console(stderr=True)
    # A server may pack what it sends; the hash and the ranges are those of the file.
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={so_far}-"} if so_far else {})}
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    try:
        with requests.get(address, headers=headers, stream=True, timeout=timeout) as response:
            if response.status_code == _RANGE_NOT_SATISFIABLE and _content_range(response.headers) == f"*/{so_far}":
                return
            start = _start(address, response.status_code, response.headers, so_far, part)
            length = response.headers.get("Content-Length")
            total = None if length is None else start + int(length)
            with (
                part.open("ab" if start else "wb") as file,
                Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar,
            ):
                task = bar.add_task(address.rsplit("/", 1)[-1], total=total, completed=start)
                # Not `iter_content`, which would unpack what a server declares as packed.
                for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
                    file.write(chunk)
                    bar.advance(task, len(chunk))
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
    """The byte that the answer begins with: a server that sends everything all the same is taken at its word."""
    if status == 200:
        return 0
    if status == 206 and _content_range(headers).startswith(f"{so_far}-"):
        return so_far
    if status in (206, _RANGE_NOT_SATISFIABLE):
        part.unlink(missing_ok=True)
        raise ConnectionError(f"{address} has another file than before, or another part of it than was asked for")
    kind = RefusedError if 400 <= status < 500 and status not in _PASSING else ConnectionError
    raise kind(f"{address} answers {status}")


def _content_range(headers: Mapping[str, str]) -> str:
    return re.sub(r"^bytes ", "", headers.get("Content-Range", ""))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
