"""The kernels of a GPU, which Triton's interpreter runs on any machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from teka.functional.backend.gpu import HAS_TRITON


@pytest.mark.skipif(not HAS_TRITON, reason="there is no Triton for this system")
def test_interpreted_kernels_give_the_values_and_every_gradient_of_every_pair():
    command = [sys.executable, "-m", "tests.functional.backend.interpret_gpu"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found
    assert {name: part for name, (part, num_kernels) in found.items() if not part <= 1 or num_kernels == 0} == {}
