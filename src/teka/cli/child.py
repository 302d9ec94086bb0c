"""A child process for commands that run a model's code.

The code cannot end the command unnoticed, because the parent reports success only if the child
sends an exit code through a pipe. A child that ends without one, whether by `os._exit`, a signal
or a crash, is an error.
"""

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

USAGE_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as in shells
BROKEN_PIPE = 141  # 128 + SIGPIPE, as in shells
# For a call that began within the budget, for an interrupted child, and for the cleanup of a child.
GRACE_SECONDS = 10.0
# The parent polls, because a process that the child has left behind can keep the pipes open.
_POLL_SECONDS = 1.0
# A terminal and the parent both send an interrupt. Within this time they count as one.
_INTERRUPT_SECONDS = 1.0
_IDLE, _CALL, _DONE = b"idle", b"call", b"done"

_connection: Connection | None = None  # to the parent, in the child
_was_interrupted = False


def in_child() -> bool:
    """Return True in the child process."""
    return _connection is not None


def was_interrupted() -> bool:
    """Return True in a child that received an interrupt.

    In contrast, the code of a model may raise `KeyboardInterrupt` by itself.
    """
    return _was_interrupted


def run_in_child(
    run: Callable[[list[str]], int], words: list[str], say: Callable[[str], int]
) -> int:
    """Run a command in a child process.

    Args:
        run: A function of a module, from the words of a command to its exit code.
        words: The words of the command.
        say: Prints an error in one line and returns its exit code.
    """
    _occupy_standard_streams()
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_child, args=(run, words, sender), name=f"teka {words[0]}")
    process.start()
    sender.close()
    try:
        code = _await_code(process, receiver)
        if isinstance(code, int):
            process.join(GRACE_SECONDS)
    except KeyboardInterrupt:
        code = _interrupt(process, receiver)
    if process.is_alive():
        process.kill()
    process.join()
    if isinstance(code, int):
        return code
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K\x1b[?25h")  # show the cursor, which a progress bar hides
    return say(code or _describe_end(process.exitcode))


def _await_code(
    process: BaseProcess, receiver: Connection, seconds: float | None = None
) -> int | str | None:
    """Wait for the exit code of the child.

    Returns:
        The exit code, None if the child ended without one, or the reason to kill it if time is up.
    """
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    reason = ""
    while True:
        left = deadline - time.monotonic()
        ready = wait([receiver, process.sentinel], min(max(left, 0.0), _POLL_SECONDS))
        if not ready and left <= 0:
            return reason
        if receiver not in ready and not receiver.poll():
            if process.exitcode is not None:
                return None
            continue
        try:
            kind, *rest = receiver.recv_bytes().split()
        except (EOFError, OSError):
            process.join(GRACE_SECONDS)
            return None
        if kind == _DONE:
            return int(rest[0])
        if seconds is None:
            deadline = math.inf
        if seconds is None and kind == _CALL:
            budget = float(rest[0])
            deadline = time.monotonic() + budget + GRACE_SECONDS
            reason = (
                f"the model did not answer within --budget {budget:g} and {GRACE_SECONDS:g} more "
                "seconds; if it is slow, raise the budget or lower --batch-size"
            )


def _interrupt(process: BaseProcess, receiver: Connection) -> int:
    """Send an interrupt to the child and wait for its end.

    The signal is needed because only a terminal sends an interrupt to both processes.
    """
    code = None
    with contextlib.suppress(KeyboardInterrupt, ProcessLookupError):
        if os.name == "posix" and process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGINT)
        code = _await_code(process, receiver, GRACE_SECONDS)
    if isinstance(code, int):
        return code
    if sys.stderr is not None:
        sys.stderr.write("\ninterrupted\n")
    return INTERRUPTED


def _describe_end(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-exit_code).name
            return f"the process was ended by {name} before the result was complete"
    reason = f"the model's code ended the process with exit code {exit_code}"
    return f"{reason} before the result was complete"


def _occupy_standard_streams() -> None:
    """Open closed standard streams, because a pipe must not take the number of one of them."""
    with contextlib.suppress(OSError):
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(number)


def _run_child(run: Callable[[list[str]], int], words: list[str], connection: Connection) -> None:
    global _connection
    _connection = connection
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # A shell ignores interrupts of its background jobs.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _raise_interrupt())
    code = run(words)
    connection.send_bytes(b"%s %d" % (_DONE, code))
    # The report is complete. Do not print what the model's exit handlers write.
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            os.dup2(null, number)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(USAGE_ERROR)


def _raise_interrupt() -> Callable[[int, Any], None]:
    last = -_INTERRUPT_SECONDS

    def handle(_number: int, _frame: Any) -> None:
        nonlocal last
        global _was_interrupted
        _was_interrupted, before, last = True, last, time.monotonic()
        if last - before > _INTERRUPT_SECONDS:
            raise KeyboardInterrupt

    return handle


def report_calls(budget: float | None) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context manager for calls of a model's code.

    It tells the parent when a call begins and ends, so that the parent can end a call that takes
    too long. It also restores the standard streams, which the code may replace.
    """

    @contextlib.contextmanager
    def call() -> Iterator[None]:
        streams = sys.stdout, sys.stderr
        if _connection is not None and budget is not None:
            _connection.send_bytes(b"%s %r" % (_CALL, float(budget)))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams
            if _connection is not None and budget is not None:
                _connection.send_bytes(_IDLE)

    return call
