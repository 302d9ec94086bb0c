import sys

import pytest
import torch
from tests.contracts.cases import (
    build_relative,
    draw_inputs,
    draw_mask,
    relative_change,
    with_leaves,
)
from tests.functional.backends.test_separable import draw
from torch import Generator, Tensor
from torch.autograd import gradcheck, gradgradcheck

from teka import Grid
from teka.functional import Positive, Quadratic, Rotation, attention, draw_projection
from teka.functional.backends import with_ones
from teka.functional.backends.dense import TileForm
from teka.functional.backends.toeplitz import AxisForm, plain_axis_sums, toeplitz
from teka.functional.positions import Positions


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
    relative = Rotation(
        torch.tensor([1.0]), torch.full((3, 2, 1), 60.0), torch.full((3, 2, 1), -60.0)
    )
    query, key, value = draw_inputs(35, dtype=torch.float32)
    outputs = [
        attention(
            query,
            key,
            value,
            kernel="squared_relu",
            relative=relative,
            grid=Grid((5, 7)),
            backend=backend,
        )
        for backend in ("toeplitz", "dense")
    ]
    assert relative_change(*outputs) < 1e-4


def test_rows_that_underflow_are_found_where_features_have_both_signs():
    # Of a kernel as sharp as this nothing is left a cell away, so that a query whose own key is dropped underflows.
    relative = Quadratic(torch.zeros(1, 1).double(), torch.full((1,), 800.0).double())
    inputs, mask = draw_inputs(53, batch=1, heads=1, scale=3.0), torch.arange(53)[None] % 3 != 0
    outputs = [
        attention(
            *inputs,
            kernel="trigonometric",
            relative=relative,
            grid=Grid(53),
            key_mask=mask,
            backend=backend,
        )
        for backend in ("toeplitz", "dense")
    ]
    assert relative_change(*outputs) < 1e-10


def test_the_axes_matrices_multiply_to_the_whole_kernel():
    query = Grid((3, 4, 2), (1.0, 0.5, 2.0), (True, False, False))
    key = Grid((6, 2, 5), (0.5, 1.0, 0.5), (True, False, False), origin=(0.0, 0.25, 0.1))
    positions = Positions(query, key=Positions(key))
    relative = build_relative("rotation", heads=3, dim=5, num_axes=3)
    assert isinstance(relative, Rotation)
    log_matrices, log_peak = relative.axis_log_matrices(
        positions, torch.zeros((), dtype=torch.float64)
    )
    product = torch.einsum("hab,hcd,hef->hacebdf", *map(torch.exp, log_matrices)).reshape(3, 24, 60)
    tokens = draw_inputs(24)[0]
    dense = relative.log_kernel(tokens, positions.offsets_like(tokens), scale=1.0)[0]
    assert relative_change(product * torch.exp(log_peak[0])[..., None], dense.exp()) < 1e-12
    assert all((matrix.amax(dim=-1) == 0).all() for matrix in log_matrices)


def plain_tile(
    query_features: Tensor, key_features: Tensor, value: Tensor, *log_matrices: Tensor
) -> Tensor:
    """What `TileForm` computes."""
    return plain_axis_sums(
        query_features, key_features, with_ones(value), *(torch.exp(one) for one in log_matrices)
    )


FORMS = [(AxisForm().of, plain_axis_sums), (TileForm().of, plain_tile)]
NAMES = ["axis", "tile"]


def small() -> list[Tensor]:
    """Few numbers, for derivatives by differences."""
    inputs = draw((2, 3), (3, 2), num_features=2)
    return [
        one.detach()[:1, :1] if place < 3 else one.detach()[:1] for place, one in enumerate(inputs)
    ]


@pytest.mark.parametrize(("form", "plain"), FORMS, ids=NAMES)
def test_first_second_and_forward_derivatives_are_those_of_differences(form, plain):
    leaves = [tensor.requires_grad_() for tensor in small()]
    assert gradcheck(form, leaves, check_forward_ad=True)
    assert gradgradcheck(form, leaves)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize(("form", "plain"), FORMS, ids=NAMES)
def test_the_transforms_of_torch_func_go_through(form, plain, place: int):
    inputs = small()
    other = (place + 1) % len(inputs)

    def loss(function):
        return lambda *given: function(*given).sin().sum()

    for outer in (torch.func.jacfwd, torch.func.jacrev):
        found, expected = (
            outer(torch.func.grad(loss(function), place), other)(*inputs)
            for function in (form, plain)
        )
        torch.testing.assert_close(found, expected)
    stacked = list(inputs)
    stacked[place] = torch.randn(5, *inputs[place].shape, dtype=torch.float64)
    dims = tuple(0 if one == place else None for one in range(len(inputs)))
    for change in (
        lambda function: function,
        lambda function: torch.func.grad(loss(function), other),
    ):
        found, expected = (
            torch.vmap(change(function), dims)(*stacked) for function in (form, plain)
        )
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("form", "plain"), FORMS, ids=NAMES)
def test_inputs_without_a_gradient_get_none(form, plain):
    inputs = small()
    inputs[1].requires_grad_()
    inputs[4].requires_grad_()
    wanted = [inputs[1], inputs[4]]
    found = torch.autograd.grad(form(*inputs).sin().sum(), wanted)
    expected = torch.autograd.grad(plain(*inputs).sin().sum(), wanted)
    torch.testing.assert_close(found, expected)
