from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from reproduction.flops import make_flop_counter

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
    with make_flop_counter() as counter:
        product(*operands)
    assert counter.get_total_flops() == 2 * operands[2].numel() * 5
