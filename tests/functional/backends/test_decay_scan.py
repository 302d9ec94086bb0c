import pytest
import torch

from teka.functional.backends import linear
from teka.functional.backends.attention_sums import AttentionFeatures
from teka.functional.backends.decay_scan import BLOCK, decayed_sums


@pytest.mark.parametrize("side", [1, BLOCK, 2 * BLOCK + 1, 3 * BLOCK - 1, 2 * BLOCK * BLOCK + 7])
def test_decayed_sums_equal_the_product_with_the_decay_matrix(side: int):
    generator = torch.Generator().manual_seed(0)
    cells = torch.randn(2, 3, side, 2, 4, dtype=torch.float64, generator=generator)
    rate = torch.tensor([0.0, 0.02, 4.0], dtype=torch.float64)
    steps = (torch.arange(side)[:, None] - torch.arange(side)).abs()
    expected = torch.einsum("hij,bhjcd->bhicd", torch.exp(-rate[:, None, None] * steps), cells)
    torch.testing.assert_close(decayed_sums(cells, rate), expected, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("num_tokens", [1, 4, 13, 27])
def test_causal_decay_equals_the_formula_across_chunks_and_blocks(
    num_tokens: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(linear, "CHUNK_TOKENS", 4)
    monkeypatch.setattr(linear, "BLOCK_CHUNKS", 2)
    generator = torch.Generator().manual_seed(0)
    query, key = (
        torch.rand(2, 3, num_tokens, 5, dtype=torch.float64, generator=generator) for _ in range(2)
    )
    log_scale = torch.randn(2, 3, num_tokens, dtype=torch.float64, generator=generator)
    value = torch.randn(2, 3, num_tokens, 2, dtype=torch.float64, generator=generator)
    rate = torch.tensor([0.0, 0.02, 4.0], dtype=torch.float64)
    steps = torch.arange(num_tokens)[:, None] - torch.arange(num_tokens)
    weights = (
        query @ key.mT * torch.exp(log_scale[:, :, None] - rate[:, None, None] * steps)
    ).tril()
    expected = weights @ value / weights.sum(dim=-1, keepdim=True)
    features = AttentionFeatures(query), AttentionFeatures(key)
    output = linear.causal_attention_sums(*features, value, log_scale, rate).normalize(
        nonnegative=True
    )
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-12)
