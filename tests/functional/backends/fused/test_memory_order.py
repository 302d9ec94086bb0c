"""Blocks of tokens are multiplied in the order that they have in memory: two orders take up to twenty times as long."""

from typing import Any

import pytest
import torch
from tests.contracts.cases import draw_inputs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from teka import Grid
from teka.functional import attention
from teka.functional.plan import LEAST_IN_BLOCKS
from teka.functional.relative import make_relative

POINTWISE = {
    "add",
    "add_",
    "addcmul",
    "addcmul_",
    "div",
    "div_",
    "ge",
    "maximum",
    "mul",
    "mul_",
    "sub",
    "sub_",
}
NUM_TOKENS = 1024


class _Orders(TorchDispatchMode):
    """What pointwise operations meet tensors in two orders of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.mixed: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in POINTWISE:
            leaves = tree_leaves((args, kwargs, output))
            orders = {
                _last(one)
                for one in leaves
                if isinstance(one, Tensor) and one.numel() >= 4 * NUM_TOKENS
            }
            self.seen.add(name)
            self.mixed |= {name} if len(orders) > 1 else set()
        return output


def _last(tensor: Tensor) -> int:
    """The dimension, counted from the end, that is last in memory."""
    strides = [
        (stride, dim)
        for dim, (stride, size) in enumerate(zip(tensor.stride(), tensor.shape, strict=True))
    ]
    return min(pair for pair in strides if pair[0] and tensor.shape[pair[1]] > 1)[1] - tensor.ndim


@pytest.mark.parametrize(
    ("relative", "is_causal"),
    [(None, False), ("rotary", False), ("fourier", False), (None, True), ("rotary", True)],
    ids=["alone", "rotary", "fourier", "causal", "causal rotary"],
)
def test_no_operation_mixes_two_orders_of_memory(
    relative: str | None, is_causal: bool, monkeypatch: pytest.MonkeyPatch
):
    # With several threads, only more tokens are computed in blocks.
    monkeypatch.setitem(LEAST_IN_BLOCKS, "causal", (0, 0))
    drawn = draw_inputs(NUM_TOKENS, heads=2, dim=8, dim_value=8)
    # As a layer makes them, (heads, dim, batch, tokens).
    inputs = [
        one.permute(1, 3, 0, 2).contiguous().permute(2, 0, 3, 1).requires_grad_() for one in drawn
    ]
    options: dict[str, Any] = {
        "kernel": "squared_relu",
        "is_causal": is_causal,
        "backend": "linear",
    }
    if relative is not None:
        grid = Grid(NUM_TOKENS) if is_causal else Grid((32, 32))
        made = make_relative(
            relative, heads=2, dim=8, num_axes=grid.num_axes, kernel="squared_relu"
        )
        inputs += [one.requires_grad_() for one in vars(made).values() if isinstance(one, Tensor)]
        options |= {"relative": made, "grid": grid}
    with _Orders() as found:
        output = attention(*inputs[:3], **options)
        torch.autograd.grad(output, inputs, output.detach())
    assert {"addcmul", "maximum"} <= found.seen
    assert not found.mixed
