import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from torch import Tensor

from teka.data.fetch import PublishedFile
from teka.data.published import IdxDataset, RecordDataset


def idx_bytes(values: Tensor) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(
        side.to_bytes(4, "big") for side in values.shape
    )
    return header + values.to(torch.uint8).numpy().tobytes()


def tar_bytes(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


class FileServer:
    """Files at http://127.0.0.1, with a fault for each of the coming requests; what was asked for is kept.

    Args:
        files: Contents by path, without the first slash.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.faults: list[str] = []
        self.encoding: str | None = None
        self.requests: list[str] = []
        self.closing = threading.Event()
        files_and_faults = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                files_and_faults.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self._thread.start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append(handler.path.removeprefix("/"))
        fault = self.faults.pop(0) if self.faults else "none"
        content = self.files.get(handler.path.removeprefix("/"))
        if fault.isdecimal() or content is None:
            handler.send_response(int(fault) if fault.isdecimal() else 404)
            handler.end_headers()
            return
        body = content
        handler.send_response(200)
        if fault != "ends unannounced":
            handler.send_header("Content-Length", str(len(body)))
        if self.encoding is not None:
            handler.send_header("Content-Encoding", self.encoding)
        handler.end_headers()
        half = len(body) // 2
        if fault == "corrupts":
            body = body[:half] + bytes([body[half] ^ 255]) + body[half + 1 :]
        handler.wfile.write(
            body[:half] if fault in ("truncates", "stalls", "ends unannounced") else body
        )
        handler.wfile.flush()
        if fault == "stalls":
            self.closing.wait(timeout=60)

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class SyntheticIdx:
    """A data set as published in four IDX files, small enough for a test."""

    height, width = 7, 11

    def __init__(self) -> None:
        self.train_images, self.train_labels = self._part(23, seed=0)
        self.test_images, self.test_labels = self._part(5, seed=1)
        self.contents = {
            "train-images": idx_bytes(self.train_images),
            "train-labels": idx_bytes(self.train_labels),
            "test-images": idx_bytes(self.test_images),
            "test-labels": idx_bytes(self.test_labels),
        }

    def _part(self, num_images: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        size = (num_images, self.height, self.width)
        images = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
        # The first pixel tells which image it is.
        images[:, 0, 0] = torch.arange(num_images)
        return images, torch.arange(num_images) % 3

    def dataset(
        self, system_folder: Path | None = None, addresses: tuple[str, ...] = ()
    ) -> IdxDataset:
        hashes = {
            file: hashlib.sha256(content).hexdigest() for file, content in self.contents.items()
        }
        return IdxDataset(
            name="synthetic",
            class_names=("a", "b", "c"),
            remedy="Ask the author.",
            hashes=hashes,
            sizes={file: len(content) for file, content in self.contents.items()},
            addresses=addresses,
            system_folder=system_folder,
        )

    def write(self, folder: Path, *, packed: bool = True) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in self.contents.items():
            (folder / f"{file}{'.gz' if packed else ''}").write_bytes(
                gzip.compress(content) if packed else content
            )
        return folder


class SyntheticRecords:
    """A data set as published in files of records, 3 for training and 1 for test, small enough for a test."""

    train_files, test_files = ("batch-1", "batch-2", "batch-3"), ("batch-test",)
    images_per_file, image_shape = 5, (3, 7, 11)

    def __init__(self) -> None:
        self.train_images, self.train_labels = self._part(len(self.train_files), seed=0)
        self.test_images, self.test_labels = self._part(len(self.test_files), seed=1)
        images, labels = (
            torch.cat([self.train_images, self.test_images]),
            torch.cat([self.train_labels, self.test_labels]),
        )
        records = torch.cat([labels[:, None].to(torch.uint8), images.flatten(1)], dim=1)
        files = records.split(self.images_per_file)
        self.contents = {
            name: file.numpy().tobytes()
            for name, file in zip(self.train_files + self.test_files, files, strict=True)
        }

    def _part(self, num_files: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        num_images = num_files * self.images_per_file
        images = torch.randint(
            0, 256, (num_images, *self.image_shape), generator=generator, dtype=torch.uint8
        )
        return images, torch.randint(0, 4, (num_images,), generator=generator)

    def dataset(self, addresses: tuple[str, ...] = ()) -> RecordDataset:
        return RecordDataset(
            name="synthetic",
            class_names=tuple("abcd"),
            remedy="Ask the author.",
            published_folder="synthetic-bin",
            train=self.train_files,
            test=self.test_files,
            images_per_file=self.images_per_file,
            image_shape=self.image_shape,
            archive=PublishedFile(
                name="synthetic.tar.gz",
                addresses=tuple(f"{address}synthetic.tar.gz" for address in addresses),
                known_hash=f"md5:{hashlib.md5(self.archive()).hexdigest()}",
                is_packed=False,
            ),
        )

    def archive(self) -> bytes:
        """The published archive, which holds more than the files."""
        members = {f"synthetic-bin/{name}": content for name, content in self.contents.items()}
        return tar_bytes(
            members | {"synthetic-bin/readme.html": b"<html>", "../batch-1": b"outside"}
        )

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in self.contents.items():
            (folder / file).write_bytes(content)
        return folder


@pytest.fixture
def synthetic_records() -> SyntheticRecords:
    return SyntheticRecords()


@pytest.fixture
def synthetic() -> SyntheticIdx:
    return SyntheticIdx()


@pytest.fixture
def to_idx():
    return idx_bytes


@pytest.fixture
def to_tar():
    return tar_bytes


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running = FileServer({})
    yield running
    running.close()
