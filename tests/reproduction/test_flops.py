from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from reproduction.flops import flop_counter
from teka.functional.backends import triton as triton_backend

MATRICES = (torch.randn(3, 5), torch.randn(5, 7), torch.randn(3, 7))
BATCHES = (torch.randn(2, 3, 5), torch.randn(2, 5, 7), torch.randn(2, 3, 7))


@pytest.mark.parametrize(
    ("product", "operands"),
    [
        (lambda left, right, total: left @ right, MATRICES),
        (lambda left, right, total: torch.mm(left, right, out=total), MATRICES),
        (lambda left, right, total: torch.addmm(total, left, right), MATRICES),
        (lambda left, right, total: total.addmm_(left, right), MATRICES),
        (lambda left, right, total: left @ right, BATCHES),
        (lambda left, right, total: torch.bmm(left, right, out=total), BATCHES),
        (lambda left, right, total: torch.baddbmm(total, left, right), BATCHES),
        (lambda left, right, total: total.baddbmm_(left, right), BATCHES),
    ],
)
def test_multiply_add_counts_as_two_operations(
    product: Callable[[Tensor, Tensor, Tensor], Tensor], operands: tuple[Tensor, Tensor, Tensor]
):
    with flop_counter() as counter:
        product(*operands)
    assert counter.get_total_flops() == 2 * operands[2].numel() * 5


@pytest.mark.skipif(not triton_backend.HAS_TRITON, reason="there is no Triton for this system")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("is_rotary", [False, True])
def test_operations_of_triton_kernels(is_rotary: bool, is_causal: bool):
    from teka.functional.backends.triton.operators import linear_attention

    batch, heads, num_queries, dim, dim_value = 2, 3, 64, 32, 16
    num_keys = num_queries if is_causal else 48
    block = 16
    with FakeTensorMode():
        query = torch.empty(batch, heads, num_queries, dim, requires_grad=True)
        key = torch.empty(batch, heads, num_keys, dim, requires_grad=True)
        value = torch.empty(batch, heads, num_keys, dim_value, requires_grad=True)
        angles: tuple[Tensor | None, Tensor | None] = (None, None)
        if is_rotary:
            angles = (
                torch.empty(1, heads, num_queries, dim // 2),
                torch.empty(1, heads, num_keys, dim // 2),
            )
        options = "squared_relu", 1.0, 0.1, 0.5, is_causal
        with flop_counter() as forward:
            output = linear_attention(query, key, value, None, *angles, *options)[0]
        with flop_counter() as backward:
            output.sum().backward()
    sums = batch * heads * dim * dim_value
    pairs = batch * heads * num_queries * block * (dim + dim_value)
    if is_causal:
        assert forward.get_total_flops() == 6 * sums * num_queries + 2 * pairs
        assert backward.get_total_flops() == 12 * sums * num_queries + 6 * pairs
    else:
        assert forward.get_total_flops() == 2 * sums * (num_queries + num_keys)
        assert backward.get_total_flops() == 4 * sums * (num_queries + num_keys)
