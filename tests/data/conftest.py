import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from torch import Tensor

from teka.data.published import PublishedDataset, PublishedFile


def idx_bytes(values: Tensor) -> bytes:
    """Return the content of an IDX file."""
    sizes = b"".join(side.to_bytes(4, "big") for side in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.to(torch.uint8).numpy().tobytes()


def tar_bytes(members: dict[str, bytes]) -> bytes:
    """Return the content of a compressed tar archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


class FileServer:
    """A local web server with faults for the next requests.

    Attributes:
        files: Contents by path, without the first slash.
        faults: Faults of the next requests, such as "500" or "truncates".
        encoding: Content encoding that the server declares.
        requests: Paths that were requested.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: list[str] = []
        self.encoding: str | None = None
        self.requests: list[str] = []
        self.closing = threading.Event()
        respond = self.respond

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                respond(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self._thread.start()

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.removeprefix("/")
        self.requests.append(path)
        fault = self.faults.pop(0) if self.faults else "none"
        content = self.files.get(path)
        if fault.isdecimal() or content is None:
            handler.send_response(int(fault) if fault.isdecimal() else 404)
            handler.end_headers()
            return
        handler.send_response(200)
        if fault != "ends unannounced":
            handler.send_header("Content-Length", str(len(content)))
        if self.encoding is not None:
            handler.send_header("Content-Encoding", self.encoding)
        handler.end_headers()
        half = len(content) // 2
        if fault == "corrupts":
            content = content[:half] + bytes([content[half] ^ 255]) + content[half + 1 :]
        if fault in ("truncates", "stalls", "ends unannounced"):
            content = content[:half]
        handler.wfile.write(content)
        handler.wfile.flush()
        if fault == "stalls":
            self.closing.wait(timeout=60)

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def random_levels(num_images: int, shape: tuple[int, int, int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_images, *shape), generator=generator, dtype=torch.uint8)


@dataclass
class SyntheticDataset:
    """A small published data set.

    Attributes:
        published: Its description.
        contents: Contents of its files by their names.
        splits: Images and labels for training and for test.
    """

    published: PublishedDataset
    contents: dict[str, bytes]
    splits: list[tuple[Tensor, Tensor]]

    def write(self, folder: Path, *, packed: bool = False) -> Path:
        """Write the files to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.contents.items():
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
        return folder


def make_idx_dataset(url: str) -> SyntheticDataset:
    """Make a data set of four IDX files. The first pixel of an image is its number."""
    splits = []
    contents = {}
    for split, num_images in (("train", 23), ("test", 5)):
        images = random_levels(num_images, (1, 7, 11), seed=num_images)
        images[:, 0, 0, 0] = torch.arange(num_images)
        labels = torch.arange(num_images) % 3
        contents[f"{split}-images"] = idx_bytes(images[:, 0])
        contents[f"{split}-labels"] = idx_bytes(labels)
        splits.append((images, labels))
    files = [
        PublishedFile(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    ]
    published = PublishedDataset(
        name="mnist",
        url=f"{url}mnist/",
        folder="mnist",
        train=tuple(files[:2]),
        test=tuple(files[2:]),
        format="idx",
        image_shape=(1, 7, 11),
        class_names=("a", "b", "c"),
        license="none",
        advice="Or ask the author.",
    )
    return SyntheticDataset(published, contents, splits)


def make_record_dataset(url: str) -> SyntheticDataset:
    """Make a data set of four files of records with five images each."""
    contents = {}
    splits = []
    for split, numbers in (("train", (1, 2, 3)), ("test", (4,))):
        images = random_levels(5 * len(numbers), (3, 7, 11), seed=len(numbers))
        labels = torch.arange(len(images)) % 4
        records = torch.cat([labels[:, None].to(torch.uint8), images.flatten(1)], dim=1)
        for number, part in zip(numbers, records.split(5), strict=True):
            contents[f"{split}-{number}"] = part.numpy().tobytes()
        splits.append((images, labels))
    files = [PublishedFile(name, len(content)) for name, content in contents.items()]
    published = PublishedDataset(
        name="cifar10",
        url=f"{url}synthetic.tar.gz",
        archive_hash=f"md5:{hashlib.md5(make_archive(contents)).hexdigest()}",
        folder="synthetic-bin",
        train=tuple(files[:3]),
        test=tuple(files[3:]),
        format="records",
        image_shape=(3, 7, 11),
        class_names=tuple("abcd"),
        license="none",
        advice="Or ask the author.",
    )
    return SyntheticDataset(published, contents, splits)


def make_archive(contents: dict[str, bytes]) -> bytes:
    """Return an archive with more members than the files of the data set."""
    members = {f"synthetic-bin/{name}": content for name, content in contents.items()}
    return tar_bytes(members | {"synthetic-bin/readme": b"text", "../train-1": b"outside"})


@pytest.fixture
def idx_dataset() -> SyntheticDataset:
    return make_idx_dataset("http://127.0.0.1:9/")


@pytest.fixture
def record_dataset() -> SyntheticDataset:
    return make_record_dataset("http://127.0.0.1:9/")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    running = FileServer()
    yield running
    running.close()


@pytest.fixture
def served_idx(server: FileServer) -> SyntheticDataset:
    """Return a data set whose IDX files are on the server."""
    dataset = make_idx_dataset(server.address)
    for name, content in dataset.contents.items():
        server.files[f"mnist/{name}.gz"] = gzip.compress(content, mtime=0)
    return dataset


@pytest.fixture
def served_records(server: FileServer) -> SyntheticDataset:
    """Return a data set whose archive is on the server."""
    dataset = make_record_dataset(server.address)
    server.files["synthetic.tar.gz"] = make_archive(dataset.contents)
    return dataset
