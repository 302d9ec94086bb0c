from typing import Any

import pytest
import torch
from torch import nn

from teka import Grid, on
from teka.nn import RandomFeatures, TransformerBlock

GRID = Grid((3, 5))


def build(**options: Any) -> TransformerBlock:
    torch.manual_seed(0)
    options = {"relative": None, **options}
    return TransformerBlock(8, 2, **options)


def test_block_is_attention_and_mlp_with_prenorm_and_residuals():
    block, tokens = build(relative="rotation"), torch.randn(2, 16, 8)
    middle = tokens + block.attention(block.attention_norm(tokens), GRID, None, 1)
    first, second = block.mlp[0], block.mlp[3]
    expected = middle + second(nn.functional.gelu(first(block.mlp_norm(middle))))
    assert torch.allclose(block(tokens, GRID, None, 1), expected, atol=1e-6)


def test_every_option_of_a_block_has_an_effect():
    block = build(
        dim_head=3,
        mlp_ratio=1.5,
        kernel="positive",
        relative="rotation",
        num_features=7,
        causal=True,
        qkv_bias=False,
        dropout=0.25,
        backend="dense",
        num_axes=3,
    )
    attention = block.attention
    assert attention.dim_head == 3
    assert attention.causal
    assert isinstance(attention.kernel, RandomFeatures)
    assert attention.kernel.num_features == 7
    assert "value.bias" not in attention.state_dict()
    assert attention.backend == "dense"
    assert attention.relative is not None
    assert attention.relative.get_parameter("cosine_weight").shape == (2, 3, 4)
    dropouts = [module.p for module in block.modules() if isinstance(module, nn.Dropout)]
    assert dropouts == [0.25] * 3
    assert block.mlp[0].weight.shape == (12, 8)


def test_dropout_acts_only_in_training():
    block, tokens = build(dropout=0.5), torch.randn(2, 16, 8)
    assert not torch.equal(block(tokens), block(tokens))
    block.eval()
    assert torch.equal(block(tokens), block(tokens))


def test_mlp_width_must_be_positive():
    with pytest.raises(ValueError, match=r"mlp_ratio must be at least 1 / dim.*got 0\.1"):
        build(mlp_ratio=0.1)


def test_num_queries_returns_the_first_outputs():
    block, tokens = build().double(), torch.randn(2, 16, 8, dtype=torch.float64)
    output = block(tokens, GRID, None, 1, 3)
    assert torch.allclose(output, block(tokens, GRID, None, 1)[:, :3], atol=1e-12)


def test_positions_and_lengths_reach_the_attention():
    block, tokens = (
        build(relative="fourier").double().eval(),
        torch.randn(2, 7, 8, dtype=torch.float64),
    )
    positions, lengths = torch.rand(2, 7, 2, dtype=torch.float64), torch.tensor([7, 4])
    together = block(tokens, positions=positions, lengths=lengths)
    alone = block(tokens[1:, :4], positions=positions[1:, :4])
    assert torch.allclose(together[1:, :4], alone, atol=1e-12)
    assert not torch.allclose(
        block(tokens, positions=2 * positions), block(tokens, positions=positions)
    )


def test_blocks_in_a_sequence_use_the_grid_of_the_context():
    torch.manual_seed(0)
    blocks = nn.Sequential(
        TransformerBlock(8, 2, relative="fourier"), TransformerBlock(8, 2, value_convolution=3)
    )
    tokens = torch.randn(2, 13, 8)
    with on(Grid((3, 4)), num_prefix_tokens=1):
        output, elsewhere = blocks(tokens), blocks[0](tokens, Grid((4, 3)), None, 1)
    first, second = blocks
    assert torch.equal(output, second(first(tokens, Grid((3, 4)), None, 1), Grid((3, 4)), None, 1))
    assert torch.equal(elsewhere, first(tokens, Grid((4, 3)), None, 1))
    with pytest.raises(ValueError, match="grid"):
        blocks(tokens)


def test_steps_equal_a_full_causal_pass():
    block = build(relative="rotary", causal=True, num_axes=1).double().eval()
    tokens = torch.randn(2, 6, 8, dtype=torch.float64)
    state = None
    outputs = []
    for token in tokens.unbind(1):
        output, state = block.step(token, state)
        outputs.append(output)
    assert torch.allclose(torch.stack(outputs, 1), block(tokens, Grid(6)), atol=1e-12)


def test_a_block_with_window_heads_cannot_decode_step_by_step():
    block = build(causal=True, window_reach=1, num_axes=1)
    with pytest.raises(ValueError, match="window_reach must be None"):
        block.step(torch.randn(2, 8))
