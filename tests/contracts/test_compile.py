import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.contracts.cases import EXHAUSTIVE, RELATIVE_NAMES

from teka.functional import KERNELS

# What torch.compile's default backend needs, and not every machine has: a compiler and Python's headers.
HAS_COMPILER = shutil.which("g++") is not None and Path(sysconfig.get_path("include"), "Python.h").is_file()


def run(script: str, *arguments: str) -> dict[str, object]:
    """What a script beside this file found, in a process of its own.

    The checks of annotations that the tests switch on can be neither compiled nor exported.
    """
    path = Path(__file__).with_name(script)
    done = subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("setting", ["masked", "causal", "across"])
def test_layers_compile_as_one_graph_and_compute_the_same(setting: str):
    found = run("compile_everything.py", "aot_eager", setting)
    assert found["wrong"] == {}
    if EXHAUSTIVE:
        assert found["kernels"] == sorted(KERNELS)
        assert found["relatives"] == sorted(map(str, RELATIVE_NAMES))


@pytest.mark.parametrize("backend", ["inductor"] if HAS_COMPILER else ["aot_eager"])
def test_the_default_compiler_computes_the_same(backend: str):
    assert run("compile_everything.py", backend)["wrong"] == {}


def test_every_kernel_and_every_relative_kernel_exports_and_computes_the_same():
    found = run("export_everything.py")
    assert found["wrong"] == {}
    assert found["kernels"] == sorted(KERNELS)
    assert found["relatives"] == sorted(map(str, RELATIVE_NAMES))
