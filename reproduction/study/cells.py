"""The saved cells of a study: what one file holds, and a folder of such files, loose or packed into one.

A folder `cells` holds one JSON file for each finished cell while a study is trained. Packed, they are the lines of
`cells.jsonl.gz` beside it, by name; a loose file goes before a packed one.
"""

import contextlib
import functools
import gzip
import io
import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from teka.checks import check_sizes
from teka.codec import NonNegativeFloat, NonNegativeInt, Proportion, decode, encode
from teka.errors import wrong_value
from teka.files import make_directory, read_json, write_bytes, write_json

CELLS, TUNING, TRAINING, MODELS = "cells", "tuning", "training", "models"
STAGES = (TUNING, CELLS)


@dataclass(frozen=True, kw_only=True)
class SavedCell:
    """What the file of every cell says: its levels, seed and run, and with what it was trained."""

    labels: Mapping[str, str]
    seed: int
    run: Mapping[str, Any]
    threads: int | None = None
    command: str
    teka: str
    torch: str
    hardware: str
    date: str

    def __post_init__(self) -> None:
        if not self.labels:
            raise wrong_value("labels", dict(self.labels), "the level of one factor or more")


@dataclass(frozen=True, kw_only=True)
class FailedCell(SavedCell):
    """A training run whose loss diverged, and the message of it."""

    failed: str


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """How far a model is after some steps: their wall and processor seconds, accuracy and loss on held-out images."""

    step: int
    seconds: float | None = None
    process_seconds: float
    accuracy: Proportion
    loss: float


@dataclass(frozen=True)
class ShiftedClass:
    """The images of one class that were shifted, and the accuracy on them at each of the cell's shifts."""

    shifted_images: int
    accuracy_by_shift: tuple[Proportion, ...]


@dataclass(frozen=True)
class Stable:
    """Of images that were moved, the share of answers that stayed, and of images all of whose answers did."""

    images: int
    shifts: int
    consistency: Proportion
    unchanged: Proportion


@dataclass(frozen=True, kw_only=True)
class CellResult(SavedCell):
    """What one finished training run of a study measured.

    Operations are those of matrix products, for one image; seconds those of the training steps alone. Accuracy by shift
    is that of the shifted images. The equivariance error is the largest change of the logits under shifts relative to
    their size; the floors are the same change between two calls, and from rounding alone.
    """

    parameters: NonNegativeInt
    backend: str
    forward_flops: NonNegativeFloat
    training_flops: NonNegativeFloat
    steps: NonNegativeInt
    epochs: NonNegativeInt | None = None
    seconds: NonNegativeFloat
    process_seconds: NonNegativeFloat
    learning_curve: tuple[CurvePoint, ...]
    test_images: NonNegativeInt
    accuracy: Proportion
    mode: str = "circular"
    shifts: tuple[tuple[int, int], ...]
    shifted_images: NonNegativeInt
    accuracy_by_shift: tuple[Proportion, ...]
    minimum_accuracy: Proportion | None
    worst_shift_accuracy: Proportion | None
    classes: Mapping[int, ShiftedClass] = field(default_factory=dict)
    stability: Mapping[str, Stable] = field(default_factory=dict)
    equivariance_error: NonNegativeFloat | None = None
    repeat_floor: NonNegativeFloat | None = None
    noise_floor: NonNegativeFloat | None = None
    heads: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes({"run.batch_size": self.run.get("batch_size")})
        steps, seconds = self.along("step"), self.along("process_seconds")
        if not steps:
            raise wrong_value("learning_curve", [], "one point or more")
        if list(steps) != sorted(set(steps)):
            raise wrong_value("learning_curve", list(steps), "steps that increase")
        if list(seconds) != sorted(seconds):
            raise wrong_value("learning_curve", list(seconds), "process_seconds that never fall")
        for values in (
            self.accuracy_by_shift,
            *(one.accuracy_by_shift for one in self.classes.values()),
        ):
            if len(values) != len(self.shifts):
                expected = f"a list of {len(self.shifts)}, one for each shift"
                raise wrong_value("accuracy_by_shift", list(values), expected)

    @property
    def batch_size(self) -> int:
        """Images a step."""
        return self.run["batch_size"]

    @property
    def image_size(self) -> int | None:
        """Side of the images in pixels, where the run says so."""
        size = self.run.get("image_size")
        return size if isinstance(size, int) else None

    @property
    def unshifted_accuracy(self) -> float | None:
        """Accuracy on the shifted images where they stand at no shift, where measured."""
        return self.by_shift().get((0, 0))

    def by_shift(self, label: int | None = None) -> dict[tuple[int, int], float]:
        """Accuracy on the shifted images for each shift (dy, dx), of one class or of all."""
        shares = self.accuracy_by_shift if label is None else self.classes[label].accuracy_by_shift
        return dict(zip(self.shifts, shares, strict=True))

    def along(self, quantity: str) -> tuple[Any, ...]:
        """One quantity of every point of the learning curve."""
        return tuple(getattr(point, quantity) for point in self.learning_curve)

    def at(self, quantity: str, place: float | int, along: str = "step") -> float | None:
        """A quantity at a place of the learning curve, linear between points; None before the first, after the last."""
        places, values = self.along(along), self.along(quantity)
        if not places[0] <= place <= places[-1]:
            return None
        after = bisect_left(places, place)
        if places[after] == place:
            return values[after]
        share = (place - places[after - 1]) / (places[after] - places[after - 1])
        return values[after - 1] + share * (values[after] - values[after - 1])


