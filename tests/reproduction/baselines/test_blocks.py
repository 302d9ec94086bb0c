"""Pre-norm and post-norm blocks."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from reproduction.baselines.blocks import PostNormBlock, PreNormBlock
from teka import Grid
from teka.nn import Attention, TransformerBlock
from tests.contracts.cases import relative_error


class PlainAttention(nn.Module):
    """Attention of teka without positions, called with tokens only."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.attention(tokens)


def test_pre_norm_block_equals_a_transformer_block():
    torch.manual_seed(0)
    block = TransformerBlock(6, 2, kernel="softmax", relative=None).double()
    other = PreNormBlock(PlainAttention(block.attention), 6).double()
    for part in ("attention_norm", "mlp_norm", "mlp"):
        other.get_submodule(part).load_state_dict(block.get_submodule(part).state_dict())
    tokens = torch.randn(2, 7, 6, dtype=torch.float64)
    assert relative_error(other(tokens), block(tokens)) < 1e-12


def test_pre_norm_block_has_dropout_after_attention_gelu_and_mlp():
    block = PreNormBlock(nn.Identity(), 6, dropout=0.25)
    assert [module.p for module in block.modules() if isinstance(module, nn.Dropout)] == [0.25] * 3
    all_dropped = PreNormBlock(nn.Identity(), 6, dropout=1.0)
    tokens = torch.randn(2, 7, 6)
    assert torch.equal(all_dropped(tokens), tokens)


GRID = Grid((3, 5))


def make_block(**options: float) -> PostNormBlock:
    torch.manual_seed(0)
    return PostNormBlock(
        Attention(8, 2, relative="quadratic", kernel="constant"), **options
    ).double()


def test_post_norm_block_normalizes_after_attention_and_mlp():
    block, tokens = make_block(mlp_ratio=1.5), torch.randn(2, 15, 8).double()

    def linear(name: str, tokens: Tensor) -> Tensor:
        return tokens @ block.get_parameter(f"{name}.weight").T + block.get_parameter(
            f"{name}.bias"
        )

    middle = layer_norm(
        tokens + linear("attention_output.0", block.attention(tokens, GRID)), (8,), eps=1e-12
    )
    hidden = gelu(linear("mlp.0", middle))
    assert hidden.shape[-1] == 12
    expected = layer_norm(middle + linear("mlp.2", hidden), (8,), eps=1e-12)
    torch.testing.assert_close(block(tokens, GRID), expected, rtol=1e-10, atol=1e-10)


def test_post_norm_block_applies_dropout_in_training_only():
    block, tokens = make_block(dropout=0.5), torch.randn(2, 15, 8).double()
    assert [module.p for module in block.modules() if isinstance(module, nn.Dropout)] == [
        0.0,
        0.5,
        0.5,
    ]
    assert not torch.equal(block(tokens, GRID), block(tokens, GRID))
    block.eval()
    assert torch.equal(block(tokens, GRID), block(tokens, GRID))


def test_post_norm_block_with_an_empty_mlp_is_an_error():
    with pytest.raises(ValueError, match=r"mlp_ratio must be at least 1 / dim = 1 / 8.*got 0.01"):
        make_block(mlp_ratio=0.01)
