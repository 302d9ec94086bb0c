from typing import Any

import pytest
import torch
from tests.contracts.cases import relative_change

from teka.nn import AttentionPool


def build(**options: Any) -> AttentionPool:
    torch.manual_seed(0)
    return AttentionPool(6, 2, **options).double()


def test_it_is_the_formula_in_loops():
    pool, tokens = build(num_queries=3), torch.randn(2, 7, 6, dtype=torch.float64)
    output = pool(tokens)
    assert output.shape == (2, 3, 6)
    key, value = pool.key(tokens), pool.value(tokens)
    for batch in range(2):
        for number in range(3):
            heads = []
            for head in range(2):
                part = slice(3 * head, 3 * head + 3)
                scores = torch.stack([pool.query[number, part] @ key[batch, j, part] for j in range(7)]) / 3**0.5
                heads.append(torch.softmax(scores, 0) @ value[batch, :, part])
            assert relative_change(output[batch, number], pool.output(torch.cat(heads))) < 1e-12


def test_every_parameter_learns():
    pool, tokens = build(), torch.randn(2, 7, 6, dtype=torch.float64)
    pool(tokens).square().sum().backward()
    for name, parameter in pool.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 1e-8, name


def test_masked_tokens_count_for_nothing():
    pool, tokens = build(), torch.randn(2, 7, 6, dtype=torch.float64)
    mask = torch.tensor([[True] * 4 + [False] * 3]).expand(2, -1)
    assert relative_change(pool(tokens, mask), pool(tokens[:, :4])) < 1e-12


def test_bias_is_an_option():
    assert build().value.bias is not None
    assert build(qkv_bias=False).value.bias is None
    assert build().key.bias is None  # it would cancel


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1), "dim is 0"),
        ((6, 0, 1), "heads is 0"),
        ((6, 4, 1), "heads is 4, expected a divisor of dim = 6"),
        ((6, 2, 0), "num_queries is 0"),
    ],
)
def test_a_bad_size_is_an_error_that_names_it(arguments: tuple[int, int, int], message: str):
    dim, heads, num_queries = arguments
    with pytest.raises(ValueError, match=message):
        AttentionPool(dim, heads, num_queries=num_queries)


@pytest.mark.parametrize("size", [(2, 6), (2, 7, 5), (2, 7, 6, 1)])
def test_tokens_of_a_wrong_shape_are_refused(size: tuple[int, ...], as_users_run_it: None):
    with pytest.raises(ValueError, match=r"tokens has shape .* expected \(batch, tokens, 6\)"):
        build()(torch.zeros(size, dtype=torch.float64))
