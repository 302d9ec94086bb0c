import math

import torch
from tests.contracts.cases import relative_change
from torch import nn

from teka.nn import Attention
from teka.nn.additions import Gate


def test_it_begins_nearly_open_and_the_same_for_every_token():
    gates = Gate(12, 3, 4)(torch.randn(2, 7, 12))
    assert gates.shape == (2, 3, 7, 4)
    assert torch.allclose(gates, torch.full_like(gates, 1 / (1 + math.exp(-2))))


def test_it_is_a_sigmoid_of_a_linear_map_of_the_token_itself():
    gate, tokens = Gate(12, 3, 4).double(), torch.randn(2, 7, 12, dtype=torch.float64)
    nn.init.normal_(gate.projection.weight)
    expected = torch.sigmoid(gate.projection(tokens))
    assert torch.equal(gate(tokens).transpose(1, 2).flatten(2), expected)
    assert relative_change(gate(tokens[:, 3:4])[:, :, 0], gate(tokens)[:, :, 3]) < 1e-12


def test_a_layer_multiplies_what_its_heads_give_before_the_output():
    torch.manual_seed(0)
    gated, tokens = Attention(12, 3, gate=True, relative=None).double(), torch.randn(2, 7, 12, dtype=torch.float64)
    assert gated.gate is not None
    nn.init.normal_(gated.gate.projection.weight)
    plain = Attention(12, 3, relative=None).double()
    plain.load_state_dict(gated.state_dict(), strict=False)
    identity = nn.Linear(12, 12, bias=False).double()
    nn.init.eye_(identity.weight)
    output, plain.output = plain.output, identity
    expected = output(plain(tokens) * torch.sigmoid(gated.gate.projection(tokens)))
    assert relative_change(gated(tokens), expected) < 1e-12


def test_the_queries_tokens_open_it_and_not_the_contexts():
    torch.manual_seed(0)
    layer = Attention(12, 3, gate=True, relative=None, context_dim=5).double()
    assert layer.gate is not None
    nn.init.constant_(layer.gate.projection.bias, -1e3)
    nn.init.normal_(layer.gate.projection.weight)
    tokens, context = torch.randn(2, 7, 12, dtype=torch.float64), torch.randn(2, 3, 5, dtype=torch.float64)
    assert torch.allclose(layer(tokens, context=context), layer.output.bias.expand(2, 7, 12))
