"""SIGKILL at random moments, in training and in studies, with temporary files on the same disk and on another."""

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
DECIDED = ("labels", "run", "accuracy", "accuracy_by_shift", "steps", "parameters", "epochs")


def kill_trainings(number: int, seed: int, folder: Path) -> Tally:
    """Kill trainings at random moments, resume each, and compare with one that was never killed.

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
    _to_its_end(TRAIN, folder, "run", "whole", folder)
    for temporary in _places(folder):
        kills = 0
        while kills < number:
            out = folder / f"killed-{temporary.name}-{kills}"
            while not (out / "result.json").is_file() and kills < number:
                kills += 1
                _kill(_start(TRAIN, folder, "run", out.name, temporary), out, source, span=0.5)
            moved = out.rename(out.with_name(f"{out.name}-moved"))
            _to_its_end(TRAIN, folder, "run", moved.name, temporary)
            tally.add(
                f"same numbers, {_kind(temporary, folder)}",
                _difference_of_runs(folder / "whole", moved),
            )
            shutil.rmtree(moved)
        tally.counts[f"kills, {_kind(temporary, folder)}"] += kills
    return tally


def kill_studies(number: int, seed: int, folder: Path, study: Path) -> Tally:
    """The same for studies, whose workers must end too.

    Args:
        number: Kills for each place of temporary files.
        seed: Decides the moments.
        folder: Where to work.
        study: The study's file.
    """
    tally, source = Tally("kills of teka study"), random.Random(seed)
    folder.mkdir(parents=True)
    shutil.copy(study, folder / "study.yaml")
    _to_its_end(STUDY, folder, "study.yaml", "whole", folder)
    for temporary in _places(folder):
        kills = 0
        while kills < number:
            out = folder / f"killed-{temporary.name}-{kills}"
            while len(load_saved_results(out / "cells.jsonl.gz")) < 4 and kills < number:
                kills += 1
                process = _start(STUDY, folder, "study.yaml", out.name, temporary)
                workers = _kill(process, out, source, span=4.0)
                if any(map(is_running, workers)):
                    tally.add("workers left", f"{workers} outlived their parent")
            _to_its_end(STUDY, folder, "study.yaml", out.name, temporary)
            same = _cells(folder / "whole") == _cells(out) and not _litter(out)
            tally.add(
                f"same numbers, {_kind(temporary, folder)}",
                None if same else f"{out} differs: {_litter(out)}",
            )
            shutil.rmtree(out)
        tally.counts[f"kills, {_kind(temporary, folder)}"] += kills
    return tally


def _places(folder: Path) -> list[Path]:
    return [folder, SHARED_MEMORY] if SHARED_MEMORY.is_dir() else [folder]


def _kind(temporary: Path, folder: Path) -> str:
    return "TMPDIR on the same disk" if temporary == folder else "TMPDIR on another file system"


def _start(script: str, folder: Path, given: str, out: str, temporary: Path) -> subprocess.Popen:
    (folder / "script.py").write_text(script, encoding="utf-8")
    paths = os.pathsep.join([str(Path(teka.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "script.py", given, out],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": paths},
    )


def _to_its_end(script: str, folder: Path, given: str, out: str, temporary: Path) -> None:
    process = _start(script, folder, given, out, temporary)
    _, error = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(f"{out} could not be resumed: {error.decode()[-2000:]}")


def _kill(process: subprocess.Popen, out: Path, source: random.Random, *, span: float) -> list[int]:
    """Kill a process a while after it began to write; gives the processes that it had started."""
    before = _newest(out)
    while process.poll() is None and _newest(out) == before:
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


def _newest(folder: Path) -> float:
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


def _litter(folder: Path) -> list[str]:
    """Files that should not have stayed."""
    return [
        str(path)
        for path in folder.rglob("*")
        if path.suffix in (".part", ".claim") or path.name.startswith(".")
    ]


def _cells(folder: Path) -> dict[str, list[object]]:
    cells = load_saved_results(folder / "cells.jsonl.gz")
    return {name: [content[key] for key in DECIDED] for name, content in cells.items()}


def _difference_of_runs(first: Path, second: Path) -> str | None:
    """What differs in the checkpoints and results of two runs, but for times; None if nothing does."""
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
