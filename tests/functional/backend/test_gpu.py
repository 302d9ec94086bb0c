"""The kernels of a GPU, which Triton's interpreter runs on any machine; on a GPU themselves with TEKA_DEVICE=cuda."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from teka.functional.backend import gpu


def test_what_kernels_are_not_compiled_for_takes_the_plain_evaluation(monkeypatch: pytest.MonkeyPatch):
    tokens = torch.zeros(1, 1, 3, 64)
    assert not gpu.triton_fits(tokens, tokens, 64)
    monkeypatch.setattr(gpu, "HAS_TRITON", True)
    monkeypatch.setattr(gpu, "IS_INTERPRETED", True)
    assert gpu.triton_fits(tokens, tokens, 64)
    assert not gpu.triton_fits(tokens, tokens, 65)
    assert not gpu.triton_fits(tokens, torch.zeros(1, 1, 3, 65), 64)
    assert not gpu.triton_fits(tokens.double(), tokens.double(), 64)


@pytest.mark.skipif(not gpu.HAS_TRITON, reason="there is no Triton for this system")
@pytest.mark.parametrize("part", range(2))
def test_kernels_give_the_values_and_every_gradient_of_every_pair(part: int):
    command = [sys.executable, "-m", "tests.functional.backend.run_gpu", str(part), "2"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found
    assert {name: part for name, (part, num_kernels) in found.items() if not part <= 1 or num_kernels == 0} == {}