def decode_cell(content: Mapping[str, object], where: Path | str) -> CellResult | FailedCell:
    """A cell from the content of its file; keys that it does not know are left alone."""
    kind = CellResult if content.get("failed") is None else FailedCell
    known = {field.name for field in fields(kind)}
    try:
        return decode(kind, {key: value for key, value in content.items() if key in known}, "cell")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def training_folder(folder: Path, name: str) -> Path:
    """Where a cell's run lies while it is trained."""
    return folder.parent / TRAINING / folder.name / name


@contextlib.contextmanager
def claimed(folder: Path, name: str) -> Iterator[bool]:
    """Claim a cell for as long as the block or the process lives, by a lock of a file; gives whether one could."""
    place = training_folder(folder, name)
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(place.with_name(f"{place.name}.claim"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def write_cell(folder: Path, name: str, cell: SavedCell) -> None:
    """Write the file of a cell, whole or not at all."""
    write_json(make_directory("out", folder) / f"{name}.json", encode(cell))


def find_cell(folder: Path, name: str) -> dict[str, Any] | None:
    """The content of a cell, loose or packed; None where it is not there."""
    file = folder / f"{name}.json"
    try:
        return read_json(file) if file.exists() else _read_packed(folder).get(name)
    except ValueError:
        # Packed between the two looks.
        if file.exists():
            raise
        return _read_packed(folder).get(name)


def list_cells(folder: Path) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Name, content and place of every cell, loose or packed, by the name of its file."""
    loose = {path.stem: path for path in folder.glob("*.json") if not path.name.startswith(".")}
    packed = _read_packed(folder)
    for name in sorted({*loose, *packed}, key=lambda name: f"{name}.json"):
        if name in loose:
            yield name, read_json(loose[name]), str(loose[name])
        else:
            yield name, packed[name], f"{packed_file(folder)}: {name}"


def packed_file(folder: Path) -> Path:
    """Where the cells of a folder are packed: `cells.jsonl.gz` beside `cells`."""
    return folder.with_name(f"{folder.name}.jsonl.gz")


def _read_packed(folder: Path) -> dict[str, dict[str, Any]]:
    path = packed_file(folder)
    if not path.is_file():
        return {}
    return _parse_packed(path, path.stat().st_mtime_ns, path.stat().st_size)


@functools.lru_cache(maxsize=4)
def _parse_packed(path: Path, modified: int, size: int) -> dict[str, dict[str, Any]]:
    try:
        cells = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        return {cell.pop("name"): cell for cell in cells}
    except (OSError, EOFError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is {error}, expected the packed cells of a study") from error


def pack_study(folder: str | Path) -> list[Path]:
    """Pack the cells of a study's folder, `cells/*.json` into `cells.jsonl.gz`, and `tuning` likewise; gives both.

    A line holds one cell with its name, in the order of names, and the same cells give the same bytes. Packed cells
    count as done for whatever reads or resumes the study. Killed at any moment, no cell is lost.

    Raises:
        ValueError: No cell, or a file that is not JSON.
    """
    packed = [path for stage in STAGES if (path := _pack(Path(folder) / stage))]
    if not packed:
        raise wrong_value(
            "folder", str(folder), f"a study's folder, with one cell or more in {CELLS}"
        )
    return packed


def _pack(folder: Path) -> Path | None:
    with claimed(folder, "packing") as mine:
        if not mine:
            raise ValueError(f"{folder} is being packed by another command, expected one at a time")
        cells = list(list_cells(folder))
        if not cells:
            return None
        lines = [
            json.dumps({"name": name, **content}, ensure_ascii=False) for name, content, _ in cells
        ]
        packed = io.BytesIO()
        with gzip.GzipFile("", "wb", 9, packed, mtime=0) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        write_bytes(packed_file(folder), packed.getvalue())
        for name, _, _ in cells:
            (folder / f"{name}.json").unlink(missing_ok=True)
    return packed_file(folder)
