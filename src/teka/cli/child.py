"""A child process for commands that run a model's code, so that the code cannot end the command unnoticed.

The parent reports success only if the child delivers an exit code through a pipe. A child that ends without one,
whether by `os._exit`, a signal or a crash, is an error.
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
GRACE_SECONDS = (
    10.0  # for a call that began within the budget, for an interrupted child, and for its cleanup
)
_LONGEST_WAIT = (
    1.0  # seconds, because a process that the child has left behind can keep its pipes open
)
_INTERRUPT_SECONDS = (
    1.0  # a terminal and the parent both send an interrupt; within this time they count as one
)
_IDLE, _CALL, _DONE = b"idle", b"call", b"done"

_connection: Connection | None = None  # to the parent, in the child
_was_interrupted = False


def in_child() -> bool:
    """Return True in the child process."""
    return _connection is not None


def was_interrupted() -> bool:
    """Return True in a child that received an interrupt, in contrast to code that raised `KeyboardInterrupt`."""
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
    """Return the exit code of the child, None if it ended without one, or the reason to kill it if time is up."""
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    reason = ""
    while True:
        left = deadline - time.monotonic()
        ready = wait([receiver, process.sentinel], min(max(left, 0.0), _LONGEST_WAIT))
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
                f"the model did not answer within --budget {budget:g} and {GRACE_SECONDS:g} more seconds; if it is "
                "slow, raise the budget or lower --batch-size"
            )


def _interrupt(process: BaseProcess, receiver: Connection) -> int:
    """Hand an interrupt on to the child, because only a terminal sends it to both processes, and await the end."""
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
    return f"the model's code ended the process with exit code {exit_code} before the result was complete"


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
    if (
        signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    ):  # as it is in the background of a shell
        signal.signal(signal.SIGINT, _raise_interrupt())
    try:
        code = run(words)
    except SystemExit as error:  # of the parser, which has printed help or an error
        code = (
            error.code if isinstance(error.code, int) else 0 if error.code is None else USAGE_ERROR
        )
    connection.send_bytes(b"%s %d" % (_DONE, code))
    # The report is complete. What handlers of the model's code print at exit would only follow it.
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
    """Return a context for each call of a model's code, whose begin and end the parent is told.

    The context also restores the standard streams, which the code may replace.
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
