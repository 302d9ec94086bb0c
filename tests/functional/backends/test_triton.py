import pytest
import torch

from teka.functional.backends import triton as triton_backend


def test_what_kernels_are_not_compiled_for_takes_the_plain_evaluation(
    monkeypatch: pytest.MonkeyPatch,
):
    tokens = torch.zeros(1, 1, 3, 64)
    assert not triton_backend.triton_fits(tokens, tokens, 64)
    monkeypatch.setattr(triton_backend, "HAS_TRITON", True)
    monkeypatch.setattr(triton_backend, "IS_INTERPRETED", True)
    assert triton_backend.triton_fits(tokens, tokens, 64)
    assert not triton_backend.triton_fits(tokens, tokens, 65)
    assert not triton_backend.triton_fits(tokens, torch.zeros(1, 1, 3, 65), 64)
    assert not triton_backend.triton_fits(tokens.double(), tokens.double(), 64)
