import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.contracts.cases import PAIRS

# What torch.compile's default backend needs, and not every machine has: a compiler and Python's headers.
HAS_COMPILER = shutil.which("g++") is not None and Path(sysconfig.get_path("include"), "Python.h").is_file()


@pytest.mark.parametrize(
    ("backend", "num_compiled"), [("aot_eager", len(PAIRS) + 1), *([("inductor", 1)] if HAS_COMPILER else [])]
)
def test_every_layer_compiles_as_one_graph_and_computes_the_same(backend: str, num_compiled: int):
    # In a process of its own: the checks of annotations that the tests switch on cannot be compiled.
    script = Path(__file__).with_name("compile_everything.py")
    run = subprocess.run([sys.executable, script, backend], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"compiled": num_compiled}
