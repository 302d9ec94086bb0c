import sys
import warnings

import pytest
import torch

from teka import Grid
from teka.experiments.bench.layers import LAYERS, YARDSTICK, layer_names
from teka.experiments.bench.peers import FusedSoftmax, PerformerPytorch
from teka.experiments.bench.step import Step
from teka.nn import Attention


def test_every_layer_has_a_name_and_backend_of_its_own_and_the_yardstick_is_first():
    places = [(layer.name, layer.backend) for layer in LAYERS]
    assert len(set(places)) == len(places)
    assert LAYERS[0].name == YARDSTICK
    assert len(layer_names()) == len(set(layer_names())) == len(LAYERS) - 1


def test_all_that_was_asked_for_is_there():
    assert {(layer.name, layer.backend) for layer in LAYERS} >= {
        ("squared_relu-fourier", "linear"),
        ("squared_relu-rotary", "linear"),
        ("squared_relu-causal", "linear"),
        ("constant-quadratic", "toeplitz"),
        ("constant-generalized_quadratic", "fft"),
        ("taylor2", "linear"),
    }


def test_grids_are_squares_and_a_causal_layer_has_a_sequence_of_the_same_length():
    for layer in LAYERS:
        assert layer.grid(49) == (Grid(49) if layer.name.endswith("causal") else Grid((7, 7)))


def test_a_causal_layer_is_causal():
    torch.manual_seed(0)
    module = next(layer for layer in LAYERS if layer.name.endswith("causal")).make(12, 2)
    tokens = torch.randn(2, 36, 12)
    later = torch.cat([tokens[:, :20], torch.randn(2, 16, 12)], dim=1)
    assert torch.equal(module(tokens, Grid(36))[:, :20], module(later, Grid(36))[:, :20])


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.name}-{layer.backend}")
def test_a_step_of_every_layer_gives_a_gradient_to_the_tokens_and_all_parameters(layer):
    torch.manual_seed(0)
    module = layer.make(12, 2)
    tokens = torch.randn(2, 36, 12, requires_grad=True)
    assert module(tokens, layer.grid(36)).shape == tokens.shape
    step = Step(module, tokens, layer.grid(36))
    step()
    assert all(tensor.grad is not None and tensor.grad.any() for tensor in (tokens, *module.parameters()))
    step.clear()
    assert all(tensor.grad is None for tensor in (tokens, *module.parameters()))


@pytest.mark.parametrize("layer", LAYERS[1:], ids=lambda layer: f"{layer.name}-{layer.backend}")
def test_every_layer_has_the_four_projections_of_the_yardstick(layer):
    module = layer.make(12, 2)
    weights = [part.weight for part in module.modules() if isinstance(part, torch.nn.Linear)]
    assert all(weight.shape[1] == 12 for weight in weights)
    # Heads that attend by position alone have no keys, and no queries unless their position looks at them.
    missing = 6 if "clipped" in layer.name else 24 if layer.name.startswith("constant") else 0
    assert sum(weight.shape[0] for weight in weights) == 4 * 12 - missing


def test_the_fused_peer_computes_what_the_softmax_layer_does():
    fused, plain = FusedSoftmax(12, 3).double(), Attention(12, 3, kernel="softmax", relative=None).double()
    plain.load_state_dict({name: value for name, value in fused.state_dict().items() if name != "key.bias"})
    tokens = torch.randn(2, 35, 12, dtype=torch.float64)
    assert torch.allclose(fused(tokens, Grid((35,))), plain(tokens), atol=1e-12)


def test_importing_the_performer_peer_warns_of_nothing(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "performer_pytorch"]:
        monkeypatch.delitem(sys.modules, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PerformerPytorch(8, 2)


def test_a_missing_performer_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "performer_pytorch", None)
    with pytest.raises(ImportError, match=r"pip install teka\[bench\]"):
        PerformerPytorch(8, 2)
