"""Run a module in a fork of this process, which has imported PyTorch but imports teka again.

The fork runs without the checks of annotations, which can be neither compiled nor exported.
"""

import importlib
import logging
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from typing import Any


def run(module: str, *arguments: Any) -> Any:
    """Call `main` of a module in a fork, and return its result."""
    importlib.import_module("torch._dynamo")  # so that not every fork imports it
    fork = multiprocessing.get_context("fork")
    receive, send = fork.Pipe(duplex=False)
    process = fork.Process(target=send_result, args=(send, module, arguments))
    process.start()
    send.close()
    try:
        return receive.recv()  # EOFError if the process failed
    finally:
        process.join()


def send_result(send: Connection, module: str, arguments: tuple[Any, ...]) -> None:
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if "jaxtyping" not in type(finder).__module__
    ]
    for name in [name for name in sys.modules if name.split(".")[0] in ("teka", "tests")]:
        del sys.modules[name]
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # skip a test compilation
    logging.getLogger().handlers.clear()  # pytest's handlers would keep graphs
    send.send(importlib.import_module(module).main(*arguments))
