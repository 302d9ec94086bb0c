import sys

import pytest
import torch
from tests.contracts.cases import build_relative, draw_inputs, draw_mask, relative_change, with_leaves
from torch import Generator, Tensor

from teka import Grid
from teka.functional import Positive, Quadratic, Rotation, attention, draw_projection
from teka.functional.backend.toeplitz import toeplitz


def run(shape: tuple[int, ...], name: str = "rotation") -> list[Tensor]:
    """The output and the gradient of everything that went in."""
    grid = Grid(shape)
    inputs = [tensor.requires_grad_() for tensor in draw_inputs(grid.num_tokens)]
    query, key, value = inputs
    relative = build_relative(name, heads=3, dim=5, num_axes=len(shape))
    assert relative is not None
    relative, leaves = with_leaves(relative)
    output = attention(
        query,
        key,
        value,
        kernel=Positive(draw_projection(13, 5, generator=Generator().manual_seed(0))),
        relative=relative,
        grid=grid,
        key_mask=draw_mask(2, grid.num_tokens),
        backend="toeplitz",
    )
    return [output, *torch.autograd.grad(output.sin().sum(), [*inputs, *leaves.values()])]


@pytest.mark.parametrize("elements", [1, 2000, 5000])
@pytest.mark.parametrize("shape", [(11,), (5, 7), (2, 3, 5)])
def test_sums_in_chunks_as_on_a_gpu_are_those_by_hand(
    shape: tuple[int, ...], elements: int, monkeypatch: pytest.MonkeyPatch
):
    by_hand = run(shape)
    module = sys.modules[toeplitz.__module__]
    monkeypatch.setattr(module, "runs_by_hand", lambda tensor: False)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", elements)
    for found, expected in zip(run(shape), by_hand, strict=True):
        assert relative_change(found, expected) < 1e-12


def test_large_weights_stay_in_range():
    relative = Rotation(torch.tensor([1.0]), torch.full((3, 2, 1), 60.0), torch.full((3, 2, 1), -60.0))
    query, key, value = draw_inputs(35, dtype=torch.float32)
    outputs = [
        attention(query, key, value, kernel="squared_relu", relative=relative, grid=Grid((5, 7)), backend=backend)
        for backend in ("toeplitz", "dense")
    ]
    assert relative_change(*outputs) < 1e-4


def test_rows_that_underflow_are_found_where_features_have_both_signs():
    # Of a kernel as sharp as this nothing is left a cell away, so that a query whose own key is dropped underflows.
    relative = Quadratic(torch.zeros(1, 1).double(), torch.full((1,), 800.0).double())
    inputs, mask = draw_inputs(53, batch=1, heads=1, scale=3.0), torch.arange(53)[None] % 3 != 0
    outputs = [
        attention(*inputs, kernel="trigonometric", relative=relative, grid=Grid(53), key_mask=mask, backend=backend)
        for backend in ("toeplitz", "dense")
    ]
    assert relative_change(*outputs) < 1e-10
