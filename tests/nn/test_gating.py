"""Gates of the output of attention heads."""

import math

import torch
from torch import nn

from teka.nn import Attention
from teka.nn.gating import OutputGate
from tests.contracts.cases import relative_error


def test_initial_gates_are_equal_and_nearly_open():
    gates = OutputGate(12, 3, 4)(torch.randn(2, 7, 12))
    assert gates.shape == (2, 3, 7, 4)
    assert torch.allclose(gates, torch.full_like(gates, 1 / (1 + math.exp(-2))))


def test_a_gate_is_the_sigmoid_of_a_projection_of_its_token():
    gate, tokens = OutputGate(12, 3, 4).double(), torch.randn(2, 7, 12, dtype=torch.float64)
    nn.init.normal_(gate.projection.weight)
    expected = torch.sigmoid(gate.projection(tokens))
    torch.testing.assert_close(
        gate(tokens).transpose(1, 2).flatten(2), expected, rtol=1e-14, atol=0
    )
    assert relative_error(gate(tokens[:, 3:4])[:, :, 0], gate(tokens)[:, :, 3]) < 1e-12


def test_a_layer_multiplies_the_output_of_its_heads():
    torch.manual_seed(0)
    gated = Attention(12, 3, gate=True, relative=None).double()
    tokens = torch.randn(2, 7, 12, dtype=torch.float64)
    assert gated.gate is not None
    nn.init.normal_(gated.gate.projection.weight)
    plain = Attention(12, 3, relative=None).double()
    plain.load_state_dict(gated.state_dict(), strict=False)
    identity = nn.Linear(12, 12, bias=False).double()
    nn.init.eye_(identity.weight)
    output, plain.output = plain.output, identity
    expected = output(plain(tokens) * torch.sigmoid(gated.gate.projection(tokens)))
    assert relative_error(gated(tokens), expected) < 1e-12


def test_gates_depend_on_the_tokens_and_not_on_the_context():
    torch.manual_seed(0)
    layer = Attention(12, 3, gate=True, relative=None, context_dim=5).double()
    assert layer.gate is not None
    nn.init.constant_(layer.gate.projection.bias, -1e3)
    nn.init.normal_(layer.gate.projection.weight)
    tokens = torch.randn(2, 7, 12, dtype=torch.float64)
    context = torch.randn(2, 3, 5, dtype=torch.float64)
    assert torch.allclose(layer(tokens, context=context), layer.output.bias.expand(2, 7, 12))
