"""Fault-injection tests: killed processes, full disks, damaged files and wrong arguments.

    python -m tests.campaign                                   # all of it, about two hours of a core
    python -m tests.campaign --only commands files --scale 0.1 --seed 7

prints the table of docs/reliability.md, with every problem below it, and ends with 1 if there is one.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck
from hypothesis import strategies as st

from teka.memory import memory_bytes
from tests.campaign.calls import fuzz_public_calls
from tests.campaign.commands import fuzz_commands
from tests.campaign.damages import damage_files
from tests.campaign.disks import fill_disks
from tests.campaign.fixtures import STUDY, write_fixtures
from tests.campaign.kills import kill_studies, kill_trainings
from tests.campaign.outcome import Tally
from tests.contracts.test_bad_input import call_wrongly

PARTS = ("trainings", "studies", "disks", "files", "commands", "calls", "public calls")


def run(name: str, scale: float, seed: int, folder: Path) -> list[Tally]:
    """Run one part of the campaign, and return its counts.

    Args:
        name: One of `PARTS`.
        scale: Share of the cases, 1 for all.
        seed: Seed of the cases.
        folder: Working folder.
    """
    if name == "trainings":
        return [kill_trainings(_scaled_count(20, scale), seed, folder / name)]
    if name == "studies":
        (folder / "study.yaml").write_text(STUDY, encoding="utf-8")
        return [kill_studies(_scaled_count(20, scale), seed, folder / name, folder / "study.yaml")]
    if name == "calls":
        return [fuzz_calls(_scaled_count(20_000, scale), seed)]
    if name == "public calls":
        with _working_folder(folder):
            return [fuzz_public_calls(_scaled_count(10_000, scale), seed)]
    with _fixtures_in(folder / name):
        if name == "disks":
            return [fill_disks(share) for share in (0.0, 0.5)]
        if name == "files":
            return [damage_files(_scaled_count(400, scale), seed)]
        return [fuzz_commands(_scaled_count(20_000, scale), seed)]


def fuzz_calls(number: int, seed: int) -> Tally:
    """Run the test of tests/contracts/test_bad_input.py with more examples.

    Args:
        number: Number of examples.
        seed: Seed of the examples.
    """
    tally = Tally("fuzzed library calls")

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=number,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @hypothesis.given(data=st.data())
    def call(data: st.DataObject) -> None:
        tally.add("refused" if call_wrongly(data) else "done")

    try:
        call()
    except Exception:  # Hypothesis raises the error of the smallest failing example.
        tally.problems.append(traceback.format_exc())
    return tally


def _scaled_count(whole: int, scale: float) -> int:
    return max(1, round(whole * scale))


@contextmanager
def _working_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _fixtures_in(folder: Path) -> Iterator[None]:
    with _working_folder(folder.parent):
        write_fixtures(folder)
        yield


def main() -> int:
    """Run the requested parts, and print the table of results."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the cases of every part, 1 for all"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    # With a limit, a call that needs too much memory gets an error before the system kills a process.
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes() // 2, memory_bytes() // 2))
    rows, problems = [], []
    for name in options.only:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="teka-campaign-") as folder:
            for tally in run(name, options.scale, options.seed, Path(folder)):
                outcomes = ", ".join(
                    f"{count:,} {kind}" for kind, count in sorted(tally.counts.items())
                )
                rows.append(f"| {tally.name} | {outcomes} | {len(tally.problems)} |")
                problems += [f"{tally.name}: {problem}" for problem in tally.problems]
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    print("| class | cases, by how they ended | problems |\n|---|---|---|")
    print("\n".join(rows))
    for problem in problems:
        print(f"\n{problem}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
