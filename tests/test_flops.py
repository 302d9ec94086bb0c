from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from teka.flops import flop_counter
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
def test_a_product_counts_two_flops_a_multiply_add_wherever_it_is_written(
    product: Callable[[Tensor, Tensor, Tensor], Tensor], operands: tuple[Tensor, Tensor, Tensor]
):
    with flop_counter() as counter:
        product(*operands)
    assert counter.get_total_flops() == 2 * operands[2].numel() * 5


def places_of(form: str, num_tokens: int, size: int) -> Tensor | None:
    return (
        None
        if form == "none"
        else torch.empty(1, 3, num_tokens, 5 if form == "fourier" else size // 2)
    )


@pytest.mark.skipif(not triton_backend.HAS_TRITON, reason="there is no Triton for this system")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("form", "waves"), [("none", 1), ("rotary", 1), ("fourier", 5)])
def test_the_kernels_of_a_gpu_count_the_products_that_their_documentation_has(
    form: str, waves: int, is_causal: bool
):
    from teka.functional.backends.triton.operators import feature_attention

    batch, heads, num_queries, size, channels = 2, 3, 64, 32, 16
    num_keys = num_queries if is_causal else 48
    block = 16
    with FakeTensorMode():
        query = torch.empty(batch, heads, num_queries, size, requires_grad=True)
        key = torch.empty(batch, heads, num_keys, size, requires_grad=True)
        value = torch.empty(batch, heads, num_keys, channels, requires_grad=True)
        places = (places_of(form, count, size) for count in (num_queries, num_keys))
        options = "squared_relu", form, 1.0, 0.1, 0.5, is_causal
        with flop_counter() as forward:
            output = feature_attention(query, key, value, None, None, *places, *options)[0]
        with flop_counter() as backward:
            output.sum().backward()
    sums, pairs = (
        batch * heads * size * channels * waves,
        batch * heads * num_queries * block * (size + channels),
    )
    if is_causal:
        assert forward.get_total_flops() == 6 * sums * num_queries + 2 * pairs
        assert backward.get_total_flops() == 12 * sums * num_queries + 6 * pairs
    else:
        assert forward.get_total_flops() == 2 * sums * (num_queries + num_keys)
        assert backward.get_total_flops() == 4 * sums * (num_queries + num_keys)
