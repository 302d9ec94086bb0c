"""Outcome of a command: exit code and messages."""

import contextlib
import io
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from reproduction.__main__ import run as main

SECONDS = 120  # which no command of the campaign needs


class TooLong(BaseException):
    """A command took longer than any of the campaign needs."""


@dataclass
class Outcome:
    """How a command ended.

    Args:
        code: Its exit code, None if it raised.
        error: What it wrote to standard error, or the traceback.
    """

    code: int | None
    error: str

    @property
    def is_sound(self) -> bool:
        """Return True if the command finished, missed its threshold or refused with one line."""
        if self.code in (0, 1):
            return "Traceback" not in self.error
        lines = [line for line in self.error.splitlines() if "warning:" not in line]
        return self.code == 2 and len(lines) == 1 and lines[0].startswith("python -m reproduction")


@dataclass
class Tally:
    """Counts of a class of the campaign.

    Args:
        name: The class.
        counts: Cases by how they ended.
        problems: What must not be, in words.
    """

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, kind: str, problem: str | None = None) -> None:
        """Count a case.

        Args:
            kind: How it ended.
            problem: What is wrong with that, or None.
        """
        self.counts[kind] += 1
        if problem is not None:
            self.problems.append(problem)

    def add_command(self, what: str, outcome: Outcome) -> None:
        """Count a command, which must be sound."""
        kind = {0: "done", 1: "below the gate", 2: "refused"}.get(outcome.code or 0, "raised")
        if outcome.code is None or not outcome.is_sound:
            self.add("unclear", f"{what}: {outcome.error[-2000:]}")
        else:
            self.add(kind)


def run_command(arguments: Sequence[str]) -> Outcome:
    """Run `teka` in this process, in at most `SECONDS`."""
    error, output = io.StringIO(), io.StringIO()
    interrupt = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGALRM, _time_is_over)
    signal.alarm(SECONDS)
    try:
        with (
            contextlib.redirect_stderr(error),
            contextlib.redirect_stdout(output),
            warnings.catch_warnings(),
        ):
            code = _code(arguments)
            if (
                signal.getsignal(signal.SIGALRM) is not _time_is_over
            ):  # the command has turned it into an error
                raise TooLong(f"more than {SECONDS} s")
            return Outcome(code, error.getvalue())
    except BaseException:  # whatever comes through is what the campaign looks for
        return Outcome(None, traceback.format_exc())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGINT, interrupt)


def _code(arguments: Sequence[str]) -> int:
    try:
        return main(list(arguments))
    except SystemExit as left:
        if left.code not in (0, 2):
            raise
        return int(left.code)
    finally:
        sys.stdout.flush()


def _time_is_over(*_: object) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    raise TooLong(f"more than {SECONDS} s")
