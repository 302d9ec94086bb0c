"""Child process for commands that run the code of a user-supplied model.

The child process runs the command and sends its exit code through a pipe. If the model's code ends
the child first, for example by `os._exit` or a crash, the parent process prints an error message.
Therefore, a model cannot end a command silently.
"""

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

USAGE_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as in shells
BROKEN_PIPE = 141  # 128 + SIGPIPE, as in shells
# Time that the parent waits longer than the budget of a call, and for a child that is ending.
GRACE_SECONDS = 10.0
# The parent polls, because a grandchild may keep the pipe open after the end of the child.
_POLL_SECONDS = 1.0
# The terminal and the parent may both send an interrupt. Within this time, they count as one.
_INTERRUPT_SECONDS = 1.0
# Messages to the parent: the time limit of a model call, and the exit code.
_TIME_LIMIT, _EXIT_CODE = b"time_limit", b"exit_code"

_connection: Connection | None = None  # in the child, the pipe to the parent
_last_interrupt = -math.inf  # in the child, the time of the last interrupt by a signal


def is_interrupt_by_model() -> bool:
    """Return True if a `KeyboardInterrupt` came from a model's code and not from a signal.

    Ctrl-C sends a signal. Only a child process of `run_in_child` can tell the difference, so the
    result is False in other processes.
    """
    return _connection is not None and _last_interrupt == -math.inf


def run_in_child(
    run: Callable[[list[str]], int], arguments: list[str], print_error: Callable[[str], int]
) -> int:
    """Run a command in a child process, and return its exit code.

    Args:
        run: Module-level function that runs the command and returns the exit code.
        arguments: Name of the command, followed by its command-line arguments.
        print_error: Function that prints an error message and returns the exit code.
    """
    _redirect_closed_streams()
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_run_inside_child, args=(run, arguments, sender), name=f"teka {arguments[0]}"
    )
    resource_tracker.ensure_running()  # its start unblocks interrupts
    try:
        # The child inherits the block. Therefore an interrupt waits until the imports are complete.
        _set_interrupts_blocked(True)
        process.start()
        sender.close()
        _set_interrupts_blocked(False)
        code = _wait_for_exit_code(process, receiver)
        if isinstance(code, int):
            process.join(GRACE_SECONDS)
    except KeyboardInterrupt:
        code = _interrupt_child(process, receiver)
    if process.is_alive():
        process.kill()
    process.join()
    if isinstance(code, int):
        return code
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K\x1b[?25h")  # show the cursor, which a progress bar hides
    return print_error(code or _describe_unexpected_exit(process.exitcode))


def _wait_for_exit_code(
    process: BaseProcess, receiver: Connection, seconds: float | None = None
) -> int | str | None:
    """Wait until the child process sends its exit code, ends, or exceeds a time limit.

    Args:
        process: The child process.
        receiver: Pipe from the child process.
        seconds: Time limit. If it is None, the limits of `limit_model_call` apply, which the child
            sends before each call of the model.

    Returns:
        The exit code, None if the child ended without sending one, or an error message if the child
        exceeded the time limit and must be killed.
    """
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    reason = ""
    while True:
        if not receiver.poll(_POLL_SECONDS):
            if process.exitcode is not None and not receiver.poll():
                return None
            if time.monotonic() > deadline:
                return reason
            continue
        try:
            kind, value = receiver.recv_bytes().split()
        except (EOFError, OSError):
            process.join(GRACE_SECONDS)
            return None
        if kind == _EXIT_CODE:
            return int(value)
        if seconds is None:
            budget = float(value)
            deadline = time.monotonic() + budget + GRACE_SECONDS
            reason = (
                f"the model did not answer within --budget {budget:g} and {GRACE_SECONDS:g} more "
                "seconds; raise --budget or lower --batch-size"
            )


def _interrupt_child(process: BaseProcess, receiver: Connection) -> int:
    """Interrupt the child process, wait for it to end, and return its exit code.

    This is necessary because a signal from `kill` reaches only the parent process, whereas Ctrl-C
    in a terminal interrupts both processes.
    """
    code = None
    with contextlib.suppress(KeyboardInterrupt, ProcessLookupError):
        if os.name == "posix" and process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGINT)
        code = _wait_for_exit_code(process, receiver, GRACE_SECONDS)
    return code if isinstance(code, int) else print_interrupted()


def print_interrupted() -> int:
    """Print "interrupted" on standard error, and return the exit code 130."""
    if sys.stderr is not None:
        sys.stderr.write("\ninterrupted\n")
    return INTERRUPTED


def _set_interrupts_blocked(is_blocked: bool) -> None:
    """Block the signal SIGINT for this process, or unblock it and receive pending signals."""
    if os.name == "posix":
        how = signal.SIG_BLOCK if is_blocked else signal.SIG_UNBLOCK
        signal.pthread_sigmask(how, [signal.SIGINT])


def _describe_unexpected_exit(exit_code: int | None) -> str:
    end = f"the model's code ended the process with exit code {exit_code}"
    if exit_code and exit_code < 0:
        with contextlib.suppress(ValueError):
            end = f"the process was ended by {signal.Signals(-exit_code).name}"
    return f"{end} before the result was complete"


def _redirect_closed_streams() -> None:
    """Redirect standard streams that are closed to the null device.

    Otherwise, the next file or pipe would get the file descriptor of a closed stream, and output
    for the stream would go there.
    """
    with contextlib.suppress(OSError):
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(number)


def _run_inside_child(
    run: Callable[[list[str]], int], arguments: list[str], connection: Connection
) -> None:
    global _connection
    _connection = connection
    threading.Thread(target=_exit_when_parent_ends, daemon=True).start()
    # A shell starts background jobs with interrupts ignored. Keep it that way.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _handle_interrupt)
    try:
        _set_interrupts_blocked(False)
        code = run(arguments)
    except KeyboardInterrupt:  # before or after the command
        code = print_interrupted()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt
    connection.send_bytes(b"%s %d" % (_EXIT_CODE, code))
    # The result is complete. Hide the output of exit handlers of the model.
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            os.dup2(null, number)


def _exit_when_parent_ends() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(USAGE_ERROR)


def _handle_interrupt(_number: int, _frame: Any) -> None:
    global _last_interrupt
    now = time.monotonic()
    is_repeated = now - _last_interrupt <= _INTERRUPT_SECONDS
    _last_interrupt = now
    if not is_repeated:
        raise KeyboardInterrupt


@contextlib.contextmanager
def limit_model_call(seconds: float | None) -> Iterator[None]:
    """Context manager that limits the time of a model call.

    If the call takes longer, the parent process kills this process. At the end of the context,
    standard output and standard error are restored, because the model's code may have replaced
    them.

    Args:
        seconds: Time limit in seconds, or None for no limit.
    """
    streams = sys.stdout, sys.stderr
    _send_time_limit(math.inf if seconds is None else seconds)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        _send_time_limit(math.inf)


def _send_time_limit(seconds: float) -> None:
    if _connection is not None:
        _connection.send_bytes(b"%s %r" % (_TIME_LIMIT, seconds))
