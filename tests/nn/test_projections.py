"""Linear projections from tokens to attention heads and back."""

import torch
from torch import nn

from teka.nn.projections import join_heads, project_heads


def test_each_head_holds_consecutive_outputs_of_the_projection():
    linear = nn.Linear(6, 6)
    tokens = torch.randn(2, 5, 6)
    heads = project_heads(linear, tokens, 3)
    assert heads.shape == (2, 2, 5, 3)
    assert torch.equal(heads[:, 1], linear(tokens)[..., 3:])


def test_joining_heads_inverts_the_split():
    tokens = torch.randn(2, 5, 6)
    heads = project_heads(nn.Identity(), tokens, 3)
    assert torch.equal(join_heads(nn.Identity(), heads), tokens)
