import sys

import pytest
import torch
from tests.contracts.cases import build_relative, draw_inputs, draw_mask, relative_change, with_leaves
from torch import Generator, Tensor

from teka import Grid
from teka.functional import Positive, Rotation, attention, draw_projection
from teka.functional.backend.toeplitz import _axis_matrices, toeplitz


def run(shape: tuple[int, ...], num_features: int) -> list[Tensor]:
    """The output and the gradient of everything that went in."""
    grid = Grid(shape)
    inputs = [tensor.requires_grad_() for tensor in draw_inputs(grid.num_tokens)]
    query, key, value = inputs
    relative = build_relative("rotation", heads=3, dim=5, num_axes=len(shape))
    assert relative is not None
    relative, leaves = with_leaves(relative)
    output = attention(
        query,
        key,
        value,
        kernel=Positive(draw_projection(num_features, 5, generator=Generator().manual_seed(0))),
        relative=relative,
        grid=grid,
        key_mask=draw_mask(2, grid.num_tokens),
        backend="toeplitz",
    )
    return [output, *torch.autograd.grad(output.sin().sum(), [*inputs, *leaves.values()])]


@pytest.mark.parametrize("elements", [1, 2000, 5000])
@pytest.mark.parametrize("shape", [(11,), (5, 7), (2, 3, 5)])
def test_chunks_of_features_change_neither_values_nor_gradients(
    shape: tuple[int, ...], elements: int, monkeypatch: pytest.MonkeyPatch
):
    whole = run(shape, 13)
    monkeypatch.setattr(sys.modules[toeplitz.__module__], "CHUNK_ELEMENTS", elements)
    for found, expected in zip(run(shape, 13), whole, strict=True):
        assert relative_change(found, expected) < 1e-12


def test_the_axes_matrices_multiply_to_the_whole_kernel():
    grid = Grid((3, 4, 2), (1.0, 0.5, 2.0), (True, False, False))
    relative = build_relative("rotation", heads=3, dim=5, num_axes=3)
    assert isinstance(relative, Rotation)
    matrices, log_peak = _axis_matrices(relative, grid, torch.zeros((), dtype=torch.float64))
    product = torch.einsum("hab,hcd,hef->hacebdf", *matrices).reshape(3, 24, 24)
    dense = relative.log_kernel(draw_inputs(24)[0], grid.offsets(dtype=torch.float64), scale=1.0)[0]
    assert relative_change(product * torch.exp(log_peak[0])[..., None], dense.exp()) < 1e-12
    assert all((matrix.amax(dim=-1) == 1).all() for matrix in matrices)


def test_large_weights_stay_in_range():
    relative = Rotation(torch.tensor([1.0]), torch.full((3, 2, 1), 60.0), torch.full((3, 2, 1), -60.0))
    query, key, value = draw_inputs(35, dtype=torch.float32)
    outputs = [
        attention(query, key, value, kernel="squared_relu", relative=relative, grid=Grid((5, 7)), backend=backend)
        for backend in ("toeplitz", "dense")
    ]
    assert relative_change(*outputs) < 1e-4
