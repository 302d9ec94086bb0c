"""Linear maps from tokens to heads and back, whose rows of tokens are apart in memory."""

import pytest
import torch
from tests.contracts.cases import relative_change
from torch import Tensor, nn
from torch.autograd import grad, gradgradcheck

from teka.nn import projections
from teka.nn.projections import ALIASED, join_heads, project_all

GENERATOR = torch.Generator().manual_seed(0)


def draw(num_tokens: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, num_tokens, 6, generator=GENERATOR, dtype=dtype, requires_grad=True)


def there_and_back(maps: list[nn.Linear], tokens: Tensor) -> Tensor:
    """Two heads of three numbers by two maps, each number by itself, and back."""
    first, second, third = maps
    one, other = project_all([(first, tokens, False), (second, tokens, False)], 3, heads_first=True)
    assert one is not None
    assert other is not None
    return join_heads(third, one.sin() + other)


def plainly(maps: list[nn.Linear], tokens: Tensor) -> Tensor:
    first, second, third = maps
    return third(first(tokens).sin() + second(tokens))


@pytest.mark.parametrize("bias", [True, False], ids=["with a bias", "without a bias"])
@pytest.mark.parametrize("num_tokens", [77, 256, 301], ids=["rows of 154", "of 512", "of 602"])
def test_values_and_every_gradient_are_those_of_a_linear_map(num_tokens: int, bias: bool):
    maps = [nn.Linear(6, 6, bias=bias, dtype=torch.float64) for _ in range(3)]
    tokens = draw(num_tokens)
    wanted = [tokens, *(one for linear in maps for one in linear.parameters())]
    found = []
    for output in (there_and_back(maps, tokens), plainly(maps, tokens)):
        found.append([output, *grad(output.cos().sum(), wanted)])
    for ours, truth in zip(*found, strict=True):
        assert relative_change(ours, truth) <= 1e-12


def test_rows_that_would_share_places_of_the_cache_are_moved_apart_and_those_of_their_gradient():
    linear, tokens = nn.Linear(6, 6, dtype=torch.float64), draw(ALIASED // 2)
    (heads,) = project_all([(linear, tokens, False)], 3, heads_first=True)
    assert heads is not None
    (of_heads,) = grad(join_heads(linear, heads).sum(), heads)
    for one in (heads, of_heads):
        assert one.stride()[:3] == (ALIASED // 2, 3 * one.stride(3), 1)
        assert ALIASED < one.stride(3) < 1.2 * ALIASED


def test_gradients_can_be_differentiated_again_and_many_taken_at_once(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(projections, "ALIASED", 1)
    maps, tokens = [nn.Linear(6, 6, dtype=torch.float64) for _ in range(3)], draw(3)
    assert gradgradcheck(lambda given: there_and_back(maps, given), tokens)
    cotangents = torch.randn(5, 2, 3, 6, generator=GENERATOR, dtype=torch.float64)
    found = [
        grad(output, tokens, cotangents, is_grads_batched=True)[0]
        for output in (there_and_back(maps, tokens), plainly(maps, tokens))
    ]
    assert relative_change(*found) <= 1e-12


def test_what_is_frozen_has_no_gradient():
    maps, tokens = [nn.Linear(6, 6, dtype=torch.float64) for _ in range(3)], draw(256).detach()
    for linear in (maps[1], maps[2]):
        linear.requires_grad_(requires_grad=False)
    there_and_back(maps, tokens).sum().backward()
    assert maps[0].weight.grad is not None
    assert all(one.grad is None for one in (tokens, *maps[1].parameters(), *maps[2].parameters()))


def test_under_autocast_a_map_has_the_digits_that_it_asks_for():
    linear, tokens = nn.Linear(6, 6), draw(256, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        (heads,) = project_all([(linear, tokens, False)], 3, heads_first=True)
        assert heads is not None
        assert heads.dtype == join_heads(linear, heads).dtype == torch.bfloat16
