"""The Triton kernels, run by Triton's interpreter, or on a GPU with TEKA_DEVICE=cuda."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from teka.functional.backends import triton as triton_backend


@pytest.mark.skipif(not triton_backend.HAS_TRITON, reason="Triton is not available for this system")
@pytest.mark.parametrize("part", range(2))
def test_triton_kernels_equal_dense_in_values_and_gradients(part: int):
    command = [sys.executable, "-m", "tests.compilers.triton_everything", str(part), "2"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found
    assert {
        name: part
        for name, (part, num_kernels) in found.items()
        if not part <= 1 or num_kernels == 0
    } == {}
