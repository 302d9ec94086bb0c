"""Causal attention by blocks of chunks: values, every gradient, and what is out of range."""

from typing import Any

import pytest
import torch
from tests.contracts.cases import draw_inputs, relative_change
from torch import Tensor
from torch.autograd import grad

from teka import Grid
from teka.functional import Rotary, attention
from teka.functional import plan as plans
from teka.functional.backends.fused import causal

GENERATOR = torch.Generator().manual_seed(0)
POSITIONS = {
    "no position": None,
    **{
        name: Rotary(torch.randn(2, 3, 1, generator=GENERATOR).double(), name)
        for name in ("mixed", "lengths", "features")
    },
}


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Blocks of a few chunks of a few tokens, and a list of what was computed by them."""
    monkeypatch.setattr(causal, "CHUNK_TOKENS", 4)
    monkeypatch.setattr(causal, "BLOCK_TOKENS", 12)
    monkeypatch.setitem(plans.LEAST_IN_BLOCKS, "causal", (0, 0))
    calls: list[Any] = []
    compute = plans.fused_causal

    def noted(*tensors: Tensor, **options: Any) -> Tensor:
        calls.append(options)
        return compute(*tensors, **options)

    monkeypatch.setattr(plans, "fused_causal", noted)
    return calls


def test_gradients_are_the_same_on_another_number_of_threads(monkeypatch: pytest.MonkeyPatch):
    inputs = [one.requires_grad_() for one in draw_inputs(77, heads=2, dim=6)]
    output = attention(*inputs, kernel="relu", is_causal=True, backend="linear").square().sum()
    expected = grad(output, inputs, retain_graph=True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for found, one in zip(grad(output, inputs), expected, strict=True):
        assert relative_change(found, one) <= 1e-12


def values_and_gradients(
    backend: str, num_tokens: int, relative: Rotary | None, **options: Any
) -> list[Tensor]:
    """The output of two samples of two heads and the gradients of all that it is made of."""
    leaves = [one.requires_grad_() for one in draw_inputs(num_tokens, heads=2, dim=6)]
    if relative is not None:
        leaves.append(relative.frequency.clone().requires_grad_())
        relative = Rotary(leaves[3], relative.normalizer)
        options["positions"] = torch.arange(num_tokens, dtype=torch.float64)[:, None] ** 1.1 + 100
    output = attention(*leaves[:3], relative=relative, is_causal=True, backend=backend, **options)
    cotangent = torch.cos(torch.arange(output.numel(), dtype=torch.float64)).reshape(output.shape)
    return [output, *grad((output * cotangent).sum(), leaves)]


@pytest.mark.parametrize("num_tokens", [3, 12, 47])
@pytest.mark.parametrize("relative", POSITIONS.values(), ids=POSITIONS)
def test_values_and_every_gradient_are_those_of_every_pair(
    relative: Rotary | None, num_tokens: int, calls: list[Any]
):
    mask = torch.rand(2, num_tokens, generator=GENERATOR) > 0.3
    mask[:, -1] = True
    options = {"kernel": "squared_relu", "key_mask": mask}
    truth, found = (
        values_and_gradients(backend, num_tokens, relative, **options)
        for backend in ("dense", "linear")
    )
    assert calls
    for mine, theirs in zip(found, truth, strict=True):
        assert relative_change(mine, theirs) <= 1e-9


@pytest.mark.parametrize("kernel", ["relu", "focused", "elu"])
def test_so_they_are_with_other_kernels(kernel: str, calls: list[Any]):
    truth, found = (
        values_and_gradients(backend, 17, None, kernel=kernel) for backend in ("dense", "linear")
    )
    assert calls
    for mine, theirs in zip(found, truth, strict=True):
        assert relative_change(mine, theirs) <= 1e-10


@pytest.mark.parametrize("size", [1e-9, 1e9, 1e25])
@pytest.mark.parametrize("place", [0, 5])
def test_keys_of_any_size_count_as_in_every_pair_and_change_no_bit_before(
    place: int, size: float, calls: list[Any]
):
    inputs = draw_inputs(9, heads=2, dim=4)
    options = {"kernel": "squared_relu", "is_causal": True}
    before = attention(*inputs, backend="linear", **options)
    inputs[1][:, :, place] *= size
    inputs[1][:, :, 7] *= 3 * size
    output, truth = (
        attention(*inputs, backend=backend, **options) for backend in ("linear", "dense")
    )
    assert relative_change(output, truth) <= 1e-10
    assert torch.equal(output[:, :, :place], before[:, :, :place])
    assert len(calls) == (1 if place == 0 else 2)


def test_gradients_can_be_differentiated_again(calls: list[Any]):
    query, key, value = (one.requires_grad_() for one in draw_inputs(9, heads=1, dim=4))

    def second(backend: str) -> tuple[Tensor, ...]:
        options = {
            "kernel": "squared_relu",
            "relative": "rotary",
            "grid": Grid(9),
            "is_causal": True,
        }
        output = attention(query, key, value, **options, backend=backend)
        first = grad(output.square().sum(), (query, key, value), create_graph=True)
        return grad(torch.stack([one.square().sum() for one in first]).sum(), (query, key, value))

    for mine, theirs in zip(second("linear"), second("dense"), strict=True):
        assert relative_change(mine, theirs) <= 1e-9
    assert calls


def test_a_graph_that_is_kept_gives_the_same_gradients_twice(calls: list[Any]):
    leaves = [one.requires_grad_() for one in draw_inputs(31, heads=2, dim=4)]
    output = attention(*leaves, kernel="squared_relu", is_causal=True, backend="linear")
    first, second = (grad(output.square().sum(), leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    assert calls
