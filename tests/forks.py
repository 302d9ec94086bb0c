"""What runs in a fork of this process, which has torch and its compiler already, and imports teka again.

So it is as users import it: the checks of annotations that the tests switch on can be neither compiled nor exported.
"""

import importlib
import logging
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from typing import Any


def run(module: str, *arguments: Any) -> Any:
    """What `main` of a module gives, in a fork."""
    importlib.import_module("torch._dynamo")  # or every fork would
    fork = multiprocessing.get_context("fork")
    receive, send = fork.Pipe(duplex=False)
    process = fork.Process(target=answer, args=(send, module, arguments))
    process.start()
    send.close()
    try:
        return receive.recv()  # EOFError of a process that has failed
    finally:
        process.join()


def answer(send: Connection, module: str, arguments: tuple[Any, ...]) -> None:
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if "jaxtyping" not in type(finder).__module__
    ]
    for name in [name for name in sys.modules if name.split(".")[0] in ("teka", "tests")]:
        del sys.modules[name]
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = (
        "1"  # or it tries whether the compiler knows what the processor does
    )
    logging.getLogger().handlers.clear()  # those of the tests keep all that torch tells of its graphs
    send.send(importlib.import_module(module).main(*arguments))
