"""Commands of a child process for `test_child.py`. They do what a model's code may do."""

import atexit
import os
import signal
import sys
import threading
import time

from teka.cli.child import is_child_process, model_call_context, was_interrupted


def run(words: list[str]) -> int:
    """Do what the second word says, then return the exit code that the third word says."""
    what, code = words[1], int(words[2])
    assert is_child_process()
    with model_call_context(0.1)():
        DEEDS[what]()
    print("the report")
    sys.stdout.flush()
    return code


def _raise(error: BaseException) -> None:
    raise error


def _fork() -> None:
    if os.fork():
        os._exit(0)
    time.sleep(8)  # the copy, which holds the pipes open after the process itself has ended
    os._exit(0)


def _wait_for_interrupt() -> None:
    try:
        print("waiting", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        assert was_interrupted()
        print("saved", flush=True)
        sys.exit(130)


DEEDS = {
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
