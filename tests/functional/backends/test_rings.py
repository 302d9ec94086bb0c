import pytest
import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change
from torch import Tensor

from teka import Grid
from teka.experiments.bench.measure import Allocations
from teka.functional import Clipped, attention
from teka.functional.backends import Cost, rings
from teka.functional.backends.rings import (
    FarSums,
    ProductRings,
    RingForm,
    ring_mix,
    ring_read,
    rings_cost,
)


def run(kernel: str) -> list[Tensor]:
    """The output and the gradients of query, key, value and embeddings."""
    embedding = torch.randn(
        4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    inputs = [tensor.requires_grad_() for tensor in draw_inputs(35)]
    query, key, value = inputs
    output = attention(
        query,
        key,
        value,
        kernel=kernel,
        relative=Clipped(embedding),
        grid=Grid((5, 7)),
        key_mask=draw_mask(2, 35),
        backend="rings",
    )
    return [output, *torch.autograd.grad(output.sin().sum(), [*inputs, embedding])]


@pytest.mark.parametrize("elements", [1, 2000, 5000])
def test_chunks_of_features_change_neither_values_nor_gradients(
    elements: int, monkeypatch: pytest.MonkeyPatch
):
    whole = run("squared_relu")
    monkeypatch.setattr(rings, "CHUNK_ELEMENTS", elements)
    for found, expected in zip(run("squared_relu"), whole, strict=True):
        assert relative_change(found, expected) < 1e-12


def test_a_ring_without_kept_keys_cannot_push_the_others_out_of_range():
    # The only kept key is in ring 0 of its own token; ring 3 has an enormous weight and nothing in it nearby.
    embedding = torch.zeros(4, 5)
    embedding[3] = 1e4
    query, key, value = torch.ones(1, 1, 7, 5), torch.ones(1, 1, 7, 5), torch.ones(1, 1, 7, 2)
    mask = torch.zeros(1, 7, dtype=torch.bool)
    mask[0, 3] = True
    output = attention(
        query,
        key,
        value,
        kernel="constant",
        relative=Clipped(embedding),
        grid=Grid((7,)),
        key_mask=mask,
        backend="rings",
    )
    assert torch.equal(output, torch.ones_like(output))


@pytest.mark.parametrize("num_features", [1, 32])
def test_the_cost_is_linear_in_tokens_and_grows_with_rings_and_axes(num_features: int):
    cost = rings_cost(Grid((8, 8)), num_features, 32, 6)
    assert rings_cost(Grid((16, 8)), num_features, 32, 6) == Cost(
        2 * cost.multiply_adds, 2 * cost.bytes
    )
    assert rings_cost(Grid((8, 8)), num_features, 32, 7).multiply_adds > cost.multiply_adds
    assert rings_cost(Grid((4, 4, 4)), num_features, 32, 6).multiply_adds > cost.multiply_adds


GRID = Grid((2, 3), periodic=(False, True))


def mix(weights: Tensor, tokens: Tensor) -> Tensor:
    return ring_mix(weights, tokens, GRID)


def spread(weights: Tensor, tokens: Tensor) -> Tensor:
    return RingForm("spread", weights.shape[-1] - 1, GRID).of(weights, tokens)


def read(tokens: Tensor, others: Tensor) -> Tensor:
    return ring_read(tokens, others, 2, GRID)


def far(tokens: Tensor) -> Tensor:
    return FarSums(2, GRID).of(tokens)


def product(weights: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return ProductRings(GRID).of(weights, query, key, value)


FORMS = {
    "mix": (mix, (3, 2)),
    "spread": (spread, (3, 2)),
    "read": (read, (2, 2)),
    "far": (far, (2,)),
}
ALL = {**FORMS, "product": (product, (3, 2, 2, 2))}


def leaves(sizes: tuple[int, ...], *batch: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (*batch, 1, 1, GRID.num_tokens)
    return [
        torch.randn(*shape, size, dtype=torch.float64, generator=generator).requires_grad_()
        for size in sizes
    ]


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
    found = torch.func.vmap(function, in_dims=(2, *[None] * len(others)))(
        first.movedim(0, 2), *others
    )
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
    sizes = {"mix": (16,), "product": (4, 4, 16)}[name]
    grid, peaks = Grid((16, 17)), []
    for num_rings in (3, 9):
        weights, *tensors = (
            torch.randn(2, 3, grid.num_tokens, size, requires_grad=True)
            for size in (num_rings, *sizes)
        )
        with Allocations() as allocations:
            if name == "product":
                output = ProductRings(grid).of(weights, *tensors)
            else:
                output = ring_mix(weights, tensors[0], grid)
            output.sum().backward()
        peaks.append(allocations.peak - 3 * weights.nbytes)
    assert peaks[1] < 1.3 * peaks[0]
