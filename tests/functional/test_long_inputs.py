"""Chunks of long inputs give the values and the gradients of the whole input."""

import pytest
import torch

from teka import Grid
from teka.functional import attention, long_inputs
from tests.contracts.cases import (
    build_kernel,
    build_relative,
    draw_inputs,
    draw_mask,
    relative_error,
    with_leaves,
)


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process all inputs in chunks of 16 tokens."""
    monkeypatch.setattr(long_inputs, "CHUNK_TOKENS", 16)


@pytest.mark.parametrize("relative_name", [None, "rotary", "fourier"])
@pytest.mark.parametrize(
    ("kernel_name", "size"),
    [
        ("squared_relu", 1.0),
        ("squared_relu", 1e6),  # only this kernel does not depend on the size of its inputs
        ("positive", 1.0),
        ("taylor2", 1.0),
        ("trigonometric", 1.0),
    ],
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_chunks_equal_the_whole_input(
    kernel_name: str,
    relative_name: str | None,
    is_causal: bool,
    size: float,
    monkeypatch: pytest.MonkeyPatch,
):
    relative = build_relative(relative_name, kernel=kernel_name, heads=3, dim=5, num_axes=1)
    kernel = build_kernel(kernel_name, relative, 5)
    learned: list[torch.Tensor] = []
    if relative is not None:
        relative, tensors = with_leaves(relative)
        learned = list(tensors.values())
    mask = draw_mask(2, 61)
    mask[0, :20] = False
    results = []
    for threshold in (10**9, 0):
        monkeypatch.setattr(long_inputs, "LONG_ELEMENTS", threshold)
        query, key, value = (tensor.requires_grad_() for tensor in draw_inputs(61))
        output = attention(
            query,
            size * key,
            value,
            kernel=kernel,
            relative=relative,
            grid=Grid(61),
            key_mask=mask,
            is_causal=is_causal,
            backend="linear",
        )
        gradients = torch.autograd.grad(output.sin().sum(), (query, key, value, *learned))
        results.append((output, *gradients))
    for whole, chunked in zip(*results, strict=True):
        assert relative_error(chunked, whole) < 1e-9


def test_cross_attention_and_learned_positions(monkeypatch: pytest.MonkeyPatch):
    results = []
    for threshold in (10**9, 0):
        monkeypatch.setattr(long_inputs, "LONG_ELEMENTS", threshold)
        query, key, value = draw_inputs(61)
        query = query[:, :, :37]
        points, key_points = (torch.linspace(0, 5, n).double()[:, None] for n in (37, 61))
        leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
        leaves += [points.requires_grad_(), key_points.requires_grad_()]
        output = attention(
            *leaves[:3],
            kernel="squared_relu",
            relative="rotary",
            positions=points,
            key_positions=key_points,
            backend="linear",
        )
        results.append((output, *torch.autograd.grad(output.sin().sum(), leaves)))
    for whole, chunked in zip(*results, strict=True):
        assert relative_error(chunked, whole) < 1e-9


def test_inputs_without_gradients_and_second_derivatives(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(long_inputs, "LONG_ELEMENTS", 0)
    query, key, value = draw_inputs(61)
    query.requires_grad_()
    output = attention(query, key, value, kernel="squared_relu", backend="linear")
    assert torch.autograd.grad(output.sum(), query, retain_graph=True)[0].isfinite().all()
    with pytest.raises(RuntimeError, match="not support second derivatives"):
        torch.autograd.grad(output.sum(), query, create_graph=True)
