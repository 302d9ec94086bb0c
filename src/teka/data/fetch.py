"""A published file: fetched by pooch from one of its addresses, unpacked, checked by its hash, put in its place."""

import gzip
import shutil
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from teka.checks import check_number, check_sizes
from teka.errors import first_line, require


@dataclass(frozen=True)
class PublishedFile:
    """A file on the web: the name it is kept under, and where it lies, in the order in which addresses are tried.

    A download that is larger than `max_bytes`, as it arrives or unpacked, is given up.
    """

    name: str
    addresses: tuple[str, ...]
    known_hash: str
    is_packed: bool = True
    max_bytes: int | None = None  # of what is kept


@dataclass(frozen=True)
class Fetcher:
    """How files are fetched: with what patience.

    >>> import hashlib, tempfile
    >>> from pathlib import Path
    >>> from teka.data.fetch import Fetcher, PublishedFile
    >>> known_hash = f"sha256:{hashlib.sha256(b'text').hexdigest()}"
    >>> file = PublishedFile("a.txt", ("https://example.org/a.txt",), known_hash)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_bytes(b"text")  # it is there, and so nothing is fetched
    ...     Fetcher(timeout=10.0, attempts=2).fetch(file, Path(folder)).name
    'a.txt'

    Args:
        timeout: Seconds without a byte after which a connection counts as stalled.
        attempts: Failures after which an address is given up; the waits between them grow from 1 s by 1 s up to 10.
    """

    timeout: float = 30.0
    attempts: int = 5

    def __post_init__(self) -> None:
        check_sizes({"attempts": self.attempts})
        expected = "a positive number of seconds up to a million"
        check_number("timeout", self.timeout, expected, low=0, high=1_000_000, exclude=(0,))

    def fetch(self, file: PublishedFile, folder: Path) -> Path:
        """Put a file into a folder, made if it is missing; one that is there with the right hash is left alone.

        The file appears whole and checked, or not at all: a ConnectionError has what every address did.
        """
        pooch = require("pooch", "downloads need", "teka[train]")
        from requests import RequestException

        # A server may pack what it sends; the hash is that of the file.
        options = {"timeout": self.timeout, "headers": {"Accept-Encoding": "identity"}}
        download = pooch.HTTPDownloader(
            progressbar=sys.stderr.isatty(), chunk_size=2**16, **options
        )

        def download_and_unpack(url: str, output_file: str, source: object) -> None:
            with tempfile.TemporaryFile() as arrived, Path(output_file).open("wb") as kept:
                download(url, _Limited(arrived, file.max_bytes), source)
                arrived.seek(0)
                starts_packed = (
                    arrived.read(2) == b"\x1f\x8b"
                )  # not where a server declared its packing
                arrived.seek(0)
                try:
                    with (
                        gzip.open(arrived)
                        if file.is_packed and starts_packed
                        else arrived as content
                    ):
                        shutil.copyfileobj(content, _Limited(kept, file.max_bytes))
                except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                    raise ValueError(f"damaged gzip data: {error}") from error
            Path(output_file).chmod(0o644)  # temporary files are made for their owner alone

        problems = []
        for address in file.addresses:
            registry, urls = {file.name: file.known_hash}, {file.name: address}
            source = pooch.create(
                folder, "", registry=registry, urls=urls, retry_if_failed=self.attempts - 1
            )
            try:
                return Path(source.fetch(file.name, downloader=download_and_unpack))
            except (RequestException, ValueError) as error:
                problems.append(f"{address}: {first_line(error)}")
        raise ConnectionError(f"{file.name} could not be downloaded. {'; '.join(problems)}")


class _Limited:
    """A file that is written to up to a size. What is packed may be a little larger than unpacked."""

    def __init__(self, file: Any, max_bytes: int | None) -> None:
        self.file = file
        self.left = None if max_bytes is None else max_bytes + max_bytes // 100 + 2**16

    def write(self, content: bytes) -> int:
        if self.left is not None:
            self.left -= len(content)
            if self.left < 0:
                raise ValueError("it is larger than the published file")
        return self.file.write(content)

    def flush(self) -> None:
        self.file.flush()
