import math

import pytest
import torch
from torch import Tensor, nn

from reproduction.baselines import Linformer
from reproduction.baselines.linformer import LinformerAttention
from reproduction.flops import make_flop_counter
from tests.contracts.cases import relative_error

FEWER, MORE = (
    pytest.param(5, id="fewer keys than tokens"),
    pytest.param(17, id="more keys than tokens"),
)


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def dense_linformer_attention(layer: LinformerAttention, tokens: Tensor) -> Tensor:
    """Compute eq. 7 of Wang et al. 2020 for each head, and project the concatenated heads."""
    heads = []
    for first in range(0, tokens.shape[-1], layer.dim_head):
        rows = slice(first, first + layer.dim_head)
        query, key, value = (
            tokens @ part.weight[rows].T for part in (layer.query, layer.key, layer.value)
        )
        logits = query @ (layer.key_projection @ key).transpose(1, 2) / math.sqrt(layer.dim_head)
        heads.append(logits.softmax(-1) @ (layer.value_projection @ value))
    return torch.cat(heads, -1) @ layer.output.weight.T + layer.output.bias


@pytest.mark.parametrize("num_projected", [FEWER, MORE])
def test_attention_equals_the_formula_in_values_and_gradients(num_projected: int):
    torch.manual_seed(0)
    layer = LinformerAttention(6, 3, 11, num_projected).double()
    tokens = torch.randn(2, 11, 6, dtype=torch.float64, requires_grad=True)
    found, expected = layer(tokens), dense_linformer_attention(layer, tokens)
    assert relative_error(found, expected) < 1e-12
    inputs = [
        tokens,
        *(parameter for name, parameter in layer.named_parameters() if name != "output.bias"),
    ]
    weight = torch.randn_like(found)
    for gradient, expected_gradient in zip(
        torch.autograd.grad((weight * found).sum(), inputs),
        torch.autograd.grad((weight * expected).sum(), inputs),
        strict=True,
    ):
        assert relative_error(gradient, expected_gradient) < 1e-10


def test_identity_projections_give_softmax_attention():
    torch.manual_seed(0)
    layer = LinformerAttention(6, 2, 7, 7).double()
    for projection in (layer.key_projection, layer.value_projection):
        nn.init.eye_(projection)
    tokens = torch.randn(2, 7, 6, dtype=torch.float64)
    query, key, value = (
        part(tokens).unflatten(-1, (2, 3)).transpose(1, 2)
        for part in (layer.query, layer.key, layer.value)
    )
    mixed = (query @ key.transpose(-1, -2) / math.sqrt(3)).softmax(-1) @ value
    assert relative_error(layer(tokens), layer.output(mixed.transpose(1, 2).flatten(2))) < 1e-12


@pytest.mark.parametrize(("tokens", "num_tokens"), [("pixel", 1 + 5 * 7), ("image", 2)])
def test_option_tokens_sets_the_tokens_of_an_image(tokens: str, num_tokens: int):
    model = Linformer((5, 7), 3, 10, tokens=tokens, dim=8, depth=1, heads=2, num_projected=3)
    assert model.position_embedding.shape == (num_tokens, 8)
    area = 35 if tokens == "image" else 1
    assert model.stem.weight.numel() == 8 * 3 * area


def test_linformer_of_two_tokens_has_the_parameters_of_horn2021():
    with torch.device("meta"):
        model = Linformer(32, 3, 10, tokens="image", depth=12, dropout=0.0)
    layer = 4 * 256**2 + 256 + 2 * 64 * 2 + 2 * 256 * 1024 + 1024 + 256 + 4 * 256
    assert (
        count_parameters(model)
        == 32 * 32 * 3 * 256 + 256 + 3 * 256 + 12 * layer + 2 * 256 + 2570
        == 10_261_514
    )


def test_linformer_of_pixels_has_a_projection_of_every_token():
    with torch.device("meta"):
        model = Linformer(32, 3, 10)
    layer = 4 * 256**2 + 256 + 2 * 64 * 1025 + 2 * 256 * 1024 + 1024 + 256 + 4 * 256
    assert (
        count_parameters(model)
        == 3 * 256 + 256 + 1026 * 256 + 6 * layer + 2 * 256 + 2570
        == 5_787_914
    )


@pytest.mark.parametrize(
    "num_projected", [pytest.param(5, id="fewer keys"), pytest.param(50, id="more keys")]
)
def test_flops_equal_the_formula(num_projected: int):
    num_tokens, dim, depth = 1 + 5 * 7, 8, 3
    rows = min(num_projected, num_tokens)  # tokens that become keys and values
    attention = 2 * num_tokens * dim**2 + 2 * rows * dim**2  # queries and output, keys and values
    attention += 2 * num_projected * num_tokens * dim  # projections of keys and values
    attention += 2 * num_tokens * num_projected * dim  # logits and their sums
    mlp = 2 * num_tokens * dim * 4 * dim
    expected = 2 * (35 * 3 * dim + depth * (attention + mlp) + dim * 10)
    model = Linformer(
        (5, 7), 3, 10, dim=dim, depth=depth, heads=2, num_projected=num_projected
    ).eval()
    with make_flop_counter() as counter:
        model(torch.zeros(1, 3, 5, 7))
    assert counter.get_total_flops() == expected


def test_invalid_options_are_errors():
    with pytest.raises(
        ValueError,
        match=r"tokens must be one of 'image', 'pixel'.*got 'pixels'.*Did you mean 'pixel'",
    ):
        Linformer(8, 3, 10, tokens="pixels")
    with pytest.raises(ValueError, match=r"heads must be a divisor of dim = 8.*got 3"):
        Linformer(8, 3, 10, dim=8, heads=3)
