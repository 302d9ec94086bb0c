"""Break the source in many places, one at a time, and run the tests: python tests/mutations.py.

Each fault of `mutations.yaml` is put into a copy of the source. First the tests named with the
fault run, then the default suites, then the exhaustive suite, until a test fails. That test must
pass without the fault. Results are appended to `build/mutations.jsonl`, and faults with a result
are not tried again. The exit status is 1 if the default suites do not find every fault.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "build" / "mutations.jsonl"
# Imported once, because every fault is tried in a fork of this process.
HEAVY = (
    "torch",
    "numpy",
    "scipy.special",
    "hypothesis",
    "lightning.pytorch",
    "torchmetrics.classification",
    "yaml",
)
NEAREST, DEFAULT, EXHAUSTIVE, NONE = (
    "nearest tests",
    "default suites",
    "exhaustive suite",
    "no test",
)
SLOW, CRASH = "its time limit", "a crash of the interpreter"
SECONDS = {NEAREST: 900, DEFAULT: 3600, EXHAUSTIVE: 4 * 3600}


@dataclass(frozen=True)
class Fault:
    """A change of the source that a test must detect.

    Args:
        subject: Part of the library.
        file: The file, relative to `src/teka`.
        tests: Test files that should find the fault, relative to `tests`.
        correct: Code that occurs exactly once in the file.
        wrong: Code that replaces it.
    """

    subject: str
    file: str
    tests: str
    correct: str
    wrong: str

    @property
    def key(self) -> str:
        """Return a hash that identifies the fault."""
        return hashlib.sha256(
            "\0".join((self.file, self.correct, self.wrong)).encode()
        ).hexdigest()[:16]

    def broken_text(self) -> str:
        """Return the text of the file with the fault."""
        text = (ROOT / "src" / "teka" / self.file).read_text(encoding="utf-8")
        found = list(_format_independent_pattern(self.correct).finditer(text))
        if len(found) != 1:
            raise ValueError(f"{self.file} has {self.correct!r} {len(found)} times, expected once")
        broken = text[: found[0].start()] + self.wrong + text[found[0].end() :]
        compile(broken, self.file, "exec")
        return broken


def _format_independent_pattern(code: str) -> re.Pattern[str]:
    """Return a pattern that matches code with any line breaks.

    Between tokens there may be any white space, and before a closing bracket a trailing comma.
    White space at the start of the code must match exactly, because the replacement needs it.
    """
    stripped = code.lstrip()
    tokens = re.findall(r"\w+|[^\w\s]", stripped)
    parts = [
        rf",?\s*{re.escape(token)}" if token in ")]}" else re.escape(token) for token in tokens
    ]
    return re.compile(re.escape(code[: len(code) - len(stripped)]) + r"\s*".join(parts))


def read_faults() -> list[Fault]:
    """Read all faults, and check that they fit the present source."""
    groups = yaml.safe_load((ROOT / "tests" / "mutations.yaml").read_text(encoding="utf-8"))
    faults = [
        Fault(**{name: text for name, text in group.items() if name != "faults"} | change)
        for group in groups
        for change in group["faults"]
    ]
    wrong = []
    for fault in faults:
        try:
            fault.broken_text()
        except (ValueError, SyntaxError, OSError) as error:
            wrong.append(str(error))
    if len({fault.key for fault in faults}) < len(faults):
        wrong.append("a fault is listed twice")
    if wrong:
        raise SystemExit("\n".join(wrong))
    return faults


class FirstFailure:
    """Plugin of pytest that records the first failed test."""

    test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failed test."""
        if report.failed:
            self.test = self.test or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that cannot be collected."""
        if report.failed:
            self.test = self.test or report.nodeid


def first_failure(source: Path, tests: list[str], *, level: str, folder: Path) -> str | None:
    """Return the first test that fails on a source, `SLOW`, `CRASH`, or None if all pass."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            _run_tests(source, tests, level=level, folder=folder, answer=answer)
        os._exit(0)
    end = time.monotonic() + SECONDS[level]
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return SLOW
        time.sleep(0.2)
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)  # processes that the tests started
    if not answer.is_file():
        return CRASH
    status, test = json.loads(answer.read_text(encoding="utf-8"))
    if status == pytest.ExitCode.OK:
        return None
    if status != pytest.ExitCode.TESTS_FAILED and not test:
        output = (folder / "output").read_text(errors="replace")
        raise RuntimeError(f"pytest ended with {status}:\n{output[-3000:]}")
    return test


