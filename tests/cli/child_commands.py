"""Commands of a child process for `test_child.py` that imitate the code of a model."""

import atexit
import os
import signal
import sys
import threading
import time

from teka.cli import child
from teka.cli.child import limit_model_call


def run(words: list[str]) -> int:
    """Run the action that the second word names, and return the third word as the exit code."""
    name, code = words[1], int(words[2])
    assert child._connection is not None
    with limit_model_call(0.1):
        ACTIONS[name]()
    print("the report")
    sys.stdout.flush()
    return code


def _raise(error: BaseException) -> None:
    raise error


def _fork() -> None:
    if os.fork():
        os._exit(0)
    time.sleep(8)  # the copy holds the pipes open after the process itself has ended
    os._exit(0)


def _wait_for_interrupt() -> None:
    try:
        print("waiting", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        assert not child.is_interrupt_by_model()
        print("saved", flush=True)
        sys.exit(130)


ACTIONS = {
    "nothing": lambda: None,
    "exit": lambda: os._exit(0),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "fork": _fork,
    "sleep": lambda: time.sleep(60),
    "loop": lambda: [None for _ in iter(int, 1)],
    "exit handler": lambda: atexit.register(_raise, ValueError("at exit")),
    "exit in a handler": lambda: atexit.register(os._exit, 0),
    "thread": lambda: threading.Thread(target=time.sleep, args=(60,)).start(),
    "no output": lambda: setattr(sys, "stdout", None),
    "interrupt": _wait_for_interrupt,
}
