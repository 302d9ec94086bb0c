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

from reproduction.__main__ import run_command as main

SECONDS = 120  # No command of the campaign needs that long.


class TooLong(BaseException):
    """Error of a command or a call that exceeds its time limit."""


@dataclass
class Outcome:
    """Exit code and error output of a command.

    Args:
        code: Exit code, or None if the command raised an error.
        error: Text on standard error, or the traceback.
    """

    code: int | None
    error: str

    @property
    def is_sound(self) -> bool:
        """Return True if the command succeeded, missed its threshold or ended with an error of one line."""
        if self.code in (0, 1):
            return "Traceback" not in self.error
        lines = [line for line in self.error.splitlines() if "warning:" not in line]
        return self.code == 2 and len(lines) == 1 and lines[0].startswith("python -m reproduction")


@dataclass
class Tally:
    """Counts of the cases of one part of the campaign.

    Args:
        name: Name of the part.
        counts: Number of cases for each kind of outcome.
        problems: Descriptions of all problems.
    """

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, kind: str, problem: str | None = None) -> None:
        """Count a case.

        Args:
            kind: Kind of outcome.
            problem: Description of the problem, or None.
        """
        self.counts[kind] += 1
        if problem is not None:
            self.problems.append(problem)

    def add_command(self, what: str, outcome: Outcome) -> None:
        """Count a command, with a problem if it is not sound."""
        kind = {0: "done", 1: "below the gate", 2: "refused"}.get(outcome.code or 0, "raised")
        if outcome.code is None or not outcome.is_sound:
            self.add("unclear", f"{what}: {outcome.error[-2000:]}")
        else:
            self.add(kind)


def run_command(arguments: Sequence[str]) -> Outcome:
    """Run a command in this process for at most `SECONDS`."""
    error, output = io.StringIO(), io.StringIO()
    interrupt = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGALRM, _raise_too_long)
    signal.alarm(SECONDS)
    try:
        with (
            contextlib.redirect_stderr(error),
            contextlib.redirect_stdout(output),
            warnings.catch_warnings(),
        ):
            code = _exit_code(arguments)
            if (
                signal.getsignal(signal.SIGALRM) is not _raise_too_long
            ):  # The command has caught TooLong.
                raise TooLong(f"more than {SECONDS} s")
            return Outcome(code, error.getvalue())
    except BaseException:  # The campaign looks for all errors that a command does not catch.
        return Outcome(None, traceback.format_exc())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGINT, interrupt)


def _exit_code(arguments: Sequence[str]) -> int:
    try:
        return main(list(arguments))
    except SystemExit as left:
        if left.code not in (0, 2):
            raise
        return int(left.code)
    finally:
        sys.stdout.flush()


def _raise_too_long(*_: object) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    raise TooLong(f"more than {SECONDS} s")
