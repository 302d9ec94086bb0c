"""Trainings and studies killed at random times, with temporary files on the same or another disk."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

import teka
from reproduction.study.results import load_saved_results
from teka.files import read_json
from teka.training import Run
from tests.campaign.fixtures import TINY
from tests.campaign.outcome import Tally

TRAIN = """
import sys
from pathlib import Path
import torch
from teka.training import Run, train
torch.set_num_threads(1)
if __name__ == "__main__":
    train(Run.load(Path(sys.argv[1])), sys.argv[2], resume=True, progress_bar=False)
"""
STUDY = """
import sys
from reproduction.study import read_study, run_study
if __name__ == "__main__":
    run_study(read_study(sys.argv[1]), sys.argv[2], processes=2)
"""
SHARED_MEMORY = Path("/dev/shm")
COMPARED_KEYS = ("labels", "run", "accuracy", "accuracy_by_shift", "steps", "parameters", "epochs")


def kill_trainings(number: int, seed: int, folder: Path) -> Tally:
    """Kill trainings at random times, resume each, and compare with an uninterrupted training.

    Args:
        number: Kills for each place of temporary files.
        seed: Decides the moments.
        folder: Where to work.
    """
    tally, source = Tally("kills of teka train"), random.Random(seed)
    run = Run.from_dict(
        {**TINY.to_dict(), "epochs": 12, "patience": 4, "learning_rate": 0.02, "dropout": 0.1}
    )
    (folder / "run").mkdir(parents=True)
    run.save(folder / "run")
    _run_to_the_end(TRAIN, folder, "run", "whole", folder)
    for temporary in _temporary_folders(folder):
        kills = 0
        while kills < number:
            out = folder / f"killed-{temporary.name}-{kills}"
            while not (out / "result.json").is_file() and kills < number:
                kills += 1
                _kill_after_a_write(
                    _start(TRAIN, folder, "run", out.name, temporary), out, source, span=0.5
                )
            moved = out.rename(out.with_name(f"{out.name}-moved"))
            _run_to_the_end(TRAIN, folder, "run", moved.name, temporary)
            tally.add(
                f"same numbers, {_temporary_kind(temporary, folder)}",
                _find_difference(folder / "whole", moved),
            )
            shutil.rmtree(moved)
        tally.counts[f"kills, {_temporary_kind(temporary, folder)}"] += kills
    return tally


def kill_studies(number: int, seed: int, folder: Path, study: Path) -> Tally:
    """Kill studies at random times, resume each, and check that their workers end too.

    Args:
        number: Kills for each place of temporary files.
        seed: Decides the moments.
        folder: Where to work.
        study: The study's file.
    """
    tally, source = Tally("kills of teka study"), random.Random(seed)
    folder.mkdir(parents=True)
    shutil.copy(study, folder / "study.yaml")
    _run_to_the_end(STUDY, folder, "study.yaml", "whole", folder)
    for temporary in _temporary_folders(folder):
        kills = 0
        while kills < number:
            out = folder / f"killed-{temporary.name}-{kills}"
            while len(load_saved_results(out / "cells.jsonl.gz")) < 4 and kills < number:
                kills += 1
                process = _start(STUDY, folder, "study.yaml", out.name, temporary)
                workers = _kill_after_a_write(process, out, source, span=4.0)
                if any(map(is_running, workers)):
                    tally.add("workers left", f"{workers} outlived their parent")
            _run_to_the_end(STUDY, folder, "study.yaml", out.name, temporary)
            same = _compared_results(folder / "whole") == _compared_results(
                out
            ) and not _leftover_files(out)
            tally.add(
                f"same numbers, {_temporary_kind(temporary, folder)}",
                None if same else f"{out} differs: {_leftover_files(out)}",
            )
            shutil.rmtree(out)
        tally.counts[f"kills, {_temporary_kind(temporary, folder)}"] += kills
    return tally


def _temporary_folders(folder: Path) -> list[Path]:
    return [folder, SHARED_MEMORY] if SHARED_MEMORY.is_dir() else [folder]


def _temporary_kind(temporary: Path, folder: Path) -> str:
    return "TMPDIR on the same disk" if temporary == folder else "TMPDIR on another file system"


def _start(
    script: str, folder: Path, input_path: str, out: str, temporary: Path
) -> subprocess.Popen:
    (folder / "script.py").write_text(script, encoding="utf-8")
    paths = os.pathsep.join([str(Path(teka.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "script.py", input_path, out],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": paths},
    )


def _run_to_the_end(script: str, folder: Path, input_path: str, out: str, temporary: Path) -> None:
    process = _start(script, folder, input_path, out, temporary)
    _, error = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(f"{out} could not be resumed: {error.decode()[-2000:]}")


def _kill_after_a_write(
    process: subprocess.Popen, out: Path, source: random.Random, *, span: float
) -> list[int]:
    """Kill a process after its next checkpoint and a random time, and return its child processes."""
    before = _newest_checkpoint_time(out)
    while process.poll() is None and _newest_checkpoint_time(out) == before:
        time.sleep(0.002)
    time.sleep(source.uniform(0, span))
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True
    ).stdout
    workers = [int(word) for word in listed.split()]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    limit = time.monotonic() + 10
    while any(map(is_running, workers)) and time.monotonic() < limit:
        time.sleep(0.02)
    return workers


def _newest_checkpoint_time(folder: Path) -> float:
    return max(
        (path.stat().st_mtime for path in folder.rglob("*.ckpt") if path.exists()), default=0.0
    )


def is_running(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
            != "Z"
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


def _leftover_files(folder: Path) -> list[str]:
    """Return temporary files that should have been removed."""
    return [
        str(path)
        for path in folder.rglob("*")
        if path.suffix in (".part", ".claim") or path.name.startswith(".")
    ]


def _compared_results(folder: Path) -> dict[str, list[object]]:
    cells = load_saved_results(folder / "cells.jsonl.gz")
    return {name: [content[key] for key in COMPARED_KEYS] for name, content in cells.items()}


def _find_difference(first: Path, second: Path) -> str | None:
    """Return a description of how two runs differ, or None. Times are not compared."""
    names = [
        sorted(path.name for path in (folder / "checkpoints").iterdir())
        for folder in (first, second)
    ]
    if names[0] != names[1]:
        return f"{second}: the files {names[1]}"
    for name in names[0]:
        one, other = (
            torch.load(folder / "checkpoints" / name, weights_only=True)
            for folder in (first, second)
        )
        if (
            one["epoch"] != other["epoch"]
            or one["callbacks"]["Checkpoints"] != other["callbacks"]["Checkpoints"]
        ):
            return f"{second}: {name} is of another epoch or score"
        if not all(
            torch.equal(tensor, other["state_dict"][key])
            for key, tensor in one["state_dict"].items()
        ):
            return f"{second}: {name} has other weights"
    results = [{**read_json(folder / "result.json"), "seconds": 0} for folder in (first, second)]
    return None if results[0] == results[1] else f"{second}: result.json differs"
