import pytest
import torch
from tests.contracts.cases import relative_change
from torch import Tensor

from teka import Grid
from teka.experiments.bench.measure import Allocations
from teka.functional.backend.rings import far_sums, product_rings, ring_mix, ring_read, ring_spread

GRID = Grid((2, 3), periodic=(False, True))


def mix(weights: Tensor, tokens: Tensor) -> Tensor:
    return ring_mix(weights, tokens, GRID)


def spread(weights: Tensor, tokens: Tensor) -> Tensor:
    return ring_spread(weights, tokens, GRID)


def read(tokens: Tensor, others: Tensor) -> Tensor:
    return ring_read(tokens, others, 2, GRID)


def far(tokens: Tensor) -> Tensor:
    return far_sums(tokens, 2, GRID)


def product(weights: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return product_rings(weights, query, key, value, GRID)


FORMS = {"mix": (mix, (3, 2)), "spread": (spread, (3, 2)), "read": (read, (2, 2)), "far": (far, (2,))}
ALL = {**FORMS, "product": (product, (3, 2, 2, 2))}


def leaves(sizes: tuple[int, ...], *batch: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (*batch, 1, 1, GRID.num_tokens)
    return [torch.randn(*shape, size, dtype=torch.float64, generator=generator).requires_grad_() for size in sizes]


@pytest.mark.parametrize("name", ALL)
def test_derivatives_are_those_of_differences_forward_and_backward(name: str):
    function, sizes = ALL[name]
    assert torch.autograd.gradcheck(function, leaves(sizes), check_forward_ad=True, fast_mode=True)


@pytest.mark.parametrize("name", ALL)
def test_second_derivatives_are_those_of_differences(name: str):
    function, sizes = ALL[name]
    assert torch.autograd.gradgradcheck(function, leaves(sizes), fast_mode=True)


@pytest.mark.parametrize("name", ALL)
def test_vmap_maps_over_any_dimension_of_any_argument(name: str):
    function, sizes = ALL[name]
    first, *others = (tensor.detach() for tensor in leaves(sizes, 3))
    others = [other[0] for other in others]
    found = torch.func.vmap(function, in_dims=(2, *[None] * len(others)))(first.movedim(0, 2), *others)
    expected = torch.stack([function(one, *others) for one in first])
    assert relative_change(found, expected) < 1e-12


@pytest.mark.parametrize("name", ALL)
def test_jacobians_forward_and_backward_agree(name: str):
    function, sizes = ALL[name]
    inputs = [tensor.detach() for tensor in leaves(sizes)]
    forward, backward = torch.func.jacfwd(function)(*inputs), torch.func.jacrev(function)(*inputs)
    assert relative_change(forward, backward) < 1e-12


@pytest.mark.parametrize("name", ["mix", "product"])
def test_memory_does_not_grow_with_the_number_of_rings(name: str):
    function, sizes = {"mix": (ring_mix, (16,)), "product": (product_rings, (4, 4, 16))}[name]
    grid, peaks = Grid((16, 17)), []
    for num_rings in (3, 9):
        weights, *tensors = (
            torch.randn(2, 3, grid.num_tokens, size, requires_grad=True) for size in (num_rings, *sizes)
        )
        with Allocations() as allocations:
            function(weights, *tensors, grid).sum().backward()
        peaks.append(allocations.peak - 3 * weights.nbytes)
    assert peaks[1] < 1.3 * peaks[0]
