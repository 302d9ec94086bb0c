"""A published file: fetched from one of its addresses, unpacked, checked by hash, then put in its place."""

import gzip
import hashlib
import logging
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from teka.data.resuming_downloader import RefusedError, ResumingDownloader
from teka.data.sizes import whole_number
from teka.errors import unknown_name, wrong_value

_logger = logging.getLogger(__name__)


def _gunzip(packed: Path, target: Path) -> None:
    try:
        with gzip.open(packed, "rb") as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"damaged gzip data: {error}") from error


def _copy(packed: Path, target: Path) -> None:
    shutil.copyfile(packed, target)


UNPACK: Mapping[str, Callable[[Path, Path], None]] = MappingProxyType({"gzip": _gunzip, "none": _copy})


@dataclass(frozen=True)
class PublishedFile:
    """A file on the web.

    Args:
        name: The name it is kept under.
        addresses: Where it lies, tried in this order.
        known_hash: Hash of what is kept, with its kind: "sha256:…" or "md5:…".
        packing: What is undone before the hash is taken: "gzip" or "none".

    Raises:
        ValueError: An unknown packing.
    """

    name: str
    addresses: tuple[str, ...]
    known_hash: str
    packing: str = "gzip"

    def __post_init__(self) -> None:
        if self.packing not in UNPACK:
            raise unknown_name("packing", self.packing, UNPACK)


@dataclass(frozen=True)
class Fetcher:
    """How files are fetched: with what patience.

    Args:
        timeout: Seconds without a byte after which a connection counts as stalled.
        attempts: Failures in a row, each without a byte more than before, after which an address is given up.
        wait: Seconds before the second attempt; twice as many before each further one.

    Raises:
        ValueError: A value out of range.
    """

    timeout: float = 30.0
    attempts: int = 5
    wait: float = 1.0

    def __post_init__(self) -> None:
        whole_number("attempts", self.attempts, smallest=1)
        if not 0 < self.timeout < float("inf"):
            raise wrong_value("timeout", self.timeout, "a positive finite number of seconds")
        if not 0 <= self.wait < float("inf"):
            raise wrong_value("wait", self.wait, "a finite number of seconds, at least 0")

    def fetch(self, file: PublishedFile, folder: Path) -> Path:
        """Put a file into a folder; one that is there with the right hash is left alone, and nothing is asked for.

        What has arrived of it lies in a hidden file beside it, one for each address, and a later call goes on there.
        The file itself appears under its name whole and checked, or not at all.

        Args:
            file: The file.
            folder: The folder, made if it is missing.

        Returns:
            The path of the file.

        Raises:
            ImportError: pooch is not installed.
            ConnectionError: No address gave the file; the message has what each one did.
        """
        try:
            import pooch
        except ImportError as error:
            raise ImportError("downloads need pooch, which is missing: pip install teka[train]") from error
        problems = []
        for address in file.addresses:
            digest = hashlib.sha256(address.encode()).hexdigest()[:8]
            part = folder / f".{file.name}.{digest}.part"
            downloader = ResumingDownloader(part, UNPACK[file.packing], self.timeout)
            problem, failures, largest = "", 0, _size(part)
            while failures < self.attempts:
                try:
                    kept = pooch.retrieve(
                        address,
                        known_hash=file.known_hash,
                        fname=file.name,
                        path=folder,
                        # Pooch's protocol names the arguments otherwise than it passes them.
                        downloader=downloader,  # pyright: ignore[reportArgumentType]
                    )
                    return Path(kept)
                except RefusedError as error:
                    problem, failures = str(error), self.attempts
                except ConnectionError as error:
                    # Who got further may go on: a long file over a bad line needs many attempts.
                    problem, failures = str(error), 1 if _size(part) > largest else failures + 1
                except ValueError as error:
                    problem, failures = f"{address}: {error}", failures + 1
                largest = max(largest, _size(part))
                if failures < self.attempts:
                    seconds = self.wait * 2 ** (failures - 1)
                    _logger.warning("%s; trying again in %g s", problem, seconds)
                    time.sleep(seconds)
            problems.append(problem)
        raise ConnectionError(f"{file.name} could not be downloaded. {'; '.join(problems)}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
