"""Values that are the tokens themselves."""

from typing import Any

import pytest
import torch
from torch import Tensor

from teka import Grid, explain
from teka.nn import Attention
from tests.contracts.cases import relative_error

GRID = Grid((3, 5))
DIM, HEADS = 8, 3


def build(**options: Any) -> Attention:
    torch.manual_seed(0)
    options = {"dim_head": DIM, **options}
    return Attention(DIM, HEADS, **options).double()


def draw_tokens() -> Tensor:
    return torch.randn(2, GRID.num_tokens, DIM, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("backend", ["auto", "dense"])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "constant", "relative": "quadratic"},
        {"kernel": "constant", "relative": "generalized_quadratic"},
        {"kernel": "softmax", "relative": "table"},
        {"kernel": "squared_relu", "relative": "rotary"},
        {"kernel": "squared_relu", "relative": "clipped"},
        {"kernel": "squared_relu", "relative": None},
    ],
    ids=str,
)
def test_tokens_as_values_equal_an_identity_projection(options: dict[str, Any], backend: str):
    layer, twin = (
        build(values="tokens", backend=backend, **options),
        build(backend=backend, **options),
    )
    assert layer.value is None
    assert twin.value is not None
    missing, unexpected = twin.load_state_dict(layer.state_dict(), strict=False)
    assert (sorted(missing), unexpected) == (["value.bias", "value.weight"], [])
    with torch.no_grad():
        twin.value.weight.copy_(torch.eye(DIM).repeat(HEADS, 1))
        twin.value.bias.zero_()
    assert relative_error(layer(draw_tokens(), GRID), twin(draw_tokens(), GRID)) < 1e-12


@pytest.mark.parametrize(
    ("relative", "position_heads"), [("clipped", 1), ("quadratic", 2), ("quadratic", 0)]
)
def test_queries_and_keys_can_have_another_size(relative: str, position_heads: int):
    options = {
        "relative": relative,
        "position_heads": position_heads,
        "dim_head": 5,
        "values": "tokens",
    }
    fast, dense = build(**options), build(**options, backend="dense")
    assert fast.output.in_features == HEADS * DIM
    assert relative_error(fast(draw_tokens(), GRID), dense(draw_tokens(), GRID)) < 1e-12


def test_context_provides_the_values():
    layer = build(values="tokens", relative=None, kernel="softmax", context_dim=6)
    assert layer.output.in_features == HEADS * 6
    assert layer(draw_tokens(), context=torch.randn(2, 4, 6).double()).shape == (2, 15, DIM)


@pytest.mark.parametrize("kernel", ["constant", "softmax", "squared_relu"])
def test_autocast_is_supported(kernel: str):
    layer = build(values="tokens", kernel=kernel, relative="quadratic").float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(draw_tokens().float(), GRID)
    assert relative_error(output.float(), layer(draw_tokens().float(), GRID)) < 0.03


def test_costs_include_the_full_token_size():
    narrow, wide = (
        build(values=values, kernel="constant", relative="quadratic", dim_head=4)
        for values in ("projected", "tokens")
    )
    costs = [
        explain(layer, Grid((16, 16))).groups[0].costs["dense"].multiply_adds
        for layer in (narrow, wide)
    ]
    assert costs[1] - costs[0] == 256**2 * (DIM - 4)


def test_unknown_name_suggests_the_closest():
    with pytest.raises(ValueError, match=r"values must be .*got 'token'.*Did you mean 'tokens'"):
        build(values="token")
