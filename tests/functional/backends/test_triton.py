import pytest
import torch

from teka.functional import Elu, Focused, Relu, Softmax, SquaredRelu, Taylor2
from teka.functional.backends import triton as triton_backend
from teka.functional.backends.triton import can_use_triton


def test_can_use_triton_depends_on_kernel_head_size_and_dtype(monkeypatch: pytest.MonkeyPatch):
    kernel = SquaredRelu()
    tokens = torch.zeros(1, 1, 3, 64)
    assert not can_use_triton(kernel, tokens, tokens)  # there is no GPU
    monkeypatch.setattr(triton_backend, "HAS_TRITON", True)
    monkeypatch.setattr(triton_backend, "IS_INTERPRETED", True)
    for supported in (SquaredRelu(), Relu(), Elu()):
        assert can_use_triton(supported, tokens, tokens)
    for unsupported in (Focused(), Taylor2(), Softmax()):
        assert not can_use_triton(unsupported, tokens, tokens)
    larger = torch.zeros(1, 1, 3, 65)
    assert not can_use_triton(kernel, larger, tokens)
    assert not can_use_triton(kernel, tokens, larger)
    assert not can_use_triton(kernel, tokens.double(), tokens.double())
    for dtype in (torch.float16, torch.bfloat16):
        assert can_use_triton(kernel, tokens.to(dtype), tokens.to(dtype))
