"""Break the source in many places, one at a time, and see that the tests find each: python tests/mutations.py.

prints a table. Each fault is tried on the tests named with it, then on the default suite, and
what that does not find on the exhaustive one; it ends with 1 if only the exhaustive suite finds a fault, or none does.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no"]


@dataclass(frozen=True)
class Fault:
    """A change of the source that some test must find.

    Args:
        file: The file, from src/teka.
        correct: What stands there, once in the file.
        wrong: What to put in its place.
        tests: Where the tests are that should find it first.
    """

    file: str
    correct: str
    wrong: str
    tests: str


def read_faults() -> list[Fault]:
    content = yaml.safe_load((ROOT / "tests" / "mutations.yaml").read_text(encoding="utf-8"))
    return [
        Fault(**{"tests": group["tests"], "file": group["file"], **one})
        for group in content["file"]
        for one in group["fault"]
    ]


def found_by(fault: Fault) -> str:
    """Which tests find a fault: those named, the default suite, the exhaustive suite, or none."""
    with tempfile.TemporaryDirectory(prefix="teka-mutation-") as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        path = Path(folder) / "src" / "teka" / fault.file
        text = path.read_text(encoding="utf-8")
        if text.count(fault.correct) != 1:
            raise ValueError(f"{fault.file} has {fault.correct!r} {text.count(fault.correct)} times, expected once")
        path.write_text(text.replace(fault.correct, fault.wrong), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": f"{folder}/src{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
        for tests, level in ((fault.tests.split(), ""), (["tests"], ""), (["tests"], "exhaustive")):
            run = subprocess.run(
                [*PYTEST, *tests], cwd=ROOT, env={**environment, "TEKA_TESTS": level}, capture_output=True
            )
            if run.returncode == 1:
                return fault.tests if tests != ["tests"] else level or "default suite"
            if run.returncode:
                raise RuntimeError(
                    f"{fault.file}, {fault.wrong!r}: pytest ended with {run.returncode}\n{run.stdout.decode()[-2000:]}"
                )
    return "none"


def main() -> int:
    """Try every fault, two at once, and print the table."""
    parser = argparse.ArgumentParser(prog="python tests/mutations.py", description=__doc__)
    parser.add_argument("--only", default="", help="a part of the files' names")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    faults = [fault for fault in read_faults() if options.only in fault.file]
    with ThreadPoolExecutor(options.processes) as pool:
        finders = list(pool.map(found_by, faults))
    print("| file | correct | wrong | found by |\n|---|---|---|---|")
    for fault, finder in zip(faults, finders, strict=True):
        cells = [one.replace("|", "\\|").replace("\n", " ⏎ ") for one in (fault.correct, fault.wrong)]
        print(f"| {fault.file} | `{cells[0]}` | `{cells[1]}` | {finder} |", flush=True)
    return int(any(finder in ("none", "exhaustive") for finder in finders))


if __name__ == "__main__":
    sys.exit(main())