def _run_tests(source: Path, tests: list[str], *, level: str, folder: Path, answer: Path) -> None:
    """Run pytest in this forked process, and write its status and the first failure to a file."""
    os.setpgid(0, 0)
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.chdir(ROOT)
    sys.path[:0] = [str(source), str(ROOT)]
    os.environ |= {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    os.environ["TEKA_TESTS"] = "exhaustive" if level == EXHAUSTIVE else ""
    first = FirstFailure()
    options = ["-q", "-x", "--tb=short", "--no-header", f"--basetemp={folder / 'tmp'}"]
    status = pytest.main([*options, *tests], plugins=[first])
    answer.write_text(json.dumps([int(status), first.test]), encoding="utf-8")


def detect(fault: Fault, level: str) -> dict[str, Any] | None:
    """Return which test of a level detects a fault, or None."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="teka-mutation-") as name:
        folder = Path(name)
        for copy in ("broken", "sound"):
            shutil.copytree(ROOT / "src", folder / copy)
        (folder / "broken" / "teka" / fault.file).write_text(fault.broken_text(), encoding="utf-8")
        tests = (
            [f"tests/{path}" for path in fault.tests.split()]
            if level == NEAREST
            else ["tests", "tests/compilers"]
        )
        test = first_failure(folder / "broken", tests, level=level, folder=folder)
        if test is None:
            return None
        if (
            test not in (SLOW, CRASH)
            and first_failure(folder / "sound", [test], level=level, folder=folder) is not None
        ):
            raise RuntimeError(f"{test} fails without a fault")
    return {
        "key": fault.key,
        "level": level,
        "test": test,
        "seconds": round(time.monotonic() - started),
    }


def read_results() -> dict[str, dict[str, Any]]:
    """Return the saved results by the key of the fault."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.is_file() else []
    return {result["key"]: result for result in map(json.loads, lines)}


def main() -> int:
    """Run the tests for all faults without a saved result."""
    parser = argparse.ArgumentParser(prog="python tests/mutations.py", description=__doc__)
    parser.add_argument("--only", default="", help="text that the file or subject must contain")
    parser.add_argument(
        "--nearest", action="store_true", help="run only the tests listed with each fault"
    )
    parser.add_argument(
        "--check", action="store_true", help="only check that every fault fits the source"
    )
    options = parser.parse_args()
    faults = read_faults()
    if options.check:
        print(f"{len(faults)} faults fit the source")
        return 0
    results = read_results()
    waiting = [
        fault
        for fault in faults
        if fault.key not in results and options.only in f"{fault.file} {fault.subject}"
    ]
    if waiting:
        for module in HEAVY:
            importlib.import_module(module)
        importlib.import_module("torch").set_num_threads(1)
    RESULTS.parent.mkdir(exist_ok=True)
    for level in (NEAREST,) if options.nearest else (NEAREST, DEFAULT, EXHAUSTIVE, NONE):
        for fault in [fault for fault in waiting if fault.key not in results]:
            not_found = {"key": fault.key, "level": NONE, "test": "", "seconds": 0}
            try:
                result = not_found if level == NONE else detect(fault, level)
            except RuntimeError as error:
                print(f"{fault.file}, {fault.wrong!r}: {error}", file=sys.stderr, flush=True)
                waiting.remove(fault)
                continue
            if result is not None:
                results[fault.key] = result
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result, ensure_ascii=False) + "\n")
            print(f"{fault.file}, {fault.wrong!r}: {result or f'not by the {level}'}", flush=True)
    return int(
        any(
            results.get(fault.key, {"level": NONE})["level"] in (EXHAUSTIVE, NONE)
            for fault in faults
        )
    )


if __name__ == "__main__":
    sys.exit(main())
