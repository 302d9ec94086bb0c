import pytest
import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change
from torch import Tensor

from teka import Grid
from teka.functional import Clipped, attention
from teka.functional.backend import Cost
from teka.functional.backend.rings import rings, rings_cost


def run(kernel: str) -> list[Tensor]:
    """The output and the gradients of query, key, value and embeddings."""
    embedding = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
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
def test_chunks_of_features_change_neither_values_nor_gradients(elements: int, monkeypatch: pytest.MonkeyPatch):
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
    assert rings_cost(Grid((16, 8)), num_features, 32, 6) == Cost(2 * cost.multiply_adds, 2 * cost.bytes)
    assert rings_cost(Grid((8, 8)), num_features, 32, 7).multiply_adds > cost.multiply_adds
    assert rings_cost(Grid((4, 4, 4)), num_features, 32, 6).multiply_adds > cost.multiply_adds
