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
