import importlib
import logging
import multiprocessing
import os
import shutil
import sys
import sysconfig
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.cases import EXHAUSTIVE, RELATIVE_NAMES

from teka.functional import KERNELS

# Processes among which the layers to compile are divided.
PARTS = 6 if EXHAUSTIVE else 2
# What torch.compile's default backend needs, and not every machine has: a compiler and Python's headers.
HAS_COMPILER = shutil.which("g++") is not None and Path(sysconfig.get_path("include"), "Python.h").is_file()


def run(name: str, *arguments: Any) -> dict[str, Any]:
    """What a file beside this one found, in a fork of this process that imports teka again.

    The checks of annotations that the tests switch on can be neither compiled nor exported.
    """
    importlib.import_module("torch._dynamo")  # or every fork would
    fork = multiprocessing.get_context("fork")
    receive, send = fork.Pipe(duplex=False)
    process = fork.Process(target=answer, args=(send, name, arguments))
    process.start()
    send.close()
    try:
        return receive.recv()  # EOFError of a process that has failed
    finally:
        process.join()


def answer(send: Connection, name: str, arguments: tuple[Any, ...]) -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if "jaxtyping" not in type(finder).__module__]
    for module in [module for module in sys.modules if module.split(".")[0] in ("teka", "tests")]:
        del sys.modules[module]
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # or it tries whether the compiler knows what the processor does
    logging.getLogger().handlers.clear()  # those of the tests keep all that torch tells of its graphs
    send.send(importlib.import_module(f"tests.contracts.{name}").main(*arguments))


@pytest.mark.parametrize("part", range(PARTS))
def test_layers_compile_as_one_graph_and_compute_the_same(part: int):
    found = run("compile_everything", "aot_eager", part, PARTS)
    assert found["wrong"] == {}
    assert found["count"] > 8


@pytest.mark.parametrize("backend", ["inductor"] if HAS_COMPILER else ["aot_eager"])
def test_the_default_compiler_computes_the_same(backend: str):
    assert run("compile_everything", backend)["wrong"] == {}


def test_every_kernel_and_every_relative_kernel_exports_and_computes_the_same():
    found = run("export_everything", False)
    assert found["wrong"] == {}
    assert found["kernels"] == sorted(KERNELS)
    assert found["relatives"] == sorted(map(str, RELATIVE_NAMES))


def test_linear_layers_are_linear_in_onnx_and_compute_the_same():
    found = run("export_everything", True)
    assert found["wrong"] == {}
    assert found["count"] == 5
