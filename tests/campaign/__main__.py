"""The campaign: what must not be lost, and what must be said in one line, tried many thousand times.

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

CLASSES = ("trainings", "studies", "disks", "files", "commands", "calls", "public calls")


def run(name: str, scale: float, seed: int, folder: Path) -> list[Tally]:
    """Run a class of the campaign.

    Args:
        name: One of `CLASSES`.
        scale: Its size, 1 for the whole.
        seed: Decides its cases.
        folder: Where to work.
    """
    if name == "trainings":
        return [kill_trainings(_count(20, scale), seed, folder / name)]
    if name == "studies":
        (folder / "study.yaml").write_text(STUDY, encoding="utf-8")
        return [kill_studies(_count(20, scale), seed, folder / name, folder / "study.yaml")]
    if name == "calls":
        return [fuzz_calls(_count(20_000, scale), seed)]
    if name == "public calls":
        with _inside(folder):
            return [fuzz_public_calls(_count(10_000, scale), seed)]
    with _fixtures(folder / name):
        if name == "disks":
            return [fill_disks(share) for share in (0.0, 0.5)]
        if name == "files":
            return [damage_files(_count(400, scale), seed)]
        return [fuzz_commands(_count(20_000, scale), seed)]


def fuzz_calls(number: int, seed: int) -> Tally:
    """Fuzzed calls of the library: the property of tests/contracts/test_bad_input.py, with more examples.

    Args:
        number: How many.
        seed: Decides all of them.
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
    except Exception:  # the smallest case that went wrong
        tally.problems.append(traceback.format_exc())
    return tally


def _count(whole: int, scale: float) -> int:
    return max(1, round(whole * scale))


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _fixtures(folder: Path) -> Iterator[None]:
    with _inside(folder.parent):
        write_fixtures(folder)
        yield


def main() -> int:
    """Run what is asked for, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CLASSES, default=list(CLASSES))
    parser.add_argument(
        "--scale", type=float, default=1.0, help="size of every class, 1 for the whole"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    # So that what asks for too much is told so, before the system looks for a process to kill.
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes() // 2, memory_bytes() // 2))
    rows, problems = [], []
    for name in options.only:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="teka-campaign-") as folder:
            for tally in run(name, options.scale, options.seed, Path(folder)):
                ended = ", ".join(
                    f"{count:,} {kind}" for kind, count in sorted(tally.counts.items())
                )
                rows.append(f"| {tally.name} | {ended} | {len(tally.problems)} |")
                problems += [f"{tally.name}: {problem}" for problem in tally.problems]
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    print("| class | cases, by how they ended | problems |\n|---|---|---|")
    print("\n".join(rows))
    for problem in problems:
        print(f"\n{problem}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
