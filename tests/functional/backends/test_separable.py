import math

import pytest
import torch
from torch import Generator, Tensor
from torch.autograd import gradcheck, gradgradcheck

from teka import Grid
from teka.functional import (
    PositiveFeatures,
    QuadraticBias,
    SinusoidalBias,
    attention,
    draw_projection,
)
from teka.functional.backends import feature_chunks
from teka.functional.backends.separable import attend_axis_by_axis
from teka.functional.positions import Positions
from tests.contracts.cases import (
    build_relative,
    draw_inputs,
    draw_mask,
    relative_error,
    with_leaves,
)

SIDES = [((11,), (7,)), ((5, 7), (3, 4)), ((2, 3, 5), (4, 2, 3)), ((1, 6), (5, 1))]


def draw(
    query_sides: tuple[int, ...], key_sides: tuple[int, ...], num_features: int
) -> list[Tensor]:
    """Return φ(q), φ(k), values, and one matrix per axis."""
    generator = Generator().manual_seed(0)
    num_queries, num_keys = math.prod(query_sides), math.prod(key_sides)
    shapes = [
        (2, 3, num_queries, num_features),
        (2, 3, num_keys, num_features),
        (2, 3, num_keys, 4),
    ]
    shapes += [(3, *sides) for sides in zip(query_sides, key_sides, strict=True)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("sides", SIDES)
def test_attend_axis_by_axis_equals_the_sums_over_all_pairs(
    sides: tuple[tuple[int, ...], tuple[int, ...]],
):
    query_features, key_features, value, *matrices = draw(*sides, num_features=13)
    pairs = matrices[0]
    for matrix in matrices[1:]:
        pairs = torch.einsum("hab,hcd->hacbd", pairs, matrix).flatten(3, 4).flatten(1, 2)
    expected = (query_features @ key_features.mT * pairs) @ value
    assert (
        relative_error(
            attend_axis_by_axis(query_features, key_features, value, *matrices), expected
        )
        < 1e-13
    )


def test_attend_axis_by_axis_has_all_derivatives():
    tensors = draw((2, 3), (3, 2), num_features=2)
    tensors = [tensor[:1, :1] if tensor.ndim == 4 else tensor[:1] for tensor in tensors]
    leaves = [tensor.requires_grad_() for tensor in tensors]
    assert gradcheck(attend_axis_by_axis, leaves, check_forward_ad=True)
    assert gradgradcheck(attend_axis_by_axis, leaves)


def attend_with_gradients(shape: tuple[int, ...], name: str = "rotation") -> list[Tensor]:
    """Return the output and the gradients of all inputs."""
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
        kernel=PositiveFeatures(draw_projection(13, 5, generator=Generator().manual_seed(0))),
        relative=relative,
        grid=grid,
        key_mask=draw_mask(2, grid.num_tokens),
        backend="toeplitz",
    )
    return [output, *torch.autograd.grad(output.sin().sum(), [*inputs, *leaves.values()])]


@pytest.mark.parametrize("num_elements", [1, 2000, 5000])
@pytest.mark.parametrize("shape", [(11,), (5, 7), (2, 3, 5)])
def test_feature_chunks_change_neither_outputs_nor_gradients(
    shape: tuple[int, ...], num_elements: int, monkeypatch: pytest.MonkeyPatch
):
    expected = attend_with_gradients(shape)
    monkeypatch.setattr(feature_chunks, "CHUNK_ELEMENTS", num_elements)
    for result, reference in zip(attend_with_gradients(shape), expected, strict=True):
        assert relative_error(result, reference) < 1e-12


def test_large_weights_do_not_overflow():
    relative = SinusoidalBias(
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
    assert relative_error(*outputs) < 1e-4


def test_underflowing_rows_of_signed_features_are_recomputed():
    # This kernel is so sharp that a query whose own key is masked underflows.
    relative = QuadraticBias(torch.zeros(1, 1).double(), torch.full((1,), 800.0).double())
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
    assert relative_error(*outputs) < 1e-10


def test_product_of_the_axis_matrices_equals_the_dense_kernel():
    query = Grid((3, 4, 2), (1.0, 0.5, 2.0), (True, False, False))
    key = Grid((6, 2, 5), (0.5, 1.0, 0.5), (True, False, False), origin=(0.0, 0.25, 0.1))
    positions = Positions(query, key=Positions(key))
    relative = build_relative("rotation", heads=3, dim=5, num_axes=3)
    assert isinstance(relative, SinusoidalBias)
    log_matrices, log_peak = relative.make_log_weight_matrices(
        positions, torch.zeros((), dtype=torch.float64)
    )
    product = torch.einsum("hab,hcd,hef->hacebdf", *map(torch.exp, log_matrices)).reshape(3, 24, 60)
    tokens = draw_inputs(24)[0]
    dense = relative.log_weights(tokens, positions.pairwise_offsets(tokens), scale=1.0)[0]
    assert relative_error(product * torch.exp(log_peak[0])[..., None], dense.exp()) < 1e-12
    assert all((matrix.amax(dim=-1) == 0).all() for matrix in log_matrices)
