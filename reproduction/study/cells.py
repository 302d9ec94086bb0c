"""Saved cells of a study.

The folder `cells` holds one JSON file for each finished cell. `pack_cells` moves the files into
`cells.jsonl.gz`, one line per cell. If a cell is in both places, the file counts.
"""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from reproduction.study.study import Study
from teka.errors import wrong_value
from teka.files import read_json, write_bytes

CELLS = "cells"
TUNING = "tuning"
STEP_SECONDS = "step_seconds.json"
# A cell lacks fields if its loss diverged, if no image could be shifted, or if the file is old.
NUMBERS = [
    "accuracy",
    "minimum_accuracy",
    "worst_shift_accuracy",
    "equivariance_error",
    "noise_floor",
    "parameters",
    "forward_flops",
    "training_flops",
    "steps",
    "epochs",
    "seconds",
    "process_seconds",
]
OTHERS = ["failed", "learning_curve", "accuracy_by_shift", "classes", "stability"]


def find_cell(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the content of a saved cell, or None if the cell is not finished."""
    path = folder / f"{name}.json"
    return read_json(path) if path.exists() else _read_packed(folder).get(name)


def load_cells(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the content of every saved cell of a folder, by name."""
    cells = _read_packed(folder)
    for path in folder.glob("[!.]*.json"):
        cells[path.stem] = read_json(path)
    return dict(sorted(cells.items()))


def pack_cells(folder: str | Path) -> list[Path]:
    """Move the saved cells of a study into one compressed file per stage, and return the files.

    The same cells give the same bytes. Packed cells count as finished. No cell is lost if the
    process is killed.
    """
    packed = []
    for stage in (CELLS, TUNING):
        cells_folder = Path(folder) / stage
        with FileLock(cells_folder.with_suffix(".lock")):
            cells = load_cells(cells_folder)
            lines = [
                json.dumps({"name": name, **content}, ensure_ascii=False)
                for name, content in cells.items()
            ]
            if lines:
                text = "".join(f"{line}\n" for line in lines)
                write_bytes(_packed_file(cells_folder), gzip.compress(text.encode(), mtime=0))
                packed.append(_packed_file(cells_folder))
            for name in cells:
                (cells_folder / f"{name}.json").unlink(missing_ok=True)
            cells_folder.with_suffix(".lock").unlink()
    return packed


def read_cells(study: Study, folder: str | Path) -> pd.DataFrame:
    """Return the saved cells of a study as a table with one row per cell.

    The index has one level for each factor, and "seed". A run whose loss diverged has the error
    message in the column "failed" and no measurements. If the folder has the file
    `step_seconds.json`, the CPU seconds are the number of steps times the seconds of one step.

    Raises:
        ValueError: The folder has no cells, or a file is invalid.
    """
    folder = Path(folder)
    saved = load_cells(folder / CELLS)
    cells = [cell for cell in study.cells() if cell.name in saved]
    if not cells:
        raise wrong_value("folder", str(folder), "the folder of a study, with saved cells")
    index = pd.DataFrame([{**cell.labels, "seed": cell.run.seed} for cell in cells])
    contents = [dict.fromkeys(NUMBERS + OTHERS) | saved[cell.name] for cell in cells]
    table = pd.DataFrame(contents, index=pd.MultiIndex.from_frame(index))
    table[NUMBERS] = table[NUMBERS].astype(float)
    table["mflops"] = table["forward_flops"] / 1e6
    table["unshifted_accuracy"] = table["accuracy_by_shift"].str.get(0).astype(float)
    timing: Any = read_json(folder / STEP_SECONDS) if (folder / STEP_SECONDS).is_file() else None
    if timing is not None:
        seconds = {tuple(model["labels"].items()): model["seconds"] for model in timing["models"]}
        per_step = [seconds.get(tuple(cell.labels.items()), float("nan")) for cell in cells]
        table["process_seconds"] = per_step * table["steps"]
        for step_seconds, curve in zip(per_step, table["learning_curve"], strict=True):
            for point in curve or ():
                point["process_seconds"] = step_seconds * point["step"]
    return table


def _packed_file(folder: Path) -> Path:
    return folder.with_suffix(".jsonl.gz")


def _read_packed(folder: Path) -> dict[str, dict[str, Any]]:
    path = _packed_file(folder)
    if not path.is_file():
        return {}
    try:
        cells = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        return {cell.pop("name"): cell for cell in cells}
    except (OSError, EOFError, ValueError, TypeError, KeyError, zlib.error) as error:
        raise ValueError(f"{path} must be a file of packed cells ({error}).") from error
