"""The kernels of a GPU, which Triton's interpreter runs on any machine; on a GPU themselves with TEKA_DEVICE=cuda."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from teka.functional.backends import triton as triton_backend


@pytest.mark.skipif(not triton_backend.HAS_TRITON, reason="there is no Triton for this system")
@pytest.mark.parametrize("part", range(2))
def test_kernels_give_the_values_and_every_gradient_of_every_pair(part: int):
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
