"""The results file of a study: compressed JSON with one line for each trained model."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from reproduction.study.study import Study
from teka.errors import first_line_of_error, wrong_argument, wrong_value
from teka.files import make_directory, read_json, write_bytes

RESULTS_FILE = "cells.jsonl.gz"
TRAINING = "training"  # folder of the models that are being trained
STEP_SECONDS = "step_seconds.json"
# Columns that may be missing: the loss diverged, no image could be shifted, or the file is old.
NUMBERS = [
    "accuracy",
    "minimum_accuracy",
    "worst_shift_accuracy",
    "equivariance_error",
    "noise_floor",
    "parameters",
    "forward_flops",
    "steps",
    "process_seconds",
]
OTHERS = ["failed", "learning_curve", "accuracy_by_shift", "classes", "stability"]


def load_saved_results(path: Path) -> dict[str, dict[str, Any]]:
    """Read a study's results file into a dictionary from model names to saved results.

    If the file does not exist, the dictionary is empty.

    Raises:
        ValueError: The file is damaged.
    """
    if not path.exists():
        return {}
    try:
        lines = gzip.decompress(path.read_bytes()).splitlines()
        results = [json.loads(line) for line in lines]
        return {result.pop("name"): result for result in results}
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        expected = "the results file of a study"
        raise wrong_argument(str(path), first_line_of_error(error), expected) from error


def save_model_results(path: Path, name: str, content: dict[str, Any]) -> None:
    """Add the results of one model to a study's results file.

    The file is sorted by model name, so that it does not depend on the order in which the models
    were trained.
    """
    with FileLock(make_directory("out", path.parent / TRAINING) / f"{path.name}.lock"):
        results = load_saved_results(path) | {name: content}
        lines = [
            json.dumps({"name": name, **results[name]}, ensure_ascii=False) + "\n"
            for name in sorted(results)
        ]
        write_bytes(path, gzip.compress("".join(lines).encode(), mtime=0))


def read_results_table(study: Study, folder: str | Path) -> pd.DataFrame:
    """Read a study's results as a table with one row for each trained model.

    A row is indexed by the level of each factor and the seed. If the loss of a model diverged, the
    measurements are missing, and the column "failed" contains the error message. If the folder
    contains `step_seconds.json`, the CPU times are replaced by the number of steps times the
    seconds per step from this file.

    Raises:
        ValueError: The folder contains no results of the study.
    """
    folder = Path(folder)
    saved = load_saved_results(folder / RESULTS_FILE)
    trained = [study_model for study_model in study.models() if study_model.name in saved]
    if not trained:
        raise wrong_value("folder", str(folder), "the folder of a study, with saved results")
    index = pd.DataFrame([{**model.labels, "seed": model.run.seed} for model in trained])
    contents = [dict.fromkeys(NUMBERS + OTHERS) | saved[model.name] for model in trained]
    table = pd.DataFrame(contents).drop(columns=index.columns, errors="ignore")
    table = table.set_index(pd.MultiIndex.from_frame(index))
    table[NUMBERS] = table[NUMBERS].astype(float)
    table["mflops"] = table["forward_flops"] / 1e6
    table["unshifted_accuracy"] = table["accuracy_by_shift"].str.get(0).astype(float)
    if "validation_loss" not in table:
        table["validation_loss"] = table["learning_curve"].str.get(-1).str.get("loss").astype(float)
    if (folder / STEP_SECONDS).is_file():
        timing: Any = read_json(folder / STEP_SECONDS)
        seconds = {tuple(model["labels"].items()): model["seconds"] for model in timing["models"]}
        per_step = [seconds.get(tuple(model.labels.items()), float("nan")) for model in trained]
        table["process_seconds"] = per_step * table["steps"]
        for step_seconds, curve in zip(per_step, table["learning_curve"], strict=True):
            for point in curve or ():
                point["process_seconds"] = step_seconds * point["step"]
    return table
